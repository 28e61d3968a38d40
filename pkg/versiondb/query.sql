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
LEFT JOIN evaluator_version p ON p.id = @after
WHERE p.id IS NULL OR v.created_at < p.created_at OR v.created_at = p.created_at AND v.id > p.id
ORDER BY v.created_at DESC, v.id
LIMIT @most;

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

-- name: LastPromotion :one
SELECT version_id, replaced FROM version_promotion ORDER BY id DESC LIMIT 1;

-- name: ListPromotions :many
SELECT * FROM version_promotion WHERE @below::bigint = 0 OR id < @below ORDER BY id DESC LIMIT @most;

-- name: Coverage :one
-- The identifiers of tickets are in the order of time. Each content's key is looked up by itself.
WITH recent AS MATERIALIZED (
  SELECT content_hash FROM ticket
  WHERE created_at >= now() - make_interval(secs => @window_seconds::float8) AND erased_at IS NULL
  ORDER BY id DESC
  LIMIT @most
), content AS MATERIALIZED (
  SELECT DISTINCT content_hash FROM recent
)
SELECT (SELECT count(*) FROM recent)::bigint AS tickets,
       count(*)::bigint AS contents,
       count(*) FILTER (WHERE EXISTS (
         SELECT FROM evaluation_result r WHERE r.idempotency_key = evaluation_key(c.content_hash, @digest::bytea)))::bigint AS answered
FROM content c;
