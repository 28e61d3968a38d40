-- name: DeadReasons :many
-- Walks from reason to reason along the index, and counts each up to most rows, so that it costs the same however many
-- there are.
WITH RECURSIVE kind AS (
  (SELECT o.last_class, o.last_reason FROM evaluation_outbox o
   WHERE o.dead_at IS NOT NULL AND o.discarded_at IS NULL
   ORDER BY o.last_class, o.last_reason LIMIT 1)
  UNION ALL
  SELECT n.last_class, n.last_reason
  FROM kind k
  CROSS JOIN LATERAL (
    SELECT o.last_class, o.last_reason FROM evaluation_outbox o
    WHERE o.dead_at IS NOT NULL AND o.discarded_at IS NULL AND (o.last_class, o.last_reason) > (k.last_class, k.last_reason)
    ORDER BY o.last_class, o.last_reason LIMIT 1
  ) n
)
SELECT k.last_class::text AS class, k.last_reason::text AS reason,
       (SELECT count(*) FROM (SELECT FROM evaluation_outbox o
                              WHERE o.dead_at IS NOT NULL AND o.discarded_at IS NULL AND o.last_class = k.last_class AND o.last_reason = k.last_reason
                              LIMIT @most) counted)::bigint AS count
FROM kind k;
