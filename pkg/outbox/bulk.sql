-- name: PlanBulk :exec
-- As PlanKeys, for statements that look each key up by itself.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true);

-- name: EnqueueBulk :many
-- Work on the bulk lane, for every key that has neither work nor a result, due at a time within the spread that follows
-- from the key. Rows go in in key order; the keys inserted come back. OFFSET 0 is there for what it is in Enqueue.
INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, job_id, available_at)
SELECT u.key, u.content_hash, u.ticket_id, @version_id::text, @route::text, 'bulk', @job_id::uuid,
       greatest(now(), sqlc.arg(spread_from)::timestamptz + f.fraction * sqlc.arg(spread_seconds)::float8 * interval '1 second') AS available_at
FROM ROWS FROM (unnest(@keys::text[]), unnest(@content_hashes::bytea[]), unnest(@ticket_ids::uuid[])) AS u(key, content_hash, ticket_id)
CROSS JOIN LATERAL (
  SELECT (get_byte(decode(left(u.key, 4), 'hex'), 0) * 256 + get_byte(decode(left(u.key, 4), 'hex'), 1)) / 65536.0::float8 AS fraction
) f
WHERE NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = u.key OFFSET 0)
ORDER BY u.key
ON CONFLICT DO NOTHING
RETURNING idempotency_key;

-- name: HoldJobWork :one
-- Holds back what waits of a job, from the key after the one given. The last key looked at comes back, '' at the end, and
-- how many calls are under way, whose work may yet wait again.
WITH page AS MATERIALIZED (
  SELECT o.idempotency_key FROM evaluation_outbox o
  WHERE o.job_id = @job_id::uuid AND o.idempotency_key > @after::text
  ORDER BY o.idempotency_key
  LIMIT @most::bigint
), held AS MATERIALIZED (
  SELECT o.idempotency_key, o.status, o.available_at FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM page)) AND o.job_id = @job_id::uuid
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE
), changed AS (
  UPDATE evaluation_outbox o SET available_at = 'infinity'
  WHERE o.idempotency_key = ANY (ARRAY(SELECT h.idempotency_key FROM held h WHERE h.status = 'pending' AND h.available_at < 'infinity'))
)
SELECT coalesce((SELECT max(idempotency_key) FROM page HAVING count(*) = @most::bigint), '')::text AS next,
       (SELECT count(*) FROM held h WHERE h.status = 'pending' AND h.available_at < 'infinity') AS held,
       (SELECT count(*) FROM held h WHERE h.status = 'processing') AS processing;

-- name: SpreadJobWork :one
-- Makes what was held back of a job due again, as EnqueueBulk would.
WITH page AS MATERIALIZED (
  SELECT o.idempotency_key FROM evaluation_outbox o
  WHERE o.job_id = @job_id::uuid AND o.idempotency_key > @after::text
  ORDER BY o.idempotency_key
  LIMIT @most::bigint
), held AS MATERIALIZED (
  SELECT o.idempotency_key,
         (get_byte(decode(left(o.idempotency_key, 4), 'hex'), 0) * 256 + get_byte(decode(left(o.idempotency_key, 4), 'hex'), 1)) / 65536.0::float8 AS fraction
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM page)) AND o.job_id = @job_id::uuid
    AND o.status = 'pending' AND o.available_at = 'infinity'
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE
), changed AS (
  UPDATE evaluation_outbox o
  SET available_at = greatest(now(), sqlc.arg(spread_from)::timestamptz + h.fraction * sqlc.arg(spread_seconds)::float8 * interval '1 second')
  FROM held h
  WHERE o.idempotency_key = h.idempotency_key
)
SELECT coalesce((SELECT max(idempotency_key) FROM page HAVING count(*) = @most::bigint), '')::text AS next,
       (SELECT count(*) FROM held) AS spread;

-- name: JobWorkPage :many
-- What waits or is worked on of a job, in pages.
SELECT o.idempotency_key, o.status FROM evaluation_outbox o
WHERE o.job_id = @job_id::uuid AND o.idempotency_key > @after::text
ORDER BY o.idempotency_key
LIMIT @most;

-- name: LockJobWork :many
-- What may be taken away of a job: locked against followers, and apart from RemoveJobWork, which so sees the tickets of
-- those who held it before.
SELECT o.idempotency_key FROM evaluation_outbox o
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.job_id = @job_id::uuid AND o.status = 'pending'
ORDER BY o.idempotency_key
FOR UPDATE;

-- name: RemoveJobWork :one
-- Deletes locked work of a job, but for what is all that a ticket has: that stays, due now, and the job's no longer.
-- Other work counts where no job could take it away in its turn.
WITH locked AS MATERIALIZED (
  SELECT o.idempotency_key,
         EXISTS (
           SELECT FROM evaluator_version v
           CROSS JOIN LATERAL (SELECT evaluation_key(o.content_hash, v.digest) AS key) k
           LEFT JOIN evaluation_result r ON r.idempotency_key = k.key
           LEFT JOIN evaluation_outbox w ON w.idempotency_key = k.key AND w.job_id IS NULL
           WHERE r.idempotency_key IS NOT NULL OR w.idempotency_key IS NOT NULL) AS dispensable
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (@keys::text[])
), removed AS (
  DELETE FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM locked WHERE dispensable))
), kept AS (
  UPDATE evaluation_outbox o SET job_id = NULL, available_at = now()
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM locked WHERE NOT dispensable))
)
SELECT count(*) FILTER (WHERE dispensable) AS removed, count(*) FILTER (WHERE NOT dispensable) AS kept FROM locked;

-- name: JobWork :one
-- What is left of a job.
SELECT count(*) FILTER (WHERE o.status = 'pending') AS pending, count(*) FILTER (WHERE o.status = 'processing') AS processing,
       count(*) FILTER (WHERE o.status = 'dead') AS dead,
       count(*) FILTER (WHERE o.status = 'pending' AND o.available_at = 'infinity') AS held,
       coalesce(max(o.available_at) FILTER (WHERE o.status = 'pending' AND o.available_at < 'infinity'), 'epoch')::timestamptz AS last_due_at
FROM evaluation_outbox o
WHERE o.job_id = @job_id::uuid;

-- name: JobWorks :one
SELECT EXISTS (SELECT FROM evaluation_outbox o WHERE o.job_id = @job_id::uuid AND o.status IN ('pending', 'processing')) AS works;
