-- name: LockStale :many
-- The snapshot's row, when it is older than that and nobody else has it: where two find it so at once, one computes.
SELECT taken_at FROM queue_snapshot
WHERE taken_at <= now() - make_interval(secs => @seconds::float8)
FOR NO KEY UPDATE SKIP LOCKED;

-- name: SaveSnapshot :exec
UPDATE queue_snapshot SET taken_at = now(), data = @data;

-- name: LatestSnapshot :one
-- None has been taken before the epoch's end.
SELECT data, taken_at > 'epoch' AS taken, extract(epoch FROM clock_timestamp() - taken_at)::float8 AS age_seconds FROM queue_snapshot;

-- name: RecordSweep :exec
-- Of two sweeps at once the one that ends last is told of.
UPDATE sweep_run
SET began_at = clock_timestamp() - make_interval(secs => @took_seconds::float8), ended_at = clock_timestamp(), ok = @ok,
    well_at = CASE WHEN @ok THEN clock_timestamp() ELSE well_at END, counts = @counts;

-- name: LastSweep :one
SELECT ok, extract(epoch FROM clock_timestamp() - well_at)::float8 AS age_seconds, counts FROM sweep_run;
