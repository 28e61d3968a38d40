-- The dead letters: what operators see of them and do about them. Filters that are empty select all.

-- name: GroupDead :many
SELECT o.last_class::text AS class, o.last_reason::text AS reason, o.version_id, count(*) AS count,
       min(o.dead_at)::timestamptz AS first_dead_at, max(o.dead_at)::timestamptz AS last_dead_at
FROM evaluation_outbox o
WHERE o.dead_at IS NOT NULL AND (@discarded::boolean OR o.discarded_at IS NULL)
  AND (@class::text = '' OR o.last_class = @class) AND (@reason::text = '' OR o.last_reason = @reason)
  AND (@version::text = '' OR o.version_id = @version) AND (@route::text = '' OR o.route = @route) AND (@owner::text = '' OR o.owner = @owner)
  AND (@client::text = '' OR EXISTS (SELECT FROM ticket t WHERE t.content_hash = o.content_hash AND t.client_id = @client))
  AND (sqlc.narg('dead_from')::timestamptz IS NULL OR o.dead_at >= sqlc.narg('dead_from')::timestamptz)
  AND (sqlc.narg('dead_to')::timestamptz IS NULL OR o.dead_at < sqlc.narg('dead_to')::timestamptz)
GROUP BY 1, 2, 3
ORDER BY 4 DESC, 1, 2, 3;

-- name: ListDead :many
SELECT o.idempotency_key, o.ticket_id, o.version_id, o.route, o.lane, o.last_class::text AS class, o.last_reason::text AS reason,
       coalesce(o.last_error, '')::text AS detail, o.attempts, o.unknown_calls, o.created_at, o.dead_at::timestamptz AS dead_at, o.owner, o.note, o.discarded_at,
       EXISTS (SELECT FROM model_call m WHERE m.idempotency_key = o.idempotency_key AND m.outcome IN ('saved', 'rejected')
                 AND m.response IS NOT NULL AND m.recalled_by IS NULL)::boolean AS has_response
FROM evaluation_outbox o
WHERE o.dead_at IS NOT NULL AND (@discarded::boolean OR o.discarded_at IS NULL)
  AND (o.dead_at, o.idempotency_key) < (@before_dead_at::timestamptz, @before_key::text)
  AND (@class::text = '' OR o.last_class = @class) AND (@reason::text = '' OR o.last_reason = @reason)
  AND (@version::text = '' OR o.version_id = @version) AND (@route::text = '' OR o.route = @route) AND (@owner::text = '' OR o.owner = @owner)
  AND (@client::text = '' OR EXISTS (SELECT FROM ticket t WHERE t.content_hash = o.content_hash AND t.client_id = @client))
  AND (sqlc.narg('dead_from')::timestamptz IS NULL OR o.dead_at >= sqlc.narg('dead_from')::timestamptz)
  AND (sqlc.narg('dead_to')::timestamptz IS NULL OR o.dead_at < sqlc.narg('dead_to')::timestamptz)
ORDER BY o.dead_at DESC, o.idempotency_key DESC
LIMIT @most;

-- name: GetDead :many
SELECT o.idempotency_key, o.ticket_id, o.version_id, o.route, o.lane, o.last_class::text AS class, o.last_reason::text AS reason,
       coalesce(o.last_error, '')::text AS detail, o.attempts, o.unknown_calls, o.created_at, o.dead_at::timestamptz AS dead_at, o.owner, o.note, o.discarded_at,
       EXISTS (SELECT FROM model_call m WHERE m.idempotency_key = o.idempotency_key AND m.outcome IN ('saved', 'rejected')
                 AND m.response IS NOT NULL AND m.recalled_by IS NULL)::boolean AS has_response
FROM evaluation_outbox o
WHERE o.idempotency_key = @key AND o.status = 'dead';

-- name: DeadKeyOf :many
-- The dead letter of a ticket's content that died last, under whatever version: each key is looked up by itself.
SELECT o.idempotency_key
FROM ticket t
CROSS JOIN evaluator_version v
CROSS JOIN LATERAL (SELECT evaluation_key(t.content_hash, v.digest) AS idempotency_key LIMIT 1) k
JOIN evaluation_outbox o ON o.idempotency_key = k.idempotency_key AND o.status = 'dead'
WHERE t.id = @ticket_id
ORDER BY o.dead_at DESC
LIMIT 1;

-- name: ServedTickets :many
-- The newest tickets of a key's content, with the number of all as far as it is counted.
SELECT t.id,
       (SELECT count(*) FROM (SELECT FROM ticket c WHERE c.content_hash = o.content_hash LIMIT @count_most) counted)::bigint AS count
FROM evaluation_outbox o
JOIN ticket t ON t.content_hash = o.content_hash
WHERE o.idempotency_key = @key
ORDER BY t.id DESC
LIMIT @most;

-- name: LockDead :many
SELECT idempotency_key, dead_at::timestamptz AS dead_at, discarded_at, owner, note
FROM evaluation_outbox
WHERE idempotency_key = ANY (@keys::text[]) AND status = 'dead'
ORDER BY idempotency_key
FOR NO KEY UPDATE;

-- name: WithoutText :many
-- Those of locked dead letters whose text is erased, in all their tickets: there is nothing to send.
SELECT o.idempotency_key
FROM evaluation_outbox o
WHERE o.idempotency_key = ANY (@keys::text[]) AND ticket_with_text(o.ticket_id, o.content_hash) IS NULL;

-- name: AssignDead :exec
UPDATE evaluation_outbox SET owner = @owner, note = @note WHERE idempotency_key = @key AND status = 'dead';

-- name: DiscardDead :execrows
UPDATE evaluation_outbox SET discarded_at = now()
WHERE idempotency_key = ANY (@keys::text[]) AND status = 'dead' AND discarded_at IS NULL;

-- name: DiscardFiltered :execrows
WITH unwanted AS MATERIALIZED (
  SELECT o.idempotency_key
  FROM evaluation_outbox o
  WHERE o.dead_at IS NOT NULL AND o.discarded_at IS NULL
    AND (@class::text = '' OR o.last_class = @class) AND (@reason::text = '' OR o.last_reason = @reason)
    AND (@version::text = '' OR o.version_id = @version) AND (@route::text = '' OR o.route = @route) AND (@owner::text = '' OR o.owner = @owner)
    AND (@client::text = '' OR EXISTS (SELECT FROM ticket t WHERE t.content_hash = o.content_hash AND t.client_id = @client))
    AND (sqlc.narg('dead_from')::timestamptz IS NULL OR o.dead_at >= sqlc.narg('dead_from')::timestamptz)
    AND (sqlc.narg('dead_to')::timestamptz IS NULL OR o.dead_at < sqlc.narg('dead_to')::timestamptz)
  ORDER BY o.idempotency_key
  FOR NO KEY UPDATE OF o
)
UPDATE evaluation_outbox o SET discarded_at = now()
WHERE o.idempotency_key = ANY (ARRAY(SELECT idempotency_key FROM unwanted)) AND o.status = 'dead';

-- name: SelectDead :execrows
-- What a replay is made for: what was dead before now, the oldest first. Work that dies in a transaction that began
-- later is another dead letter.
INSERT INTO replay_selection (id, idempotency_key, dead_at)
SELECT @selection::uuid, o.idempotency_key, o.dead_at
FROM evaluation_outbox o
WHERE o.dead_at < now() AND (@discarded::boolean OR o.discarded_at IS NULL)
  AND (sqlc.narg('keys')::text[] IS NULL OR o.idempotency_key = ANY (sqlc.narg('keys')::text[]))
  AND (@class::text = '' OR o.last_class = @class) AND (@reason::text = '' OR o.last_reason = @reason)
  AND (@version::text = '' OR o.version_id = @version) AND (@route::text = '' OR o.route = @route) AND (@owner::text = '' OR o.owner = @owner)
  AND (@client::text = '' OR EXISTS (SELECT FROM ticket t WHERE t.content_hash = o.content_hash AND t.client_id = @client))
  AND (sqlc.narg('dead_from')::timestamptz IS NULL OR o.dead_at >= sqlc.narg('dead_from')::timestamptz)
  AND (sqlc.narg('dead_to')::timestamptz IS NULL OR o.dead_at < sqlc.narg('dead_to')::timestamptz)
ORDER BY o.dead_at, o.idempotency_key
LIMIT sqlc.narg('most')::bigint;

-- name: Selected :many
-- A selection by version, with how much of it has a response that can be judged again.
SELECT o.version_id, count(*) AS selected,
       count(*) FILTER (WHERE EXISTS (
         SELECT FROM model_call m WHERE m.idempotency_key = o.idempotency_key AND m.outcome IN ('saved', 'rejected')
           AND m.response IS NOT NULL AND m.recalled_by IS NULL)) AS with_response
FROM replay_selection s
JOIN evaluation_outbox o ON o.idempotency_key = s.idempotency_key
WHERE s.id = @selection
GROUP BY o.version_id
ORDER BY o.version_id;

-- name: SelectedCosts :many
-- What responses to some of a selection have cost on average, be they answers or not.
SELECT m.version_id, avg(m.cost_usd)::numeric AS usd
FROM (SELECT q.idempotency_key FROM replay_selection q WHERE q.id = @selection LIMIT @most) s
JOIN model_call m ON m.idempotency_key = s.idempotency_key
WHERE m.cost_usd IS NOT NULL AND m.outcome IN ('answered', 'rejected', 'saved')
GROUP BY m.version_id;

-- name: TakeSelected :many
-- From behind the last key that was taken: what was taken before is still in the index.
DELETE FROM replay_selection s
WHERE s.id = @selection AND s.idempotency_key = ANY (ARRAY(
  SELECT q.idempotency_key FROM replay_selection q WHERE q.id = @selection AND q.idempotency_key > @after::text ORDER BY q.idempotency_key LIMIT @most))
RETURNING s.idempotency_key, s.dead_at;

-- name: AnyAnswered :many
SELECT idempotency_key FROM evaluation_result WHERE idempotency_key = ANY (@keys::text[]);

-- name: DropSelection :exec
DELETE FROM replay_selection WHERE id = @selection;

-- name: Revive :one
-- Dead letters become the work of a replay, due one after the other. Its lane is the bulk one, as nobody waits for it; a
-- new identical ticket takes it over. What a recall begins has no unknown calls yet.
WITH placed AS MATERIALIZED (
  SELECT u.key, greatest(@next_at::timestamptz, now()) + make_interval(secs => (@step_seconds::float8) * (u.n - 1)) AS at
  FROM unnest(@keys::text[]) WITH ORDINALITY AS u(key, n)
), revived AS (
  UPDATE evaluation_outbox o
  SET status = 'pending', lane = 'bulk', job_id = @job::uuid, attempts = 0, unknown_calls = CASE WHEN @recalled::boolean THEN 0 ELSE o.unknown_calls END,
      available_at = p.at, created_at = now(), dead_at = NULL, discarded_at = NULL,
      ticket_id = ticket_with_text(o.ticket_id, o.content_hash)
  FROM placed p
  WHERE o.idempotency_key = p.key AND o.status = 'dead'
  RETURNING o.idempotency_key
)
SELECT (SELECT count(*) FROM revived)::bigint AS revived,
       (SELECT max(p.at) + make_interval(secs => (@step_seconds::float8)) FROM placed p)::timestamptz AS next_at,
       (SELECT extract(epoch FROM max(p.at) - now()) + (@step_seconds::float8) FROM placed p)::float8 AS wait_seconds;

-- name: LaneLoads :many
-- What waits and runs. Counting of what waits stops at most rows; each is a walk of that length at most along the claim's index.
SELECT r.route::text AS route, l.lane::text AS lane,
       (SELECT count(*) FROM (SELECT FROM evaluation_outbox o WHERE o.route = r.route AND o.lane = l.lane AND o.dead_at IS NULL AND o.status = 'pending'
                                AND o.available_at <= now() LIMIT @most) w)::bigint AS ready,
       (SELECT count(*) FROM (SELECT FROM evaluation_outbox o WHERE o.route = r.route AND o.lane = l.lane AND o.dead_at IS NULL AND o.status = 'pending'
                                AND o.available_at > now() LIMIT @most) w)::bigint AS scheduled,
       (SELECT count(*) FROM evaluation_outbox o
        WHERE o.idempotency_key = ANY (ARRAY(SELECT unnest(c.keys) FROM evaluation_claim c WHERE c.route = r.route))
          AND o.lane = l.lane AND o.status = 'processing')::bigint AS running,
       coalesce((SELECT extract(epoch FROM now() - o.available_at) FROM evaluation_outbox o
                 WHERE o.route = r.route AND o.lane = l.lane AND o.dead_at IS NULL AND o.status = 'pending' AND o.available_at <= now()
                 ORDER BY o.available_at, o.idempotency_key LIMIT 1), -1)::float8 AS oldest_seconds
FROM unnest(@routes::text[]) AS r(route)
CROSS JOIN unnest(ARRAY['live', 'bulk']) AS l(lane);

-- name: DeadLoads :many
SELECT d.route, d.lane, count(*) AS count, (sum(count(*)) OVER ())::bigint AS counted
FROM (SELECT o.route, o.lane FROM evaluation_outbox o WHERE o.dead_at IS NOT NULL AND o.discarded_at IS NULL LIMIT @most) d
GROUP BY d.route, d.lane;
