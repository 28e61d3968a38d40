-- name: RangeHorizon :one
-- Every ticket whose row was written by a transaction before this one is either visible to all that begin from now on or
-- never will be. And how many tickets the range has by now.
SELECT coalesce((SELECT min(w.xid) FROM running_writers() AS w(xid)), pg_snapshot_xmax(pg_current_snapshot())::text::bigint)::bigint AS horizon,
       now()::timestamptz AS at,
       (SELECT count(*) FROM ticket t
        WHERE t.created_at >= @created_from AND t.created_at < @created_to AND t.erased_at IS NULL
          AND (@client_id::text = '' OR t.client_id = @client_id)) AS tickets;

-- name: AnyNew :one
-- Whether a ticket was created within the last seconds: identifiers begin with the time.
SELECT EXISTS (SELECT FROM ticket t WHERE t.id >= uuid_v7_floor(now() - make_interval(secs => @seconds::float8))) AS some;

-- name: RangeOver :one
-- Whether all transactions are over that had begun to write before xid, which belongs to one that is. And the
-- transaction's own xid, for whoever asks later: whoever had begun to write before this transaction has a lower one. A
-- snapshot's xmax would not do: it is no higher than the last that is over.
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint > @xid::bigint
        AND NOT EXISTS (SELECT FROM running_writers() AS w(xid) WHERE w.xid < @xid::bigint))::boolean AS over,
       pg_current_xact_id()::text::bigint AS own_xid, now()::timestamptz AS at;

-- name: ScanRange :many
-- The first tickets of a window, in the order of their creation: those alone that were written before the horizon, or
-- those alone that were not. xmin has the lower 32 bits of the writer, and 1 and 2 stand for one long ago. A ticket whose
-- text is erased has nothing to evaluate.
WITH seen AS MATERIALIZED (
  SELECT t.id, t.created_at, t.content_hash
  FROM ticket t
  WHERE t.created_at >= @after_at AND t.created_at < @created_to AND t.erased_at IS NULL
    AND (t.created_at, t.id) > (@after_at::timestamptz, @after_id::uuid)
    AND (@client_id::text = '' OR t.client_id = @client_id)
    AND (t.xmin::text::bigint < 3
         OR mod(t.xmin::text::bigint - mod(@horizon::bigint, 4294967296) + 6442450944, 4294967296) < 2147483648) = @before_horizon::boolean
  ORDER BY t.created_at, t.id
  LIMIT @most
)
SELECT s.id, s.created_at, s.content_hash,
       ((cardinality(@states::text[]) = 0 OR (
           SELECT CASE WHEN r.idempotency_key IS NOT NULL THEN 'succeeded' ELSE coalesce(o.status, 'none') END
           FROM evaluation_key(s.content_hash, @filter_digest::bytea) AS k(key)
           LEFT JOIN evaluation_result r ON r.idempotency_key = k.key
           LEFT JOIN evaluation_outbox o ON o.idempotency_key = k.key) = ANY (@states::text[]))
        AND (@department::text = '' OR @department = coalesce((
           SELECT r.department
           FROM evaluator_version v
           JOIN evaluation_result r ON r.idempotency_key = evaluation_key(s.content_hash, v.digest)
           ORDER BY v.digest = @filter_digest::bytea DESC, v.created_at DESC LIMIT 1), ''))
        AND (NOT @only_missing::boolean OR NOT EXISTS (
           SELECT FROM evaluator_version v
           JOIN evaluation_result r ON r.idempotency_key = evaluation_key(s.content_hash, v.digest))))::boolean AS matches
FROM seen s
ORDER BY s.created_at, s.id;

-- name: PlanRange :exec
-- For this transaction: room to hash a few hundred thousand contents in, and plans for the filters that are given.
SELECT set_config('work_mem', '64MB', true), set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true);

-- name: CountRange :one
-- What evaluating a range under a version comes to. The filters are of contents, but for the client; a limit takes the
-- tickets that were created first. What is compared with all results is compared by content, with one hash.
WITH range AS MATERIALIZED (
  SELECT t.id, t.created_at, t.content_hash, octet_length(t.subject) + octet_length(t.message) AS bytes
  FROM ticket t
  WHERE t.created_at >= @created_from AND t.created_at < @created_to AND t.erased_at IS NULL
    AND (@client_id::text = '' OR t.client_id = @client_id)
), content AS MATERIALIZED (
  SELECT content_hash, count(*) AS tickets, min(bytes) AS bytes FROM range GROUP BY content_hash
), answer AS MATERIALIZED (
  SELECT DISTINCT ON (r.content_hash) r.content_hash, r.department
  FROM evaluation_result r
  JOIN content c ON c.content_hash = r.content_hash
  JOIN evaluator_version v ON v.id = r.version_id
  WHERE @department::text <> '' OR @only_missing::boolean
  ORDER BY r.content_hash, v.digest = @filter_digest::bytea DESC, v.created_at DESC
), matched AS MATERIALIZED (
  SELECT c.content_hash, c.tickets, c.bytes
  FROM content c
  LEFT JOIN answer a ON a.content_hash = c.content_hash
  LEFT JOIN evaluation_result r ON cardinality(@states::text[]) > 0 AND r.idempotency_key = evaluation_key(c.content_hash, @filter_digest::bytea)
  LEFT JOIN evaluation_outbox o ON cardinality(@states::text[]) > 0 AND o.idempotency_key = evaluation_key(c.content_hash, @filter_digest::bytea)
  WHERE (cardinality(@states::text[]) = 0
         OR CASE WHEN r.idempotency_key IS NOT NULL THEN 'succeeded' ELSE coalesce(o.status, 'none') END = ANY (@states::text[]))
    AND (@department::text = '' OR a.department = @department)
    AND (NOT @only_missing::boolean OR a.content_hash IS NULL)
), chosen AS (
  SELECT content_hash, tickets, bytes FROM matched WHERE @most::bigint = 0
  UNION ALL
  SELECT f.content_hash, count(*), min(f.bytes)
  FROM (SELECT t.content_hash, t.bytes
        FROM range t
        JOIN matched m ON m.content_hash = t.content_hash
        WHERE @most::bigint > 0
        ORDER BY t.created_at, t.id
        LIMIT @most::bigint) f
  GROUP BY f.content_hash
), keyed AS MATERIALIZED (
  SELECT evaluation_key(c.content_hash, @target_digest::bytea) AS key, c.tickets, c.bytes FROM chosen c
)
SELECT coalesce(sum(k.tickets), 0)::bigint AS tickets, count(*) AS contents,
       count(*) FILTER (WHERE r.idempotency_key IS NOT NULL) AS answered,
       count(*) FILTER (WHERE r.idempotency_key IS NULL AND o.status IN ('pending', 'processing')) AS queued,
       count(*) FILTER (WHERE r.idempotency_key IS NULL AND o.status = 'dead') AS dead,
       coalesce(avg(k.bytes) FILTER (WHERE r.idempotency_key IS NULL AND o.idempotency_key IS NULL), 0)::float8 AS call_bytes
FROM keyed k
LEFT JOIN evaluation_result r ON r.idempotency_key = k.key
LEFT JOIN evaluation_outbox o ON o.idempotency_key = k.key;
