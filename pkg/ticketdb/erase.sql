-- Texts that are erased.

-- name: LockErasure :exec
-- One erasure of a content at a time, in one order.
SELECT pg_advisory_xact_lock(hashtextextended('evalonce/erase/' || encode(u.content_hash, 'hex'), 0))
FROM (SELECT DISTINCT h.content_hash FROM unnest(@content_hashes::bytea[]) AS h(content_hash) ORDER BY 1) u;

-- name: Erasable :many
SELECT t.id, t.client_id, t.content_hash, t.erased_at FROM ticket t WHERE t.id = ANY (@ids::uuid[]) ORDER BY t.id;

-- name: LockForErasure :many
-- Against whoever is about to give them work.
SELECT t.id FROM ticket t WHERE t.id = ANY (@ids::uuid[]) AND t.erased_at IS NULL ORDER BY t.id FOR UPDATE;

-- name: Heirs :many
-- Of each content the first ticket, beside these, that has the text.
SELECT u.content_hash::bytea AS content_hash, t.id
FROM (SELECT DISTINCT h.content_hash FROM unnest(@content_hashes::bytea[]) AS h(content_hash)) u
CROSS JOIN LATERAL (
  SELECT t.id FROM ticket t
  WHERE t.content_hash = u.content_hash AND t.erased_at IS NULL AND t.id <> ALL (@ids::uuid[])
  ORDER BY t.id LIMIT 1) t;

-- name: EraseTexts :execrows
UPDATE ticket SET subject = '', message = '', erased_at = now() WHERE id = ANY (@ids::uuid[]) AND erased_at IS NULL;

-- name: HoldTexts :many
-- Those of the tickets that have their text, which they keep until the transaction ends.
SELECT t.id FROM ticket t WHERE t.id = ANY (@ids::uuid[]) AND t.erased_at IS NULL ORDER BY t.id FOR KEY SHARE;

-- name: OldTexts :many
-- Tickets with a text in the order of their ids, which is that of their creation, from one on and up to an instant. The
-- last row is the end of what was looked at.
WITH seen AS MATERIALIZED (
  SELECT t.id, t.erased_at IS NULL AND t.created_at < @before::timestamptz AS due
  FROM ticket t
  WHERE t.id > @after AND t.id < uuid_v7_floor(@before::timestamptz)
  ORDER BY t.id
  LIMIT @window_size
)
SELECT s.id, true AS due FROM seen s WHERE s.due
UNION ALL
(SELECT s.id, false FROM seen s ORDER BY s.id DESC LIMIT 1);

-- name: ErasedSince :many
-- Contents of which a text was erased lately.
SELECT DISTINCT t.content_hash FROM ticket t WHERE t.erased_at >= now() - make_interval(secs => @seconds::float8);
