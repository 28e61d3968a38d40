-- name: InsertPolicy :execrows
INSERT INTO policy (id, description, urgent_threshold, rules, digest, created_by)
VALUES (@id, @description, @urgent_threshold, @rules, @digest, @created_by)
ON CONFLICT DO NOTHING;

-- name: GetPolicy :one
SELECT p.*, (p.id IS NOT DISTINCT FROM a.policy_id)::boolean AS active
FROM policy p LEFT JOIN active_policy a ON true
WHERE p.id = @id;

-- name: ActivePolicy :one
SELECT p.*, true::boolean AS active FROM active_policy a JOIN policy p ON p.id = a.policy_id;

-- name: ListPolicies :many
SELECT p.*, (p.id IS NOT DISTINCT FROM a.policy_id)::boolean AS active
FROM policy p LEFT JOIN active_policy a ON true
LEFT JOIN policy l ON l.id = @after
WHERE l.id IS NULL OR p.created_at < l.created_at OR p.created_at = l.created_at AND p.id > l.id
ORDER BY p.created_at DESC, p.id
LIMIT @most;

-- name: LockActivePolicy :one
SELECT policy_id FROM active_policy FOR UPDATE;

-- name: HoldActivePolicy :one
SELECT policy_id, extract(epoch FROM clock_timestamp() - activated_at)::float8 AS age_seconds FROM active_policy FOR SHARE;

-- name: SetActivePolicy :exec
-- Whoever waited for the row is not to seem older than that.
UPDATE active_policy SET policy_id = @policy_id, activated_by = @activated_by, activated_at = clock_timestamp();

-- name: RecordActivation :exec
INSERT INTO policy_activation (policy_id, replaced, activated_by) VALUES (@policy_id, @replaced::text, @activated_by);

-- name: ListActivations :many
SELECT * FROM policy_activation WHERE @below::bigint = 0 OR id < @below ORDER BY id DESC LIMIT @most;
