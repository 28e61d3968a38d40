-- name: LockMark :many
-- Up to where a subject has been looked after; nothing while somebody else is at it.
SELECT r.last_id, now()::timestamptz AS at FROM retention r WHERE r.subject = @subject FOR UPDATE SKIP LOCKED;

-- name: SaveMark :exec
UPDATE retention SET last_id = @last_id WHERE subject = @subject;
