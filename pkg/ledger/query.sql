-- name: PlanClose :exec
-- The calls of a batch are looked up by their identifiers, and joined to what became of them by a hash. On the statistics
-- of a partition that was empty a moment ago, the planner may read all of it, or compare each call with each closure.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_nestloop', @mode::text, true), set_config('enable_mergejoin', @mode::text, true);

-- name: CloseCalls :execrows
-- Closes calls with what became of them. A call is closed once, but for one of unknown outcome whose response
-- came after all, and one whose response was saved and is now judged. Tokens of -1 are not known.
UPDATE model_call m
SET outcome = u.outcome, late = m.late OR m.outcome = 'unknown',
    finished_at = CASE WHEN m.outcome = 'saved' THEN m.finished_at ELSE clock_timestamp() END,
    class = nullif(u.class, ''), reason = nullif(u.reason, ''), error = nullif(u.error, ''),
    http_status = coalesce(nullif(u.http_status, 0), m.http_status),
    provider_request_id = coalesce(nullif(u.provider_request_id, ''), m.provider_request_id),
    served_model = coalesce(nullif(u.served_model, ''), m.served_model),
    input_tokens = coalesce(nullif(u.input_tokens, -1), m.input_tokens), cached_input_tokens = coalesce(nullif(u.cached_input_tokens, -1), m.cached_input_tokens),
    output_tokens = coalesce(nullif(u.output_tokens, -1), m.output_tokens), reasoning_tokens = coalesce(nullif(u.reasoning_tokens, -1), m.reasoning_tokens),
    cost_usd = coalesce(nullif(u.cost_usd, '')::numeric, m.cost_usd),
    response = coalesce(u.response, m.response), trace_id = coalesce(nullif(u.trace_id, ''), m.trace_id)
FROM ROWS FROM (
  unnest(@ids::uuid[]), unnest(@outcomes::text[]), unnest(@classes::text[]), unnest(@reasons::text[]), unnest(@errors::text[]),
  unnest(@http_statuses::int[]), unnest(@provider_request_ids::text[]), unnest(@served_models::text[]),
  unnest(@input_tokens::bigint[]), unnest(@cached_input_tokens::bigint[]), unnest(@output_tokens::bigint[]), unnest(@reasoning_tokens::bigint[]),
  unnest(@costs_usd::text[]), unnest(@responses::bytea[]), unnest(@trace_ids::text[])
) AS u(id, outcome, class, reason, error, http_status, provider_request_id, served_model,
       input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, cost_usd, response, trace_id)
WHERE m.id = ANY (@ids::uuid[]) AND m.id = u.id
  AND (m.outcome = 'open' OR m.outcome = 'saved' OR m.outcome = 'unknown' AND u.outcome IN ('answered', 'rejected', 'saved'));

-- name: SettleCharges :many
-- Charges closed calls what charge_of says, where a budget made them charged, and tells by how much each route's day
-- changes. Doing it again changes nothing.
WITH due AS MATERIALIZED (
  SELECT m.id, m.version_id, m.started_at, m.charged_usd AS before, charge_of(m.outcome, m.cost_usd, m.charged_usd) AS after
  FROM model_call m
  WHERE m.id = ANY (@ids::uuid[]) AND m.charged_usd IS NOT NULL
  FOR NO KEY UPDATE
), settled AS (
  UPDATE model_call m
  SET charged_usd = d.after
  FROM due d
  WHERE m.id = d.id AND d.after <> d.before
)
SELECT v.route, min(d.started_at)::timestamptz AS opened_at, sum(d.after - d.before)::numeric AS usd
FROM due d
JOIN evaluator_version v ON v.id = d.version_id
GROUP BY v.route, spend_period('day', d.started_at);

-- name: UnknownCalls :many
SELECT id FROM model_call WHERE idempotency_key = @key AND outcome = 'unknown' AND recalled_by IS NULL ORDER BY id;

-- name: TriedFor :many
-- How long ago the first call of each key was opened, of those that were not recalled.
SELECT m.idempotency_key, extract(epoch FROM now() - min(m.started_at))::float8 AS seconds
FROM model_call m
WHERE m.idempotency_key = ANY (@keys::text[]) AND m.outcome <> 'unsent' AND m.recalled_by IS NULL
GROUP BY m.idempotency_key;

-- name: SaveResults :many
-- The first writer wins. The keys written come back.
INSERT INTO evaluation_result (
  idempotency_key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
  model_version, prompt_version, policy_version, priority, queue, model_call_id)
SELECT u.key, u.content_hash, u.ticket_id, u.version_id, u.is_urgent, u.department, u.urgency_score,
       u.model_version, u.prompt_version, u.policy_version, u.priority, u.queue, u.model_call_id
FROM ROWS FROM (
  unnest(@keys::text[]), unnest(@content_hashes::bytea[]), unnest(@ticket_ids::uuid[]), unnest(@version_ids::text[]),
  unnest(@is_urgent::float8[]), unnest(@departments::text[]), unnest(@urgency_scores::float8[]),
  unnest(@model_versions::text[]), unnest(@prompt_versions::text[]), unnest(@policy_versions::text[]),
  unnest(@priorities::text[]), unnest(@queues::text[]), unnest(@model_call_ids::uuid[])
) AS u(key, content_hash, ticket_id, version_id, is_urgent, department, urgency_score,
       model_version, prompt_version, policy_version, priority, queue, model_call_id)
ORDER BY u.key
ON CONFLICT DO NOTHING
RETURNING idempotency_key;

-- name: Recall :execrows
-- Sets the calls of dead letters aside, whose rows the transaction has locked. What was set aside before stays so.
UPDATE model_call SET recalled_by = @replay::uuid
WHERE idempotency_key = ANY (@keys::text[]) AND recalled_by IS NULL;

-- name: Reopen :many
-- Makes the newest response of each key that was no answer, and is not recalled, one that is to be judged; the keys that
-- have such a response come back. Why it was no answer stays beside it.
WITH newest AS MATERIALIZED (
  SELECT DISTINCT ON (m.idempotency_key) m.id, m.idempotency_key, m.outcome
  FROM model_call m
  WHERE m.idempotency_key = ANY (@keys::text[]) AND m.outcome IN ('saved', 'rejected') AND m.response IS NOT NULL AND m.recalled_by IS NULL
  ORDER BY m.idempotency_key, m.outcome DESC, m.id DESC
), reopened AS (
  UPDATE model_call m SET outcome = 'saved'
  FROM newest n
  WHERE m.id = n.id AND m.outcome = 'rejected'
)
SELECT idempotency_key FROM newest;

-- name: History :many
-- All calls of a key, the oldest first, and of each response its beginning.
SELECT m.id, m.attempt, m.outcome, coalesce(m.class, '')::text AS class, coalesce(m.reason, '')::text AS reason, coalesce(m.error, '')::text AS error,
       m.started_at, m.finished_at, coalesce(m.http_status, 0)::int AS http_status, coalesce(m.provider_request_id, '')::text AS provider_request_id,
       coalesce(m.served_model, '')::text AS served_model, coalesce(m.input_tokens, 0)::bigint AS input_tokens, coalesce(m.output_tokens, 0)::bigint AS output_tokens,
       m.cost_usd, coalesce(m.trace_id, '')::text AS trace_id, m.late, m.recalled_by,
       coalesce(substring(m.response FROM 1 FOR @response_bytes::int), '')::bytea AS response, coalesce(octet_length(m.response), 0)::bigint AS response_bytes
FROM model_call m
WHERE m.idempotency_key = @key
ORDER BY m.id
LIMIT @most;

-- name: Recent :many
-- The newest calls of this month, up to a number of them, by version. What they may cost counts as spent.
WITH newest AS MATERIALIZED (
  SELECT m.version_id, m.outcome, m.started_at, coalesce(m.charged_usd, m.cost_usd) AS usd
  FROM model_call m
  WHERE m.id >= uuid_v7_floor(spend_period('month', now())::timestamp AT TIME ZONE 'UTC')
  ORDER BY m.id DESC
  LIMIT @most::int
), reach AS MATERIALIZED (
  SELECT count(*) >= @most::int AS capped, min(started_at) AS oldest_at FROM newest
), ranged AS MATERIALIZED (
  SELECT capped, capped AND spend_period('day', oldest_at) = spend_period('day', now()) AS day_partial,
         greatest(CASE WHEN capped THEN oldest_at END, now() - make_interval(secs => @window_seconds::float8)) AS window_from
  FROM reach
)
SELECT n.version_id,
       count(*) FILTER (WHERE n.started_at >= ranged.window_from) AS calls,
       count(*) FILTER (WHERE n.started_at >= ranged.window_from AND n.outcome = 'answered') AS answered,
       count(*) FILTER (WHERE n.started_at >= ranged.window_from AND n.outcome IN ('failed', 'unknown', 'rejected')) AS failed,
       coalesce(sum(n.usd) FILTER (WHERE spend_period('day', n.started_at) = spend_period('day', now())), 0)::numeric AS day_usd,
       coalesce(sum(n.usd), 0)::numeric AS month_usd,
       extract(epoch FROM now() - min(ranged.window_from))::float8 AS window_seconds,
       bool_or(ranged.capped)::boolean AS capped, bool_or(ranged.day_partial)::boolean AS day_partial
FROM newest n
CROSS JOIN ranged
GROUP BY n.version_id;

-- name: Savings :many
-- What became of the newest tickets of a day under the versions that were active in it: how many were answered, how many
-- of them by the call of another, and what a call cost.
WITH version AS MATERIALIZED (
  SELECT v.route, v.digest
  FROM evaluator_version v
  WHERE v.id IN (SELECT a.version_id FROM active_version a
                 UNION SELECT p.version_id FROM version_promotion p WHERE p.promoted_at >= now() - interval '24 hours'
                 UNION SELECT p.replaced FROM version_promotion p WHERE p.promoted_at >= now() - interval '24 hours')
), sample AS MATERIALIZED (
  SELECT t.id, t.content_hash
  FROM ticket t
  WHERE t.id >= uuid_v7_floor(now() - interval '24 hours')
  ORDER BY t.id DESC
  LIMIT @most
)
SELECT v.route, count(*) AS tickets, count(*) FILTER (WHERE r.ticket_id <> s.id) AS answered_without_call, coalesce(avg(m.cost_usd), 0)::numeric AS call_usd
FROM sample s
CROSS JOIN version v
CROSS JOIN LATERAL (SELECT evaluation_key(s.content_hash, v.digest) AS idempotency_key LIMIT 1) k
JOIN evaluation_result r ON r.idempotency_key = k.idempotency_key
LEFT JOIN model_call m ON m.id = r.model_call_id AND r.ticket_id = s.id
GROUP BY v.route;

-- name: EnsurePartitions :one
SELECT ensure_model_call_partitions(@months_ahead::int);
