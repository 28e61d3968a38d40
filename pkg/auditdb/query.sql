-- name: Record :exec
INSERT INTO admin_audit (principal, method, target, before, after, reason, request_id, trace_id)
VALUES (@principal, @method, @target, sqlc.narg(before), sqlc.narg(after), @reason, @request_id, @trace_id);

-- name: List :many
-- The newest first; below an id, from the end of the page before.
SELECT * FROM admin_audit
WHERE (@below::bigint = 0 OR id < @below)
  AND starts_with(target, @target_prefix::text)
  AND (@principal::text = '' OR principal = @principal)
  AND (@method::text = '' OR method = @method)
  AND (sqlc.narg(from_time)::timestamptz IS NULL OR at >= sqlc.narg(from_time))
  AND (sqlc.narg(to_time)::timestamptz IS NULL OR at < sqlc.narg(to_time))
ORDER BY id DESC
LIMIT @most;

-- name: Reserve :execrows
-- Waits for a concurrent request with the same key. An expired key is free again.
INSERT INTO admin_request AS r (scope, key, fingerprint, response, expires_at)
VALUES (@scope, @key, @fingerprint, '', now() + make_interval(secs => @retention_seconds::float8))
ON CONFLICT (scope, key) DO UPDATE
SET fingerprint = EXCLUDED.fingerprint, response = EXCLUDED.response, created_at = now(), expires_at = EXCLUDED.expires_at
WHERE r.expires_at <= now();

-- name: GetRequest :one
SELECT fingerprint, response FROM admin_request WHERE scope = @scope AND key = @key;

-- name: Respond :execrows
UPDATE admin_request SET response = @response WHERE scope = @scope AND key = @key;

-- name: PruneRequests :execrows
DELETE FROM admin_request r
USING (
  SELECT scope, key FROM admin_request WHERE expires_at <= now() ORDER BY expires_at LIMIT @most FOR UPDATE SKIP LOCKED
) expired
WHERE r.scope = expired.scope AND r.key = expired.key;
