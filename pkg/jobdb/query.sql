-- name: InsertJob :one
INSERT INTO reprocess_job (kind, spec, created_by, trace_context)
VALUES (@kind, @spec, @created_by, @trace_context)
RETURNING *;

-- name: GetJob :one
SELECT * FROM reprocess_job WHERE kind = @kind AND id = @id;

-- name: ListJobs :many
-- The newest first: identifiers are in the order of their making.
SELECT * FROM reprocess_job
WHERE kind = @kind AND id < @before AND (@state::text = '' OR state = @state)
ORDER BY id DESC
LIMIT @most;

-- name: ClaimJob :many
-- At most one. Whatever is locked is being stepped or changed, and is somebody else's.
UPDATE reprocess_job j
SET lease_id = gen_random_uuid(), locked_by = @worker::text, locked_until = now() + make_interval(secs => @lease_seconds::float8)
WHERE j.id = (
  SELECT q.id FROM reprocess_job q
  WHERE (q.state = 'running' OR q.unsettled) AND q.not_before <= now() AND q.kind = ANY (@kinds::text[])
    AND (q.locked_until IS NULL OR q.locked_until < now())
  ORDER BY q.not_before, q.id
  LIMIT 1
  FOR NO KEY UPDATE SKIP LOCKED)
RETURNING j.*;

-- name: HoldJob :many
SELECT * FROM reprocess_job
WHERE id = @id AND lease_id = @lease::uuid AND (state = 'running' OR unsettled)
FOR NO KEY UPDATE;

-- name: StepJob :many
-- Whoever keeps the lease has it prolonged; any other progress gives it back.
UPDATE reprocess_job
SET cursor = @cursor, counts = @counts, failures = 0,
    state = @state, unsettled = @unsettled, reason = @reason,
    finished_at = CASE WHEN @state = 'done' THEN now() ELSE finished_at END,
    changed_at = CASE WHEN state <> @state THEN now() ELSE changed_at END,
    not_before = now() + make_interval(secs => @wait_seconds::float8),
    lease_id = CASE WHEN @keep::boolean THEN lease_id END,
    locked_by = CASE WHEN @keep::boolean THEN locked_by END,
    locked_until = CASE WHEN @keep::boolean THEN now() + make_interval(secs => @lease_seconds::float8) END
WHERE id = @id AND lease_id = @lease::uuid
RETURNING *;

-- name: FailJob :many
-- A chunk that could not be done. What is unsettled never fails: what it leaves undone would wait, or be paid, for ever.
UPDATE reprocess_job
SET failures = failures + 1, reason = @reason,
    state = CASE WHEN failures + 1 >= @most_failures::int AND state = 'running' THEN 'failed' ELSE state END,
    finished_at = CASE WHEN failures + 1 >= @most_failures::int AND state = 'running' THEN now() ELSE finished_at END,
    changed_at = CASE WHEN failures + 1 >= @most_failures::int AND state = 'running' THEN now() ELSE changed_at END,
    not_before = now() + make_interval(secs => @delay_seconds::float8),
    lease_id = NULL, locked_by = NULL, locked_until = NULL
WHERE id = @id AND lease_id = @lease::uuid
RETURNING *;

-- name: ReleaseJob :exec
UPDATE reprocess_job
SET lease_id = NULL, locked_by = NULL, locked_until = NULL
WHERE id = @id AND lease_id = @lease::uuid;

-- name: LockJob :one
SELECT * FROM reprocess_job WHERE kind = @kind AND id = @id FOR NO KEY UPDATE;

-- name: ChangeJob :one
-- The lease goes with the state: what its holder has under way ends with this transaction's lock.
UPDATE reprocess_job
SET state = @state, unsettled = @unsettled, reason = '', failures = 0, changed_at = now(), not_before = now(),
    finished_at = CASE WHEN @state = 'canceled' THEN now() END,
    lease_id = NULL, locked_by = NULL, locked_until = NULL
WHERE id = @id
RETURNING *;

-- name: CountJobs :many
SELECT kind, state, count(*) AS count FROM reprocess_job
WHERE state IN ('running', 'paused') OR state = 'failed' AND finished_at >= now() - interval '7 days'
GROUP BY kind, state;
