-- name: EndpointsByState :many
SELECT coalesce(e.disabled_reason, '')::text AS disabled_reason, count(*) AS count
FROM (SELECT disabled_reason FROM webhook_endpoint WHERE state <> 'deleted' LIMIT @most) e
GROUP BY 1;

-- name: OldestDue :one
-- Each endpoint's oldest is the first entry of its index.
SELECT coalesce(extract(epoch FROM now() - min(d.available_at)), 0)::float8 AS age_seconds
FROM (SELECT id FROM webhook_endpoint WHERE state = 'enabled' AND not_before <= now() LIMIT @most) e
CROSS JOIN LATERAL (
  SELECT w.available_at FROM webhook_delivery w
  WHERE w.endpoint_id = e.id AND w.state = 'pending' AND w.available_at <= now()
  ORDER BY w.available_at, w.id LIMIT 1
) d;
