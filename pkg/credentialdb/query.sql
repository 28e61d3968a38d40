-- name: InsertCredential :one
-- Nothing comes back where the name, or the certificate, is taken.
INSERT INTO api_credential (client_id, name, roles, san, digest, created_by, expires_at)
VALUES (@client_id, @name, @roles::text[], sqlc.narg(san), @digest, @created_by, now() + make_interval(secs => sqlc.narg(life_seconds)::float8))
ON CONFLICT DO NOTHING
RETURNING id, client_id, name, roles, san, created_by, created_at, expires_at, revoked_by, revoked_at;

-- name: GetCredential :one
SELECT id, client_id, name, roles, san, created_by, created_at, expires_at, revoked_by, revoked_at
FROM api_credential WHERE id = @id;

-- name: RevokeCredential :execrows
UPDATE api_credential SET revoked_at = now(), revoked_by = @revoked_by::text
WHERE id = @id AND revoked_at IS NULL;

-- name: ListCredentials :many
-- The newest first. Those that are over, expired or revoked, only when they are asked for.
SELECT id, client_id, name, roles, san, created_by, created_at, expires_at, revoked_by, revoked_at
FROM api_credential
WHERE id < @before AND (@client_id::text = '' OR client_id = @client_id)
  AND (@ended::boolean OR revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))
ORDER BY id DESC
LIMIT @most;

-- name: ValidCredential :one
SELECT client_id, roles, digest
FROM api_credential
WHERE digest = @digest AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now());
