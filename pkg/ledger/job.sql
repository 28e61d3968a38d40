-- name: JobCalls :one
-- What a job's calls have come to. A call of unknown outcome may be paid, and counts among those that are under way.
SELECT count(DISTINCT m.idempotency_key) FILTER (WHERE m.outcome = 'answered') AS answered,
       count(*) FILTER (WHERE m.cost_usd IS NOT NULL) AS priced,
       coalesce(sum(m.cost_usd), 0)::numeric AS cost_usd,
       count(*) FILTER (WHERE m.outcome IN ('open', 'unknown') AND m.cost_usd IS NULL) AS under_way,
       count(*) FILTER (WHERE m.outcome = 'answered' AND m.finished_at > now() - interval '1 minute') AS answered_last_minute
FROM model_call m
WHERE m.job_id = @job_id::uuid;

-- name: RecentUse :many
-- What the answers of the newest calls took, by version. How far it looks is bounded, whatever the ledger holds.
WITH recent AS MATERIALIZED (
  SELECT m.version_id, m.outcome, m.started_at, m.finished_at, m.cost_usd, m.input_tokens, m.cached_input_tokens, m.output_tokens
  FROM model_call m
  ORDER BY m.id DESC
  LIMIT @most
), paced AS (
  SELECT x.version_id, max(x.calls)::bigint AS calls
  FROM (SELECT r.version_id, count(*) AS calls FROM recent r
        WHERE r.outcome IN ('answered', 'rejected') GROUP BY r.version_id, date_trunc('minute', r.finished_at)) x
  GROUP BY x.version_id
)
SELECT r.version_id, count(*) AS calls,
       avg(r.cost_usd)::numeric AS cost_usd,
       coalesce(avg(r.input_tokens), 0)::float8 AS input_tokens, coalesce(avg(r.cached_input_tokens), 0)::float8 AS cached_input_tokens,
       coalesce(avg(r.output_tokens), 0)::float8 AS output_tokens,
       coalesce(avg(extract(epoch FROM r.finished_at - r.started_at)), 0)::float8 AS seconds,
       coalesce(max(p.calls), 0)::bigint AS busiest_minute
FROM recent r
LEFT JOIN paced p ON p.version_id = r.version_id
WHERE r.outcome IN ('answered', 'rejected') AND r.cost_usd IS NOT NULL
GROUP BY r.version_id;
