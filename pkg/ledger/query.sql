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
WHERE m.id = ANY (@ids::uuid[]) AND m.id = u.id -- the first keeps a plan from reading whole partitions
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
SELECT id FROM model_call WHERE idempotency_key = @key AND outcome = 'unknown' ORDER BY id;

-- name: TriedFor :many
-- How long ago the first call of each key was opened.
SELECT m.idempotency_key, extract(epoch FROM now() - min(m.started_at))::float8 AS seconds
FROM model_call m
WHERE m.idempotency_key = ANY (@keys::text[]) AND m.outcome <> 'unsent'
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

-- name: EnsurePartitions :one
SELECT ensure_model_call_partitions(@months_ahead::int);
