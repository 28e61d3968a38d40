-- Webhooks. What an endpoint has to be told of begins a little after it listens: who began before it was there may not
-- have seen it. A ticket is shown what a version made of it that was active at some time since the ticket is there; what
-- promotions make of older answers counts once they have been worked off.

-- name: WebhookForgotten :many
WITH era AS MATERIALIZED (
  SELECT DISTINCT ON (p.version_id) p.version_id, p.promoted_at, p.until, coalesce(s.state = 'done', p.replaced IS NULL) AS walked
  FROM (SELECT *, lead(promoted_at, 1, 'infinity') OVER (ORDER BY id) AS until FROM version_promotion) p
  LEFT JOIN webhook_supersession s ON s.promotion_id = p.id
  ORDER BY p.version_id, p.id DESC
)
SELECT t.id::text AS id, count(*) OVER () AS count
FROM webhook_endpoint e
JOIN ticket t ON t.client_id = e.client_id AND t.created_at > e.listening_since + interval '10 seconds'
WHERE e.state = 'enabled' AND 'evaluation.succeeded' = ANY (e.events)
  AND EXISTS (SELECT FROM evaluation_result r JOIN era w ON w.version_id = r.version_id
              WHERE r.content_hash = t.content_hash AND w.until > t.created_at AND (w.walked OR r.computed_at > w.promoted_at))
  AND NOT EXISTS (SELECT FROM webhook_delivery d WHERE d.endpoint_id = e.id AND d.ticket_id = t.id AND d.event = 'evaluation.succeeded')
ORDER BY 1 LIMIT @examples;

-- name: WebhookDeadLetterForgotten :many
-- Of the active version: what another version could not answer may be hidden by what this one did.
SELECT t.id::text AS id, count(*) OVER () AS count
FROM webhook_endpoint e
JOIN ticket t ON t.client_id = e.client_id AND t.created_at > e.listening_since + interval '10 seconds'
JOIN evaluation_outbox o ON o.content_hash = t.content_hash AND o.status = 'dead'
JOIN active_version a ON a.version_id = o.version_id AND o.dead_at > a.promoted_at
WHERE e.state = 'enabled' AND 'evaluation.dead_letter' = ANY (e.events)
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)
  AND NOT EXISTS (SELECT FROM webhook_delivery d WHERE d.endpoint_id = e.id AND d.ticket_id = t.id AND d.event = 'evaluation.dead_letter'
                    AND d.idempotency_key = o.idempotency_key)
ORDER BY 1 LIMIT @examples;

-- name: WebhookOutdated :many
-- Only of endpoints that hear of first answers and of later ones.
WITH active AS MATERIALIZED (
  SELECT a.version_id, v.digest, p.promoted_at, coalesce(s.state = 'done', p.replaced IS NULL) AS walked
  FROM active_version a
  JOIN evaluator_version v ON v.id = a.version_id
  JOIN (SELECT * FROM version_promotion ORDER BY id DESC LIMIT 1) p ON p.version_id = a.version_id
  LEFT JOIN webhook_supersession s ON s.promotion_id = p.id
)
SELECT t.id::text AS id, count(*) OVER () AS count
FROM webhook_endpoint e
JOIN ticket t ON t.client_id = e.client_id AND t.created_at > e.listening_since + interval '10 seconds'
JOIN active a ON true
JOIN evaluation_result r ON r.content_hash = t.content_hash AND r.version_id = a.version_id AND (a.walked OR r.computed_at > a.promoted_at)
CROSS JOIN LATERAL (
  SELECT d.idempotency_key FROM webhook_delivery d
  WHERE d.endpoint_id = e.id AND d.ticket_id = t.id AND d.event IN ('evaluation.succeeded', 'evaluation.superseded')
  ORDER BY d.sequence DESC LIMIT 1
) last
WHERE e.state = 'enabled' AND e.events @> ARRAY['evaluation.succeeded', 'evaluation.superseded'] AND last.idempotency_key <> r.idempotency_key
  AND r.idempotency_key = evaluation_key(t.content_hash, a.digest)
ORDER BY 1 LIMIT @examples;

-- name: WebhookToldTwice :many
SELECT d.ticket_id::text AS id, count(*) OVER () AS count
FROM webhook_delivery d
WHERE d.event <> 'endpoint.test'
GROUP BY d.endpoint_id, d.ticket_id
HAVING count(*) FILTER (WHERE d.event = 'evaluation.succeeded') > 1 OR count(*) > count(DISTINCT (d.event, d.idempotency_key, d.occasion))
ORDER BY 1 LIMIT @examples;

-- name: WebhookMisnumbered :many
SELECT d.ticket_id::text AS id, count(*) OVER () AS count
FROM webhook_delivery d
WHERE d.event <> 'endpoint.test'
GROUP BY d.endpoint_id, d.ticket_id
HAVING min(d.sequence) <> 1 OR max(d.sequence) <> count(*)
ORDER BY 1 LIMIT @examples;

-- name: WebhookOfNoTicket :many
SELECT d.ticket_id::text AS id, count(*) OVER () AS count
FROM webhook_delivery d
JOIN webhook_endpoint e ON e.id = d.endpoint_id
LEFT JOIN ticket t ON t.id = d.ticket_id
WHERE d.event <> 'endpoint.test' AND t.client_id IS DISTINCT FROM e.client_id
ORDER BY 1 LIMIT @examples;

-- name: WebhookLeaseExpired :many
SELECT d.id::text AS id, count(*) OVER () AS count
FROM webhook_delivery d
WHERE d.state = 'sending' AND d.locked_until < now()
ORDER BY 1 LIMIT @examples;
