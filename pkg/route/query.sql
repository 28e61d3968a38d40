-- name: ListRoutes :many
SELECT name, state, reason, consecutive_failures, extract(epoch FROM call_timeout)::float8 AS call_timeout_seconds,
       (not_before <= now())::boolean AS due, greatest(extract(epoch FROM not_before - now()), 0)::float8 AS wait_seconds
FROM provider_route
ORDER BY name;

-- name: BeginProbe :one
-- One probe for the whole fleet, only where there is work to probe with. A probe whose worker died is replaced
-- when its time is up.
UPDATE provider_route r
SET state = 'half_open', probe_id = gen_random_uuid(), not_before = now() + make_interval(secs => @probe_seconds::float8), changed_at = now()
WHERE r.name = @name AND r.state <> 'closed' AND r.not_before <= now()
  AND EXISTS (SELECT FROM evaluation_outbox o WHERE o.route = r.name AND o.lane IN ('live', 'bulk') AND o.status = 'pending' AND o.available_at <= now())
RETURNING r.probe_id;

-- name: CancelProbe :exec
UPDATE provider_route
SET state = 'open', probe_id = NULL, not_before = now(), changed_at = now()
WHERE name = @name AND state = 'half_open' AND probe_id = @probe_id;

-- name: Succeeded :execrows
UPDATE provider_route
SET state = 'closed', reason = '', consecutive_failures = 0, trips = 0, probe_id = NULL,
    not_before = CASE WHEN state = 'half_open' THEN 'epoch' ELSE not_before END, changed_at = now()
WHERE name = @name
  AND (state = 'half_open' AND probe_id = sqlc.narg(probe_id) OR state = 'closed' AND consecutive_failures > 0);

-- name: Failed :one
-- Counts failures that the route is to blame for. The breaker opens at the threshold, or when its probe fails,
-- for a pause that doubles with each opening.
UPDATE provider_route
SET consecutive_failures = consecutive_failures + @failures::int,
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
-- Nothing is claimed before the pause is over. A throttled probe has found the provider alive.
UPDATE provider_route
SET not_before = greatest(CASE WHEN probe_id = sqlc.narg(probe_id) THEN 'epoch' ELSE not_before END,
                          now() + make_interval(secs => @pause_seconds::float8)),
    reason = @reason,
    state = CASE WHEN probe_id = sqlc.narg(probe_id) THEN 'closed' ELSE state END,
    consecutive_failures = CASE WHEN probe_id = sqlc.narg(probe_id) THEN 0 ELSE consecutive_failures END,
    probe_id = CASE WHEN probe_id = sqlc.narg(probe_id) THEN NULL ELSE probe_id END,
    changed_at = now()
WHERE name = @name AND (state = 'closed' OR probe_id = sqlc.narg(probe_id));

-- name: Halted :exec
-- A fault that an operator must mend. A probe that finds it mended resumes the route by itself.
UPDATE provider_route
SET state = 'halted', reason = @reason, not_before = now() + make_interval(secs => @pause_seconds::float8),
    probe_id = NULL, changed_at = now()
WHERE name = @name AND (state <> 'half_open' OR probe_id = sqlc.narg(probe_id));
