-- Work of contents whose text is erased.

-- name: KeysOf :many
-- The keys of contents, under all versions.
SELECT u.content_hash::bytea AS content_hash, evaluation_key(u.content_hash, v.digest)::text AS idempotency_key
FROM unnest(@content_hashes::bytea[]) AS u(content_hash)
CROSS JOIN evaluator_version v;

-- name: LockWork :many
-- In key order, against followers too: what they have stored is seen by the next statement.
SELECT o.idempotency_key, o.content_hash, o.status,
       EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)::boolean AS answered
FROM evaluation_outbox o
WHERE o.idempotency_key = ANY (@keys::text[])
ORDER BY o.idempotency_key
FOR UPDATE;

-- name: Bequeath :exec
-- The work of some tickets is their heirs' from now on, who have the same text.
UPDATE evaluation_outbox o
SET ticket_id = u.heir
FROM ROWS FROM (unnest(@content_hashes::bytea[]), unnest(@heirs::uuid[])) AS u(content_hash, heir)
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.content_hash = u.content_hash AND o.ticket_id = ANY (@ticket_ids::uuid[]);

-- name: BuryErased :many
-- What waits goes to the dead letters, and of what is there already no word of the provider's is kept.
UPDATE evaluation_outbox o
SET status = 'dead', last_error = NULL,
    dead_at = CASE o.status WHEN 'pending' THEN now() ELSE o.dead_at END,
    last_class = CASE o.status WHEN 'pending' THEN 'permanent' ELSE o.last_class END,
    last_reason = CASE o.status WHEN 'pending' THEN 'erased' ELSE o.last_reason END
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.status IN ('pending', 'dead')
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)
RETURNING o.idempotency_key, (o.last_reason = 'erased')::boolean AS erased;

-- name: WorkOf :many
-- The tickets that work names, of these.
SELECT DISTINCT o.ticket_id FROM evaluation_outbox o
WHERE o.idempotency_key = ANY (@keys::text[]) AND o.ticket_id = ANY (@ticket_ids::uuid[]) AND o.status <> 'dead'
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key);
