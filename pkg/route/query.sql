-- name: ListRoutes :many
-- A route is short of money while the call that had no room still has none: the reason goes with the period or with
-- the limit, and nobody has to clear it.
SELECT r.name, r.state, r.reason, r.consecutive_failures, extract(epoch FROM r.call_timeout)::float8 AS call_timeout_seconds,
       greatest(extract(epoch FROM r.not_before - now()), 0)::float8 AS wait_seconds,
       coalesce(r.requests_per_minute, 0)::int AS requests_per_minute, coalesce(r.tokens_per_minute, 0)::bigint AS tokens_per_minute,
       coalesce(r.concurrent_calls, 0)::int AS concurrent_calls, r.count_output, (CASE WHEN r.state = 'closed' THEN coalesce(r.ramp_level, 0) ELSE 0 END)::int AS ramp_level,
       EXISTS (SELECT FROM spend_limit l WHERE l.scope IN ('*', r.name))::boolean AS budgeted, (r.paused_at IS NOT NULL)::boolean AS paused,
       coalesce(b.scope, '')::text AS exhausted_scope, coalesce(b.period, '')::text AS exhausted_period
FROM provider_route r
LEFT JOIN LATERAL (
  SELECT l.scope, l.period
  FROM spend_limit l
  LEFT JOIN spend s ON s.scope = l.scope AND s.period = l.period AND s.period_start = spend_period(l.period, now())
  WHERE l.scope IN ('*', r.name) AND coalesce(s.used_usd, 0) + r.short_usd > l.limit_usd
  ORDER BY l.period DESC, l.scope
  LIMIT 1
) b ON true
ORDER BY r.name;

-- name: BeginProbe :one
-- One probe for the whole fleet, only where there is work to probe with. A probe whose worker died is replaced
-- when its time is up.
UPDATE provider_route r
SET state = 'half_open', probe_id = gen_random_uuid(), not_before = now() + make_interval(secs => @probe_seconds::float8), changed_at = now()
WHERE r.name = @name AND r.state <> 'closed' AND r.not_before <= now() AND r.paused_at IS NULL
  AND EXISTS (SELECT FROM evaluation_outbox o WHERE o.route = r.name AND o.lane IN ('live', 'bulk') AND o.dead_at IS NULL AND o.status = 'pending' AND o.available_at <= now())
RETURNING r.probe_id;

-- name: CancelProbe :exec
UPDATE provider_route
SET state = 'open', probe_id = NULL, not_before = now(), changed_at = now()
WHERE name = @name AND state = 'half_open' AND probe_id = @probe_id;

-- name: Succeeded :execrows
-- A route that comes back ramps up; its probe was the first call.
UPDATE provider_route
SET state = 'closed', reason = '', consecutive_failures = 0, failing_since = NULL, trips = 0, probe_id = NULL,
    not_before = CASE WHEN state = 'half_open' THEN 'epoch' ELSE not_before END,
    ramp_id = CASE WHEN state = 'half_open' THEN gen_random_uuid() ELSE ramp_id END,
    ramp_level = CASE WHEN state = 'half_open' THEN 2 ELSE ramp_level END,
    ramp_calls = CASE WHEN state = 'half_open' THEN 0 ELSE ramp_calls END,
    ramp_at = CASE WHEN state = 'half_open' THEN now() ELSE ramp_at END,
    changed_at = now()
WHERE name = @name
  AND (state = 'half_open' AND probe_id = sqlc.narg(probe_id) OR state = 'closed' AND consecutive_failures > 0);

-- name: Failed :one
-- Counts failures that the route is to blame for. The breaker opens at the threshold, or when its probe fails,
-- for a pause that doubles with each opening.
UPDATE provider_route
SET consecutive_failures = consecutive_failures + @failures::int,
    failing_since = coalesce(failing_since, now()),
    state = CASE WHEN state = 'half_open' AND probe_id = sqlc.narg(probe_id) THEN 'open'
                 WHEN state = 'closed' AND consecutive_failures + @failures::int >= @threshold::int THEN 'open'
                 ELSE state END,
    reason = CASE WHEN state = 'halted' THEN reason ELSE @reason END,
    not_before = CASE WHEN state = 'half_open' AND probe_id = sqlc.narg(probe_id)
                        OR state = 'closed' AND consecutive_failures + @failures::int >= @threshold::int
                      THEN now() + least(make_interval(secs => @pause_seconds::float8) * power(2, least(trips, 16)), make_interval(secs => @most_seconds::float8))
                      ELSE not_before END,
    trips = CASE WHEN state = 'half_open' AND probe_id = sqlc.narg(probe_id)
                   OR state = 'closed' AND consecutive_failures + @failures::int >= @threshold::int
                 THEN trips + 1 ELSE trips END,
    probe_id = CASE WHEN probe_id = sqlc.narg(probe_id) THEN NULL ELSE probe_id END,
    changed_at = now()
WHERE name = @name
RETURNING state;

-- name: Throttled :exec
-- Nothing is claimed before the pause is over, and then one call, so that a storm does not get a full burst at the
-- end of each pause. A throttled probe has found the provider alive.
UPDATE provider_route
SET not_before = greatest(CASE WHEN probe_id = sqlc.narg(probe_id) THEN 'epoch' ELSE not_before END,
                          now() + make_interval(secs => @pause_seconds::float8)),
    reason = @reason,
    state = CASE WHEN probe_id = sqlc.narg(probe_id) THEN 'closed' ELSE state END,
    consecutive_failures = CASE WHEN probe_id = sqlc.narg(probe_id) THEN 0 ELSE consecutive_failures END,
    failing_since = CASE WHEN probe_id = sqlc.narg(probe_id) THEN NULL ELSE failing_since END,
    probe_id = CASE WHEN probe_id = sqlc.narg(probe_id) THEN NULL ELSE probe_id END,
    ramp_id = gen_random_uuid(), ramp_level = 1, ramp_calls = 0, ramp_at = now(),
    changed_at = now()
WHERE name = @name AND (state = 'closed' OR probe_id = sqlc.narg(probe_id));

-- name: Halted :exec
-- A fault that an operator must mend. A probe that finds it mended resumes the route by itself.
UPDATE provider_route
SET state = 'halted', reason = @reason, not_before = now() + make_interval(secs => @pause_seconds::float8),
    probe_id = NULL, ramp_id = NULL, ramp_level = NULL, ramp_calls = NULL, ramp_at = NULL, changed_at = now()
WHERE name = @name AND (state <> 'half_open' OR probe_id = sqlc.narg(probe_id));

-- name: Ramped :exec
-- Calls of a ramp have ended. Each success makes room for one more, which doubles the calls under way with every
-- round of them, until the route is as wide as a worker.
UPDATE provider_route
SET ramp_id = CASE WHEN ramp_level + @succeeded::int < @full_level::int THEN ramp_id END,
    ramp_level = CASE WHEN ramp_level + @succeeded::int < @full_level::int THEN ramp_level + @succeeded::int END,
    ramp_calls = CASE WHEN ramp_level + @succeeded::int < @full_level::int THEN greatest(ramp_calls - @ended::int, 0) END,
    ramp_at = CASE WHEN ramp_level + @succeeded::int < @full_level::int THEN now() END
WHERE name = @name AND ramp_id = @ramp_id;

-- name: Hold :many
-- Keeps the states of routes as they are until the transaction ends.
SELECT name, state FROM provider_route WHERE name = ANY (@names::text[]) ORDER BY name FOR SHARE;

-- name: LockRoute :one
-- The clock is read once the lock is held: one that was read before would refill a bucket twice.
WITH locked AS MATERIALIZED (
  SELECT * FROM provider_route WHERE provider_route.name = @name FOR NO KEY UPDATE
)
SELECT l.state, l.probe_id, (l.not_before <= now())::boolean AS due, (l.paused_at IS NOT NULL)::boolean AS paused,
       coalesce(l.requests_per_minute, 0)::int AS requests_per_minute, coalesce(l.tokens_per_minute, 0)::bigint AS tokens_per_minute,
       coalesce(l.concurrent_calls, 0)::int AS concurrent_calls,
       l.request_credit, l.token_credit, l.token_ratio, c.at::timestamptz AS refilled_at, extract(epoch FROM c.at - l.refilled_at)::float8 AS elapsed_seconds,
       l.short_usd, l.ramp_id, coalesce(l.ramp_level, 0)::int AS ramp_level,
       -- Calls that nobody has told of for so long are lost with their worker.
       (CASE WHEN now() < l.ramp_at + l.call_timeout THEN l.ramp_calls ELSE 0 END)::int AS ramp_calls,
       (SELECT count(*) FROM spend_limit s WHERE s.scope IN ('*', l.name))::int AS budgets, now()::timestamptz AS opened_at
FROM locked l
CROSS JOIN LATERAL (SELECT greatest(clock_timestamp(), l.refilled_at) AS at) c;

-- name: CountCalls :one
-- By a statement of its own: its snapshot has what was claimed while this transaction waited for the route.
SELECT count(*)::int AS calls
FROM evaluation_outbox o
WHERE o.idempotency_key = ANY (ARRAY(SELECT unnest(c.keys) FROM evaluation_claim c WHERE c.route = @route)) AND o.status = 'processing';

-- name: UsePermit :exec
UPDATE provider_route
SET request_credit = @request_credit, token_credit = @token_credit, refilled_at = @refilled_at, short_usd = sqlc.narg(short_usd)::numeric,
    ramp_calls = CASE WHEN ramp_id IS NOT NULL THEN @ramp_calls::int END, ramp_at = CASE WHEN ramp_id IS NOT NULL THEN now() END
WHERE name = @name;

-- name: LearnTokens :exec
-- What calls took beside what they were expected to take: the credit is put right, and the ratio follows.
UPDATE provider_route
SET token_credit = token_credit + CASE WHEN count_output THEN @credit_all::float8 ELSE @credit_input::float8 END,
    token_ratio = least(100, greatest(0.01,
      token_ratio + (CASE WHEN count_output THEN @ratio_all::float8 ELSE @ratio_input::float8 END - token_ratio) * @weight::float8))
WHERE name = @name AND tokens_per_minute IS NOT NULL;

-- name: SetLimits :execrows
-- The buckets begin empty: what was called before is not counted in them.
UPDATE provider_route
SET requests_per_minute = nullif(@requests_per_minute::int, 0), tokens_per_minute = nullif(@tokens_per_minute::bigint, 0),
    concurrent_calls = nullif(@concurrent_calls::int, 0), count_output = @count_output,
    request_credit = 0, token_credit = 0, refilled_at = clock_timestamp()
WHERE name = @name;

-- name: LockBudgets :many
-- All that a call of the route is charged to now, in the order in which charges lock it.
SELECT s.used_usd, l.limit_usd
FROM spend s
LEFT JOIN spend_limit l ON l.scope = s.scope AND l.period = s.period
WHERE s.scope IN ('*', @route) AND s.period_start = spend_period(s.period, now())
ORDER BY s.scope, s.period
FOR NO KEY UPDATE OF s;

-- name: BeginPeriods :exec
-- The first claim of a period begins it at nothing: no call of the period can have been charged before.
INSERT INTO spend (scope, period, period_start)
SELECT l.scope, l.period, spend_period(l.period, now())
FROM spend_limit l
WHERE l.scope IN ('*', @route)
ORDER BY l.scope, l.period
ON CONFLICT DO NOTHING;

-- name: Charge :exec
WITH charge AS (
  SELECT s.scope, s.period, s.period_start, sum(u.usd::numeric) AS usd
  FROM ROWS FROM (unnest(@routes::text[]), unnest(@opened_at::timestamptz[]), unnest(@usd::text[])) AS u(route, opened_at, usd)
  JOIN spend s ON s.scope IN ('*', u.route) AND s.period_start = spend_period(s.period, u.opened_at)
  GROUP BY s.scope, s.period, s.period_start
), locked AS MATERIALIZED (
  SELECT s.scope, s.period, s.period_start, c.usd
  FROM spend s
  JOIN charge c ON c.scope = s.scope AND c.period = s.period AND c.period_start = s.period_start
  ORDER BY s.scope, s.period, s.period_start
  FOR NO KEY UPDATE OF s
)
UPDATE spend s
SET used_usd = s.used_usd + l.usd
FROM locked l
WHERE s.scope = l.scope AND s.period = l.period AND s.period_start = l.period_start;

-- name: LockSpend :exec
-- Whoever charges writes to this table behind the calls; so from here on each is either in the sums or waits.
LOCK TABLE spend IN EXCLUSIVE MODE;

-- name: SetSpendLimit :exec
INSERT INTO spend_limit (scope, period, limit_usd) VALUES (@scope, @period, @limit_usd)
ON CONFLICT (scope, period) DO UPDATE SET limit_usd = EXCLUDED.limit_usd;

-- name: DeleteSpendLimit :exec
DELETE FROM spend_limit WHERE scope = @scope AND period = @period;

-- name: CountSpent :exec
-- What was spent before the limit was set counts too. The next period begins here as well, for a claim that has not
-- seen the limit and crosses into it.
INSERT INTO spend (scope, period, period_start, used_usd, uncharged_usd)
SELECT @scope::text, @period::text, p.period_start, coalesce(c.charged, 0) + coalesce(c.uncharged, 0), coalesce(c.uncharged, 0)
FROM (SELECT spend_period(@period::text, now()) AS period_start
      UNION SELECT spend_period(@period::text, now() + CASE @period::text WHEN 'day' THEN interval '1 day' ELSE interval '1 month' END)) p
CROSS JOIN LATERAL (
  SELECT sum(m.charged_usd) AS charged, sum(m.cost_usd) FILTER (WHERE m.charged_usd IS NULL) AS uncharged
  FROM model_call m
  JOIN evaluator_version v ON v.id = m.version_id
  WHERE m.id >= uuid_v7_floor(p.period_start::timestamp AT TIME ZONE 'UTC') AND spend_period(@period::text, m.started_at) = p.period_start
    AND @scope::text IN ('*', v.route)
) c
ON CONFLICT (scope, period, period_start) DO UPDATE SET used_usd = EXCLUDED.used_usd, uncharged_usd = EXCLUDED.uncharged_usd;

-- name: RouteExists :one
SELECT EXISTS (SELECT FROM provider_route WHERE name = @name)::boolean AS known;

-- name: PauseRoute :execrows
UPDATE provider_route
SET paused_at = now(), paused_by = @paused_by::text, pause_reason = @pause_reason::text, changed_at = now()
WHERE name = @name AND paused_at IS NULL;

-- name: ResumeRoute :execrows
UPDATE provider_route
SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, changed_at = now()
WHERE name = @name AND paused_at IS NOT NULL;

-- name: ResetRoute :execrows
-- As after a probe that went well: what was shut ramps up. A probe that is under way is one no more.
UPDATE provider_route
SET ramp_id = CASE WHEN state <> 'closed' THEN gen_random_uuid() ELSE ramp_id END,
    ramp_level = CASE WHEN state <> 'closed' THEN 2 ELSE ramp_level END,
    ramp_calls = CASE WHEN state <> 'closed' THEN 0 ELSE ramp_calls END,
    ramp_at = CASE WHEN state <> 'closed' THEN now() ELSE ramp_at END,
    state = 'closed', reason = '', consecutive_failures = 0, failing_since = NULL, trips = 0, probe_id = NULL, not_before = 'epoch',
    changed_at = now()
WHERE name = @name AND (state <> 'closed' OR consecutive_failures > 0 OR trips > 0 OR not_before > now());

-- name: SetCallTimeout :execrows
UPDATE provider_route SET call_timeout = make_interval(secs => @seconds::float8)
WHERE name = @name AND call_timeout <> make_interval(secs => @seconds::float8);

-- name: Controls :many
-- Routes by name, all or one, with what operators have set and what is left of the limits' credits.
SELECT r.name, r.paused_at, coalesce(r.paused_by, '')::text AS paused_by, coalesce(r.pause_reason, '')::text AS pause_reason, r.changed_at,
       r.request_credit, r.token_credit, extract(epoch FROM clock_timestamp() - r.refilled_at)::float8 AS elapsed_seconds, now()::timestamptz AS read_at
FROM provider_route r
WHERE @name::text = '' OR r.name = @name
ORDER BY r.name;

-- name: LockForChange :many
SELECT name FROM provider_route WHERE name = @name FOR NO KEY UPDATE;

-- name: Spend :many
SELECT coalesce(l.scope, s.scope)::text AS scope, coalesce(l.period, s.period)::text AS period,
       l.limit_usd, coalesce(s.used_usd, 0)::numeric AS used_usd,
       (spend_period(coalesce(l.period, s.period), now())::timestamp AT TIME ZONE 'UTC')::timestamptz AS begins_at
FROM spend_limit l
FULL JOIN (SELECT * FROM spend c WHERE c.period_start = spend_period(c.period, now())) s ON s.scope = l.scope AND s.period = l.period
ORDER BY 1, 2;
