-- name: EnsureRoute :exec
INSERT INTO provider_route (name) VALUES (@name) ON CONFLICT DO NOTHING;

-- name: InsertVersion :execrows
INSERT INTO evaluator_version (
  id, prompt_version, provider, model, effort, prompt, departments, max_output_tokens, answer_schema, digest, route,
  input_usd_per_mtok, cached_input_usd_per_mtok, output_usd_per_mtok,
  max_attempts, unknown_policy, max_unknown_calls, max_age, created_by)
VALUES (
  @id, @prompt_version, @provider, @model, @effort, @prompt, @departments, @max_output_tokens, @answer_schema, @digest, @route,
  @input_usd_per_mtok, @cached_input_usd_per_mtok, @output_usd_per_mtok,
  @max_attempts, @unknown_policy, @max_unknown_calls, make_interval(secs => @max_age_seconds::float8), @created_by)
ON CONFLICT DO NOTHING;

-- name: GetVersion :one
SELECT v.*, extract(epoch FROM v.max_age)::float8 AS max_age_seconds,
       (v.id IS NOT DISTINCT FROM a.version_id)::boolean AS active
FROM evaluator_version v LEFT JOIN active_version a ON true
WHERE v.id = @id;

-- name: GetVersionByDigest :one
SELECT id FROM evaluator_version WHERE digest = @digest;

-- name: ListVersions :many
SELECT v.*, extract(epoch FROM v.max_age)::float8 AS max_age_seconds,
       (v.id IS NOT DISTINCT FROM a.version_id)::boolean AS active
FROM evaluator_version v LEFT JOIN active_version a ON true
ORDER BY v.created_at DESC, v.id;

-- name: ActiveVersion :one
SELECT v.id, v.digest, v.route
FROM active_version a JOIN evaluator_version v ON v.id = a.version_id;

-- name: LockPromotions :exec
-- One promotion at a time, the first too, when there is no row to lock.
SELECT pg_advisory_xact_lock(hashtext('active_version'));

-- name: LockActiveVersion :one
SELECT version_id FROM active_version FOR UPDATE;

-- name: SetActiveVersion :exec
INSERT INTO active_version (version_id, promoted_by) VALUES (@version_id, @promoted_by)
ON CONFLICT (singleton) DO UPDATE SET version_id = EXCLUDED.version_id, promoted_by = EXCLUDED.promoted_by, promoted_at = now();

-- name: RecordPromotion :exec
INSERT INTO version_promotion (version_id, replaced, promoted_by) VALUES (@version_id, sqlc.narg(replaced), @promoted_by);
