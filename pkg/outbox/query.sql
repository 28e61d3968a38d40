-- name: Enqueue :many
-- Work for every key that has neither work nor a result, and whose ticket is stored. Rows go in in key order; the keys
-- inserted come back. OFFSET 0 keeps the planner from joining whole tables instead of looking rows up.
INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, trace_context)
SELECT u.key, u.content_hash, u.ticket_id::uuid, @version_id::text, @route::text, @lane::text, u.trace_context
FROM ROWS FROM (unnest(@keys::text[]), unnest(@content_hashes::bytea[]), unnest(@ticket_ids::text[]), unnest(@trace_contexts::text[]))
     AS u(key, content_hash, ticket_id, trace_context)
WHERE NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = u.key OFFSET 0)
  AND EXISTS (SELECT FROM ticket t WHERE t.id = u.ticket_id::uuid OFFSET 0)
ORDER BY u.key
ON CONFLICT DO NOTHING
RETURNING idempotency_key;

-- name: Follow :many
-- Locks existing work against being finished before this transaction ends, without hindering a claim or a heartbeat.
SELECT idempotency_key, (lane = 'bulk' AND status <> 'dead')::boolean AS bulk, (status = 'dead' AND last_reason = 'erased')::boolean AS erased
FROM evaluation_outbox
WHERE idempotency_key = ANY (@keys::text[])
ORDER BY idempotency_key
FOR KEY SHARE;

-- name: FollowNow :many
-- Follow, which fails where it would have to wait.
SELECT idempotency_key, (lane = 'bulk' AND status <> 'dead')::boolean AS bulk, (status = 'dead' AND last_reason = 'erased')::boolean AS erased
FROM evaluation_outbox
WHERE idempotency_key = ANY (@keys::text[])
ORDER BY idempotency_key
FOR KEY SHARE NOWAIT;

-- name: Rearm :many
-- New demand: for dead work of a class that may succeed today, and, where it is live, for work of the bulk lane, which
-- nobody has waited for so far. That is taken over as it stands, from a job too; the pause after a failure is kept. What
-- was buried because its text was erased, or has lost it since, is another ticket's from now on, which has the text.
WITH wanted AS MATERIALIZED (
  SELECT idempotency_key FROM evaluation_outbox
  WHERE idempotency_key = ANY (@keys::text[])
    AND (status = 'dead' AND (last_class = ANY (@classes::text[]) OR last_reason = 'erased') OR @live::boolean AND lane = 'bulk' AND status <> 'dead')
  ORDER BY idempotency_key
  FOR NO KEY UPDATE
)
UPDATE evaluation_outbox o
SET status = CASE o.status WHEN 'dead' THEN 'pending' ELSE o.status END,
    attempts = CASE o.status WHEN 'dead' THEN 0 ELSE o.attempts END,
    created_at = CASE o.status WHEN 'dead' THEN now() ELSE o.created_at END,
    available_at = CASE WHEN o.status <> 'dead' AND o.attempts > 0 AND o.available_at < 'infinity' THEN o.available_at ELSE now() END,
    lane = CASE WHEN @live::boolean THEN 'live' ELSE o.lane END, job_id = NULL, dead_at = NULL, discarded_at = NULL,
    ticket_id = CASE o.status WHEN 'dead' THEN ticket_with_text(o.ticket_id, o.content_hash) ELSE o.ticket_id END
WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM wanted))
RETURNING o.idempotency_key;

-- name: States :many
-- Lookups, not joins: planned on a queue that is empty, as it is most of the time, a join would read all of it ever after.
SELECT u.key::text AS idempotency_key,
       (CASE WHEN r.idempotency_key IS NOT NULL THEN 'succeeded' ELSE coalesce(o.status, '') END)::text AS state,
       coalesce(o.last_class, '')::text AS last_class, coalesce(o.last_reason, '')::text AS last_reason, o.dead_at
FROM unnest(@keys::text[]) AS u(key)
LEFT JOIN LATERAL (SELECT e.idempotency_key FROM evaluation_result e WHERE e.idempotency_key = u.key OFFSET 0) r ON true
LEFT JOIN LATERAL (SELECT w.status, w.last_class, w.last_reason, w.dead_at FROM evaluation_outbox w WHERE w.idempotency_key = u.key OFFSET 0) o ON true;

-- name: PlanKeys :exec
-- What looks rows up by their keys must not be planned as a scan, on the statistics of a queue that was empty: neither of the
-- table, nor of its index, to have the order of the keys from it. That leaves bitmaps, of the keys alone. What is forbidden and
-- cannot be avoided counts as endlessly costly, and would be compiled.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true);

-- name: PlanWalk :exec
-- What walks an index must not be planned as a sort of the backlog, on stale statistics. What a setting forbids counts as
-- endlessly costly where it cannot be avoided, which would have the statement compiled.
SELECT set_config('jit', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: PlanClaim :exec
-- A claim walks its index, too: a plan that sorts the backlog would stop the queue. And one plan does for all parameters; left
-- alone, a claim would be planned anew each time, which takes longer than to claim one row. So its lookups are written as such,
-- with OFFSET 0: joins would read tables whole that were empty when it was planned.
SELECT set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: Claim :many
-- The lease is the identifier of its call, too, where one is made. A row that somebody changed while it was picked has
-- moved, and is left for the next claim.
WITH picked AS MATERIALIZED (
  SELECT q.ctid::tid AS place
  FROM evaluation_outbox q
  WHERE q.route = @route AND q.lane = @lane AND q.dead_at IS NULL AND q.status = 'pending'
    AND (q.available_at, q.idempotency_key) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_key)::text) AND q.available_at <= now()
  ORDER BY q.available_at, q.idempotency_key
  LIMIT @most
  FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
  UPDATE evaluation_outbox o
  SET status = 'processing', attempts = o.attempts + 1, lease_id = uuid_v7(),
      locked_by = @worker::text, locked_until = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
  WHERE o.ctid = ANY (ARRAY(SELECT place FROM picked))
  RETURNING o.idempotency_key, o.content_hash, o.ticket_id, o.version_id, o.attempts, o.unknown_calls,
            o.available_at, o.lease_id, o.ctid::tid AS place, o.trace_context, o.created_at, o.job_id
), listed AS (
  INSERT INTO evaluation_claim (id, route, worker, keys, size, check_at)
  SELECT @claim::uuid, @route, @worker::text, array_agg(idempotency_key), count(*), clock_timestamp() + make_interval(secs => @check_seconds::float8)
  FROM claimed
  HAVING count(*) > 0
), unjudged AS MATERIALIZED ( -- once for the batch: the ledger has a partition for every month
  SELECT m.idempotency_key, m.id, m.response, m.reason
  FROM model_call m
  WHERE (SELECT EXISTS (SELECT FROM model_call u WHERE u.unjudged AND u.recalled_by IS NULL)) -- mostly there is none at all
    AND m.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM claimed))
    AND m.unjudged AND m.recalled_by IS NULL
), known AS (
  SELECT c.*, r.answered, s.id AS saved_call_id, s.response AS saved_response, s.reason AS saved_reason,
         CASE WHEN NOT r.answered AND s.id IS NULL THEN c.lease_id END AS call_id
  FROM claimed c
  CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM evaluation_result e WHERE e.idempotency_key = c.idempotency_key OFFSET 0) AS answered OFFSET 0) r
  LEFT JOIN LATERAL (SELECT u.id, u.response, u.reason FROM unjudged u WHERE u.idempotency_key = c.idempotency_key LIMIT 1) s ON true
), opened AS (
  INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, job_id)
  SELECT call_id, idempotency_key, version_id, lease_id, attempts, job_id
  FROM known
  WHERE call_id IS NOT NULL
)
SELECT k.idempotency_key, k.content_hash, k.ticket_id, k.version_id, k.attempts, k.unknown_calls, k.available_at,
       k.lease_id::uuid AS lease_id, k.place::tid AS place, k.trace_context, extract(epoch FROM now() - k.created_at)::float8 AS age_seconds,
       k.answered::boolean AS answered, coalesce(k.saved_call_id, '00000000-0000-0000-0000-000000000000')::uuid AS saved_call_id, k.saved_response, coalesce(k.saved_reason, '')::text AS saved_reason,
       coalesce(k.call_id, '00000000-0000-0000-0000-000000000000')::uuid AS call_id, t.subject, t.message
FROM known k
CROSS JOIN LATERAL (SELECT i.subject, i.message FROM ticket i WHERE i.id = k.ticket_id OFFSET 0) t;

-- name: ClaimWithin :many
-- Claim for a route with limits or a budget: as many of the oldest rows as have room. What a call takes at the most is
-- known from its size: a quarter of a token for each byte, times what the route's calls took of such estimates; and, at
-- the worst, the price of a token for each byte, written to a cache, and of all the output there may be. The first row
-- without room is told of in every row, or in one that claims nothing. A lease begins now, and not with the transaction, which may
-- have waited for the route.
WITH picked AS MATERIALIZED (
  SELECT q.idempotency_key, q.available_at, q.ticket_id, q.version_id
  FROM evaluation_outbox q
  WHERE q.route = @route AND q.lane = @lane AND q.dead_at IS NULL AND q.status = 'pending'
    AND (q.available_at, q.idempotency_key) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_key)::text) AND q.available_at <= now()
  ORDER BY q.available_at, q.idempotency_key
  LIMIT @most
  FOR NO KEY UPDATE SKIP LOCKED
), version AS MATERIALIZED (
  SELECT v.id, octet_length(v.prompt) + 2 * octet_length(v.departments::text) + @fixed_bytes::int AS bytes,
         0.000001 * greatest(1.25 * v.input_usd_per_mtok, v.cached_input_usd_per_mtok) AS input_usd,
         0.000001 * v.max_output_tokens * v.output_usd_per_mtok AS output_usd
  FROM evaluator_version v
  WHERE v.id IN (SELECT version_id FROM picked)
), sized AS MATERIALIZED (
  SELECT p.idempotency_key, p.available_at,
         CASE WHEN c.needed THEN b.bytes / 4.0 ELSE 0 END AS tokens,
         CASE WHEN c.needed THEN b.bytes * v.input_usd + v.output_usd ELSE 0 END AS usd,
         count(*) FILTER (WHERE c.needed) OVER oldest AS calls,
         sum(CASE WHEN c.needed THEN b.bytes / 4.0 ELSE 0 END) OVER oldest AS all_tokens,
         sum(CASE WHEN c.needed THEN b.bytes * v.input_usd + v.output_usd ELSE 0 END) OVER oldest AS all_usd
  FROM picked p
  JOIN version v ON v.id = p.version_id
  JOIN ticket t ON t.id = p.ticket_id
  CROSS JOIN LATERAL (SELECT v.bytes + octet_length(t.subject) + octet_length(t.message) AS bytes) b
  CROSS JOIN LATERAL (
    SELECT NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = p.idempotency_key OFFSET 0)
       AND NOT EXISTS (SELECT FROM model_call m
                       WHERE m.idempotency_key = p.idempotency_key AND m.unjudged AND m.recalled_by IS NULL) AS needed
  ) c
  WINDOW oldest AS (ORDER BY p.available_at, p.idempotency_key)
), judged AS MATERIALIZED (
  SELECT s.idempotency_key, s.available_at, s.tokens, s.usd,
         (s.all_tokens * @token_ratio::float8 <= @tokens::float8 OR @tokens_full::boolean AND s.calls <= 1)
           AND (sqlc.narg(budget)::numeric IS NULL OR s.all_usd <= sqlc.narg(budget)::numeric) AS fits
  FROM sized s
), claimed AS (
  UPDATE evaluation_outbox o
  SET status = 'processing', attempts = o.attempts + 1, lease_id = uuid_v7(),
      locked_by = @worker::text, locked_until = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
  FROM judged j
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM judged WHERE fits)) AND o.idempotency_key = j.idempotency_key
  RETURNING o.idempotency_key, o.content_hash, o.ticket_id, o.version_id, o.attempts, o.unknown_calls,
            o.available_at, o.lease_id, o.trace_context, o.created_at, o.job_id, j.tokens, j.usd
), listed AS (
  INSERT INTO evaluation_claim (id, route, worker, keys, size, check_at)
  SELECT @claim::uuid, @route, @worker::text, array_agg(idempotency_key), count(*), clock_timestamp() + make_interval(secs => @check_seconds::float8)
  FROM claimed
  HAVING count(*) > 0
), known AS (
  SELECT c.*, r.answered, s.id AS saved_call_id, s.response AS saved_response, s.reason AS saved_reason,
         CASE WHEN NOT r.answered AND s.id IS NULL THEN c.lease_id END AS call_id
  FROM claimed c
  CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM evaluation_result e WHERE e.idempotency_key = c.idempotency_key OFFSET 0) AS answered OFFSET 0) r
  LEFT JOIN LATERAL (
    SELECT m.id, m.response, m.reason FROM model_call m
    WHERE m.idempotency_key = c.idempotency_key AND m.unjudged AND m.recalled_by IS NULL LIMIT 1
  ) s ON true
), opened AS (
  INSERT INTO model_call (id, idempotency_key, version_id, lease_id, attempt, job_id, charged_usd)
  SELECT call_id, idempotency_key, version_id, lease_id, attempts, job_id, CASE WHEN sqlc.narg(budget)::numeric IS NOT NULL THEN usd END
  FROM known
  WHERE call_id IS NOT NULL
), short AS MATERIALIZED (
  SELECT j.tokens, j.usd FROM judged j WHERE NOT j.fits ORDER BY j.available_at, j.idempotency_key LIMIT 1
)
SELECT (k.idempotency_key IS NOT NULL)::boolean AS claimed, coalesce(h.tokens, 0)::float8 AS short_tokens, coalesce(h.usd, 0)::numeric AS short_usd,
       coalesce(k.tokens, 0)::float8 AS tokens, coalesce(k.usd, 0)::numeric AS usd,
       coalesce(k.idempotency_key, '')::text AS idempotency_key, coalesce(k.content_hash, '')::bytea AS content_hash,
       coalesce(k.ticket_id, '00000000-0000-0000-0000-000000000000')::uuid AS ticket_id, coalesce(k.version_id, '')::text AS version_id,
       coalesce(k.attempts, 0)::int AS attempts, coalesce(k.unknown_calls, 0)::int AS unknown_calls, coalesce(k.available_at, 'epoch')::timestamptz AS available_at,
       coalesce(k.lease_id, '00000000-0000-0000-0000-000000000000')::uuid AS lease_id, coalesce(k.trace_context, '')::text AS trace_context,
       coalesce(extract(epoch FROM now() - k.created_at), 0)::float8 AS age_seconds,
       coalesce(k.answered, false)::boolean AS answered, coalesce(k.saved_call_id, '00000000-0000-0000-0000-000000000000')::uuid AS saved_call_id, k.saved_response, coalesce(k.saved_reason, '')::text AS saved_reason,
       coalesce(k.call_id, '00000000-0000-0000-0000-000000000000')::uuid AS call_id, coalesce(t.subject, '')::text AS subject, coalesce(t.message, '')::text AS message
FROM (VALUES (true)) one (row)
LEFT JOIN short h ON true
LEFT JOIN known k ON true
LEFT JOIN ticket t ON t.id = k.ticket_id;

-- name: Extend :many
-- The heartbeat: one statement for all leases of a worker. A row that is locked is being settled; it is passed
-- over and not waited for. The leases that are lost come back.
WITH held AS MATERIALIZED (
  SELECT q.idempotency_key FROM evaluation_outbox q
  WHERE q.idempotency_key = ANY (@keys::text[]) AND q.status = 'processing' AND q.locked_by = @worker::text
  FOR NO KEY UPDATE SKIP LOCKED
), extended AS (
  UPDATE evaluation_outbox o
  SET locked_until = now() + make_interval(secs => @lease_seconds::float8)
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM held))
), alive AS MATERIALIZED (
  SELECT q.lease_id FROM evaluation_outbox q
  WHERE q.idempotency_key = ANY (@keys::text[]) AND q.status = 'processing' AND q.locked_by = @worker::text
)
SELECT u.lease::uuid AS lease
FROM unnest(@leases::uuid[]) AS u(lease)
WHERE u.lease NOT IN (SELECT lease_id FROM alive);

-- name: Leased :many
-- What a worker holds as far as the tables know, with the calls that it may make.
SELECT o.idempotency_key, o.lease_id::uuid AS lease_id, o.ctid::tid AS place, o.route,
       coalesce(m.id, '00000000-0000-0000-0000-000000000000')::uuid AS call_id
FROM evaluation_outbox o
LEFT JOIN model_call m ON m.id = o.lease_id AND m.outcome = 'open'
WHERE o.idempotency_key = ANY (ARRAY(SELECT unnest(c.keys) FROM evaluation_claim c WHERE c.worker = @worker::text))
  AND o.locked_by = @worker::text AND o.status = 'processing'
ORDER BY o.idempotency_key;

-- name: EndClaims :exec
-- What is looked at right now is ended by who looks.
DELETE FROM evaluation_claim c
WHERE c.id = ANY (ARRAY(SELECT e.id FROM evaluation_claim e WHERE e.id = ANY (@claims::uuid[]) FOR UPDATE SKIP LOCKED));

-- name: FinishPlaced :many
-- Finish, for work that is still where its claim has put it, which needs no index to be found: a place at which another
-- row is by now is passed over. The keys deleted come back.
WITH locked AS MATERIALIZED (
  SELECT o.ctid::tid AS place, o.idempotency_key, o.lease_id
  FROM evaluation_outbox o
  WHERE o.ctid = ANY (@places::tid[]) AND o.status = 'processing'
  ORDER BY o.idempotency_key
  FOR UPDATE
), owned AS MATERIALIZED (
  SELECT l.place
  FROM locked l
  JOIN ROWS FROM (unnest(@keys::text[]), unnest(@leases::uuid[])) AS u(key, lease) ON u.key = l.idempotency_key
  WHERE l.lease_id = u.lease
)
DELETE FROM evaluation_outbox o
WHERE o.ctid = ANY (ARRAY(SELECT place FROM owned))
RETURNING o.idempotency_key;

-- name: Finish :many
-- Deletes finished work: what the lease still holds, and what nobody holds. What another worker holds now stays;
-- that worker, or the next claim, finds the result. It is locked all the same, so that a burial by that worker
-- comes before this transaction, or sees its result. The keys that are owned come back. What has moved while its lock was
-- waited for is not deleted yet: this statement does not see its new place.
WITH locked AS MATERIALIZED (
  SELECT o.ctid::tid AS place, o.idempotency_key, o.lease_id -- as they are once the lock is had
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (@keys::text[])
  ORDER BY o.idempotency_key
  FOR UPDATE
), owned AS MATERIALIZED (
  SELECT l.place, l.idempotency_key
  FROM locked l
  JOIN ROWS FROM (unnest(@keys::text[]), unnest(@leases::uuid[])) AS u(key, lease) ON u.key = l.idempotency_key
  WHERE l.lease_id = u.lease OR l.lease_id IS NULL
), deleted AS (
  DELETE FROM evaluation_outbox o
  WHERE o.ctid = ANY (ARRAY(SELECT place FROM owned))
  RETURNING o.idempotency_key
)
SELECT w.idempotency_key, (w.idempotency_key IN (SELECT d.idempotency_key FROM deleted d))::boolean AS deleted
FROM owned w;

-- name: FinishMoved :exec
-- What Finish has locked and not found again.
DELETE FROM evaluation_outbox WHERE idempotency_key = ANY (@keys::text[]);

-- name: Retry :many
-- Back to pending. A refund takes the attempt back; unknown counts a call of unknown outcome.
WITH owned AS MATERIALIZED (
  SELECT o.idempotency_key, u.delay_seconds, u.refund, u.unknown, u.class, u.reason, u.error
  FROM evaluation_outbox o
  JOIN ROWS FROM (unnest(@keys::text[]), unnest(@leases::uuid[]), unnest(@delay_seconds::float8[]), unnest(@refunds::boolean[]),
                  unnest(@unknowns::boolean[]), unnest(@classes::text[]), unnest(@reasons::text[]), unnest(@errors::text[]))
       AS u(key, lease, delay_seconds, refund, unknown, class, reason, error) ON u.key = o.idempotency_key
  WHERE o.idempotency_key = ANY (@keys::text[]) AND o.lease_id = u.lease
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE OF o
)
UPDATE evaluation_outbox o
SET status = 'pending', lease_id = NULL, locked_by = NULL, locked_until = NULL,
    available_at = now() + make_interval(secs => w.delay_seconds),
    attempts = o.attempts - w.refund::int, unknown_calls = o.unknown_calls + w.unknown::int,
    last_class = w.class, last_reason = w.reason, last_error = w.error
FROM owned w
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.idempotency_key = w.idempotency_key
RETURNING o.idempotency_key;

-- name: LockForBurial :exec
-- Before Bury and apart from it, which so sees the results of those who held the locks before.
SELECT FROM evaluation_outbox
WHERE idempotency_key = ANY (@keys::text[])
ORDER BY idempotency_key
FOR UPDATE;

-- name: Bury :many
-- To the dead letters. A permanent verdict buries what nobody holds, too: one on a response that came after the
-- lease was lost is as final as any, and the next call would pay for the same. Unless an operator has asked for just
-- that, and recalled the call since. Work whose result is here, from a response that came late, is finished instead.
WITH owned AS MATERIALIZED (
  SELECT o.idempotency_key, u.unknown, u.class, u.reason, u.error,
         EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key) AS answered
  FROM evaluation_outbox o
  JOIN ROWS FROM (unnest(@keys::text[]), unnest(@leases::uuid[]), unnest(@unknowns::boolean[]), unnest(@classes::text[]),
                  unnest(@reasons::text[]), unnest(@errors::text[]))
       AS u(key, lease, unknown, class, reason, error) ON u.key = o.idempotency_key
  WHERE o.idempotency_key = ANY (@keys::text[])
    AND (o.lease_id = u.lease
         OR o.status = 'pending' AND u.class = 'permanent'
            AND NOT EXISTS (SELECT FROM model_call m
                            WHERE m.idempotency_key = o.idempotency_key AND m.lease_id = u.lease AND m.recalled_by IS NOT NULL))
), finished AS (
  DELETE FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM owned WHERE answered))
)
UPDATE evaluation_outbox o
SET status = 'dead', dead_at = now(), lease_id = NULL, locked_by = NULL, locked_until = NULL,
    unknown_calls = o.unknown_calls + w.unknown::int,
    last_class = w.class, last_reason = w.reason, last_error = w.error
FROM owned w
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.idempotency_key = w.idempotency_key AND NOT w.answered
RETURNING o.idempotency_key;

-- name: Release :many
-- Gives back what never started: as if it had not been claimed.
WITH owned AS MATERIALIZED (
  SELECT o.idempotency_key
  FROM evaluation_outbox o
  JOIN ROWS FROM (unnest(@keys::text[]), unnest(@leases::uuid[])) AS u(key, lease) ON u.key = o.idempotency_key
  WHERE o.idempotency_key = ANY (@keys::text[]) AND o.lease_id = u.lease
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE OF o
), closed AS (
  UPDATE model_call m SET outcome = 'unsent', finished_at = now()
  WHERE m.id = ANY (@leases::uuid[]) AND m.outcome = 'open'
    AND m.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM owned))
)
UPDATE evaluation_outbox o
SET status = 'pending', lease_id = NULL, locked_by = NULL, locked_until = NULL, attempts = o.attempts - 1
WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM owned))
RETURNING o.idempotency_key;

-- name: Reclaim :one
-- Takes back expired leases, of the claims that are to be looked at by now. An open call of such a lease may have been sent
-- and paid: it is closed as unknown and counted, and its work is sent again only as its version allows. A row whose answer is
-- already here, or whose call was never opened, goes back with its attempt refunded. Claims of which nothing is leased any
-- longer end; the others are looked at again when the next of their leases may be over, and not much later than that. A row
-- that somebody is at is not waited for.
WITH chosen AS MATERIALIZED (
  SELECT x.id FROM (
    SELECT c.id, sum(c.size) OVER (ORDER BY c.check_at, c.id) - c.size AS before FROM evaluation_claim c WHERE c.check_at <= now()
  ) x
  WHERE x.before < @most::bigint
), due AS MATERIALIZED (
  SELECT c.id, c.keys FROM evaluation_claim c
  WHERE c.id = ANY (ARRAY(SELECT id FROM chosen)) AND c.check_at <= now()
  ORDER BY c.id
  FOR UPDATE SKIP LOCKED
), leased AS MATERIALIZED (
  SELECT o.idempotency_key, o.locked_until FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT unnest(d.keys) FROM due d)) AND o.status = 'processing'
), expired AS MATERIALIZED (
  SELECT o.idempotency_key, o.lease_id, o.version_id, o.attempts, o.unknown_calls
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT l.idempotency_key FROM leased l WHERE l.locked_until < now()))
    AND o.status = 'processing' AND o.locked_until < now()
  FOR NO KEY UPDATE SKIP LOCKED
), lost AS (
  UPDATE model_call m
  SET outcome = 'unknown', class = 'unknown', reason = 'lease_expired', finished_at = now()
  WHERE m.outcome = 'open' AND m.id = ANY (ARRAY(SELECT lease_id FROM expired))
  RETURNING m.lease_id
), judged AS (
  SELECT e.idempotency_key, e.lost,
         e.lost
           AND (v.unknown_policy = 'hold' OR e.unknown_calls + 1 > v.max_unknown_calls OR e.attempts >= v.max_attempts)
           AND v.unknown_policy <> 'recover' -- which is asked about first, and buried by who has asked in vain
           AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = e.idempotency_key)
           AND NOT EXISTS (SELECT FROM model_call m WHERE m.idempotency_key = e.idempotency_key
                             AND m.unjudged AND m.recalled_by IS NULL) AS dead
  FROM (SELECT x.*, x.lease_id IN (SELECT lease_id FROM lost) AS lost FROM expired x) e
  JOIN evaluator_version v ON v.id = e.version_id
), reclaimed AS (
  UPDATE evaluation_outbox o
  SET status = CASE WHEN j.dead THEN 'dead' ELSE 'pending' END,
      dead_at = CASE WHEN j.dead THEN now() END,
      lease_id = NULL, locked_by = NULL, locked_until = NULL,
      available_at = now(),
      attempts = o.attempts - (NOT j.lost)::int,
      unknown_calls = o.unknown_calls + j.lost::int,
      last_class = CASE WHEN j.dead OR j.lost THEN 'unknown' ELSE o.last_class END,
      last_reason = CASE WHEN j.dead THEN 'unknown_outcome' WHEN j.lost THEN 'lease_expired' ELSE o.last_reason END,
      last_error = CASE WHEN j.lost THEN NULL ELSE o.last_error END
  FROM judged j
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM judged)) AND o.idempotency_key = j.idempotency_key
  RETURNING o.idempotency_key, j.lost, j.dead
), left_over AS MATERIALIZED (
  SELECT k.id, min(l.locked_until) AS until
  FROM (SELECT d.id, unnest(d.keys) AS key FROM due d) k
  JOIN leased l ON l.idempotency_key = k.key
  WHERE l.idempotency_key NOT IN (SELECT idempotency_key FROM expired)
  GROUP BY k.id
), kept AS (
  UPDATE evaluation_claim c
  SET check_at = now() + least(make_interval(secs => @check_seconds::float8), greatest(l.until - now(), interval '500 milliseconds'))
  FROM left_over l
  WHERE c.id = l.id
), ended AS (
  DELETE FROM evaluation_claim c
  WHERE c.id = ANY (ARRAY(SELECT d.id FROM due d WHERE d.id NOT IN (SELECT id FROM left_over)))
)
SELECT (SELECT count(*) FROM due)::bigint AS claims,
       (SELECT count(*) FROM reclaimed WHERE NOT dead)::bigint AS pending,
       (SELECT count(*) FROM reclaimed WHERE lost)::bigint AS unknown,
       ARRAY(SELECT idempotency_key FROM reclaimed WHERE dead)::text[] AS dead;

-- name: LookAtClaims :exec
-- Has all claims be looked at now.
UPDATE evaluation_claim c SET check_at = now()
WHERE c.id = ANY (ARRAY(SELECT e.id FROM evaluation_claim e WHERE e.check_at > now() FOR NO KEY UPDATE SKIP LOCKED));

-- name: ListLost :exec
-- Makes claims of the leases that are over and in no claim: those of a release that did not list them. It reads all work.
INSERT INTO evaluation_claim (id, route, worker, keys, size, check_at)
SELECT uuid_v7(), l.route, l.locked_by, array_agg(l.idempotency_key), count(*), now()
FROM (
  SELECT o.route, o.locked_by, o.idempotency_key, row_number() OVER (PARTITION BY o.route, o.locked_by) / @most::bigint AS part
  FROM evaluation_outbox o
  WHERE o.status = 'processing' AND o.locked_until < now()
    AND o.idempotency_key NOT IN (SELECT unnest(c.keys) FROM evaluation_claim c)
) l
GROUP BY l.route, l.locked_by, l.part;

-- name: RefundTrip :many
-- The failures that opened a route's breaker were the route's, and cost its work nothing: each attempt whose last call
-- failed since the first of them is given back, also to work that was buried for it. What was put back since then is
-- due since then, which bounds the look through the claim's index.
WITH trip AS MATERIALIZED (
  SELECT r.failing_since FROM provider_route r WHERE r.name = @route
), failing AS MATERIALIZED (
  SELECT q.idempotency_key
  FROM evaluation_outbox q
  WHERE q.route = @route AND q.lane IN ('live', 'bulk') AND q.dead_at IS NULL AND q.status = 'pending' AND q.attempts > 0
    AND q.available_at >= (SELECT failing_since FROM trip)
  UNION ALL
  SELECT q.idempotency_key
  FROM evaluation_outbox q
  WHERE q.dead_at IS NOT NULL AND q.last_class = 'transient' AND q.last_reason IN ('attempts_spent', 'too_old') AND q.attempts > 0
    AND q.discarded_at IS NULL
    AND q.version_id = ANY (ARRAY(SELECT v.id FROM evaluator_version v WHERE v.route = @route))
    AND q.dead_at >= (SELECT failing_since FROM trip)
), owned AS MATERIALIZED (
  SELECT o.idempotency_key, o.attempts
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM failing)) AND o.status IN ('pending', 'dead')
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE
), spent AS MATERIALIZED (
  SELECT o.idempotency_key, (
    SELECT count(*)::int
    FROM (
      SELECT DISTINCT ON (m.attempt) m.outcome, m.class, m.finished_at
      FROM model_call m
      WHERE m.idempotency_key = o.idempotency_key AND m.attempt <= o.attempts AND m.recalled_by IS NULL
      ORDER BY m.attempt, m.id DESC
    ) last
    WHERE last.outcome = 'failed' AND last.class = 'transient' AND last.finished_at >= (SELECT failing_since FROM trip)
  ) AS attempts
  FROM owned o
)
UPDATE evaluation_outbox o
SET attempts = o.attempts - s.attempts, status = 'pending', dead_at = NULL,
    available_at = CASE o.status WHEN 'dead' THEN now() ELSE o.available_at END
FROM spent s
WHERE o.idempotency_key = s.idempotency_key AND s.attempts > 0
RETURNING o.idempotency_key;
