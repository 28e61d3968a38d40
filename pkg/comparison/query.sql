-- name: Pairs :many
-- The tickets of a selection, each with what two versions have made of it; nothing of the second when its digest is empty.
-- Not in any order. The text is sent by Pairs itself, which reads row by row what the generated code would gather.
WITH selected AS (
  SELECT t.id, t.client_id, t.external_id, t.created_at, t.content_hash
  FROM ticket t
  WHERE @sample_id::text = '' AND t.created_at >= @created_from AND t.created_at < @created_to AND t.erased_at IS NULL
    AND (@client_id::text = '' OR t.client_id = @client_id)
  UNION ALL
  SELECT t.id, t.client_id, t.external_id, t.created_at, t.content_hash
  FROM ticket_sample_member m JOIN ticket t ON t.id = m.ticket_id
  WHERE @sample_id::text <> '' AND m.sample_id = @sample_id AND t.erased_at IS NULL
)
SELECT t.id, t.client_id, t.external_id, t.created_at,
  (CASE WHEN a.idempotency_key IS NOT NULL THEN 'succeeded' ELSE coalesce(ao.status, '') END)::text AS state,
  coalesce(a.department, '') AS department, coalesce(a.is_urgent, 0) AS is_urgent, coalesce(a.urgency_score, 0) AS urgency_score,
  coalesce(a.model_version, '') AS model_version, coalesce(a.computed_at, 'epoch') AS computed_at,
  coalesce(a.model_call_id, '00000000-0000-0000-0000-000000000000') AS model_call_id,
  (CASE WHEN b.idempotency_key IS NOT NULL THEN 'succeeded' ELSE coalesce(bo.status, '') END)::text AS other_state,
  coalesce(b.department, '') AS other_department, coalesce(b.is_urgent, 0) AS other_is_urgent, coalesce(b.urgency_score, 0) AS other_urgency_score,
  coalesce(b.model_version, '') AS other_model_version, coalesce(b.computed_at, 'epoch') AS other_computed_at,
  coalesce(b.model_call_id, '00000000-0000-0000-0000-000000000000') AS other_model_call_id
FROM selected t
LEFT JOIN evaluation_result a ON a.idempotency_key = evaluation_key(t.content_hash, @digest::bytea)
LEFT JOIN evaluation_outbox ao ON ao.idempotency_key = evaluation_key(t.content_hash, @digest::bytea)
LEFT JOIN evaluation_result b ON @other_digest::bytea <> '' AND b.idempotency_key = evaluation_key(t.content_hash, @other_digest::bytea)
LEFT JOIN evaluation_outbox bo ON @other_digest::bytea <> '' AND bo.idempotency_key = evaluation_key(t.content_hash, @other_digest::bytea)
-- Joined, because a list that is long enough is searched from its beginning for each ticket.
LEFT JOIN unnest(@ticket_ids::uuid[]) AS by_id(id) ON by_id.id = t.id
LEFT JOIN unnest(@external_ids::text[]) AS by_external(id) ON by_external.id = t.external_id
WHERE NOT @named::boolean OR by_id.id IS NOT NULL OR by_external.id IS NOT NULL;

-- name: Expense :one
-- What the ledger has on the answers that a version has given to the tickets of a selection; the same one as in Pairs.
WITH selected AS (
  SELECT t.id, t.external_id, t.content_hash
  FROM ticket t
  WHERE @sample_id::text = '' AND t.created_at >= @created_from AND t.created_at < @created_to AND t.erased_at IS NULL
    AND (@client_id::text = '' OR t.client_id = @client_id)
  UNION ALL
  SELECT t.id, t.external_id, t.content_hash
  FROM ticket_sample_member m JOIN ticket t ON t.id = m.ticket_id
  WHERE @sample_id::text <> '' AND m.sample_id = @sample_id AND t.erased_at IS NULL
), answered AS MATERIALIZED (
  SELECT DISTINCT r.idempotency_key, r.model_call_id
  FROM selected t
  JOIN evaluation_result r ON r.idempotency_key = evaluation_key(t.content_hash, @digest::bytea)
  LEFT JOIN unnest(@ticket_ids::uuid[]) AS by_id(id) ON by_id.id = t.id
  LEFT JOIN unnest(@external_ids::text[]) AS by_external(id) ON by_external.id = t.external_id
  WHERE NOT @named::boolean OR by_id.id IS NOT NULL OR by_external.id IS NOT NULL
), called AS (
  SELECT m.cost_usd, m.outcome, m.id = a.model_call_id AS gave_the_answer, extract(epoch FROM m.finished_at - m.started_at)::float8 AS seconds
  FROM answered a
  JOIN model_call m ON m.idempotency_key = a.idempotency_key AND m.outcome <> 'unsent'
)
SELECT (SELECT count(*) FROM answered) AS answers, count(*) AS calls,
  coalesce(sum(c.cost_usd), 0)::numeric AS cost_usd,
  -- A call that failed cost nothing.
  count(*) FILTER (WHERE c.cost_usd IS NULL AND c.outcome <> 'failed') AS unpriced,
  coalesce(avg(c.seconds) FILTER (WHERE c.gave_the_answer), 0)::float8 AS mean_seconds,
  coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) FILTER (WHERE c.gave_the_answer), 0)::float8 AS p50_seconds,
  coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) FILTER (WHERE c.gave_the_answer), 0)::float8 AS p95_seconds
FROM called c;

-- name: Responses :many
SELECT m.id, substring(m.response FROM 1 FOR @most::int)::bytea AS response
FROM model_call m
WHERE m.id = ANY (@ids::uuid[]) AND m.response IS NOT NULL;

-- name: BeginSnapshot :exec
-- A plan for any arguments takes every list of names for one of ten, and would search the longest from its beginning for
-- each ticket.
SELECT set_config('statement_timeout', @milliseconds::text, true), set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: InsertSample :execrows
INSERT INTO ticket_sample (id, spec, created_by) VALUES (@id, @spec, @created_by) ON CONFLICT DO NOTHING;

-- name: DrawMembers :execrows
-- The order is that of a hash, so it is the same for the same seed and has nothing to do with anything else.
INSERT INTO ticket_sample_member (sample_id, ticket_id)
SELECT @sample_id, t.id
FROM ticket t
WHERE t.created_at >= @created_from AND t.created_at < @created_to AND (@client_id::text = '' OR t.client_id = @client_id)
  AND t.erased_at IS NULL
ORDER BY sha256(convert_to(@seed::text, 'UTF8') || uuid_send(t.id)), t.id
LIMIT @size;

-- name: Samples :many
-- One sample, or all for an empty id, the newest first.
SELECT s.id, s.spec, s.created_by, s.created_at, count(m.ticket_id) AS tickets
FROM ticket_sample s
LEFT JOIN ticket_sample_member m ON m.sample_id = s.id
WHERE @id::text = '' OR s.id = @id
GROUP BY s.id
ORDER BY s.created_at DESC, s.id;

-- name: DeleteSample :execrows
DELETE FROM ticket_sample WHERE id = @id;
