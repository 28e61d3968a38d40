-- Responses that are erased.

-- name: Unjudged :many
-- Keys with a response that is yet to be judged.
SELECT DISTINCT m.idempotency_key FROM model_call m
WHERE m.idempotency_key = ANY (@keys::text[]) AND m.unjudged AND m.recalled_by IS NULL AND m.response IS NOT NULL;

-- name: EraseResponses :execrows
-- And what providers said of errors, which may repeat a text.
UPDATE model_call SET response = NULL, error = NULL
WHERE idempotency_key = ANY (@keys::text[]) AND (response IS NOT NULL OR error IS NOT NULL);

-- name: EraseOldResponses :one
-- The next calls in the order of their ids, which is that of their opening, up to an instant. Responses that are judged go.
WITH seen AS MATERIALIZED (
  SELECT m.id, m.response IS NOT NULL AS due, m.unjudged
  FROM model_call m
  WHERE m.id > @after AND m.id < uuid_v7_floor(@before::timestamptz)
  ORDER BY m.id
  LIMIT @window_size
), erased AS (
  UPDATE model_call m SET response = NULL
  WHERE m.id = ANY (ARRAY(SELECT id FROM seen WHERE due AND NOT unjudged))
  RETURNING m.id
)
SELECT coalesce((SELECT s.id FROM seen s ORDER BY s.id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS last,
       (SELECT count(*) FROM erased) AS erased, EXISTS (SELECT FROM seen WHERE due AND unjudged)::boolean AS left_over;
