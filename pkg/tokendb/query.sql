-- name: InsertToken :one
-- Nothing comes back where the client has a token of the name already.
INSERT INTO api_token (client_id, name, roles, digest, created_by, expires_at)
VALUES (@client_id, @name, @roles::text[], @digest, @created_by, now() + make_interval(secs => sqlc.narg(life_seconds)::float8))
ON CONFLICT (client_id, name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id, client_id, name, roles, created_by, created_at, expires_at, revoked_by, revoked_at;

-- name: GetToken :one
SELECT id, client_id, name, roles, created_by, created_at, expires_at, revoked_by, revoked_at
FROM api_token WHERE id = @id;

-- name: RevokeToken :execrows
UPDATE api_token SET revoked_at = now(), revoked_by = @revoked_by::text
WHERE id = @id AND revoked_at IS NULL;

-- name: ListTokens :many
-- The newest first. Tokens that are over, expired or revoked, only when they are asked for.
SELECT id, client_id, name, roles, created_by, created_at, expires_at, revoked_by, revoked_at
FROM api_token
WHERE id < @before AND (@client_id::text = '' OR client_id = @client_id)
  AND (@ended::boolean OR revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))
ORDER BY id DESC
LIMIT @most;

-- name: ValidToken :one
SELECT client_id, roles, digest
FROM api_token
WHERE digest = @digest AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now());
