-- name: PlanLookups :exec
-- A plan that reads a whole table or index, chosen while it was small, would be kept until its statistics are new. With
-- that ruled out there is nothing to find out from the arguments: each statement is planned once for a connection.
SELECT set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: ReserveRequests :many
-- Takes the keys in order; waits for a concurrent request with one of them. An expired key is free again. Identifiers
-- come as text here and below, which the driver encodes with much less work than UUIDs.
INSERT INTO client_request AS r (scope, key, fingerprint, response, response_schema, ticket_id, expires_at)
SELECT u.scope, u.key, u.fingerprint, u.response, @response_schema::int, u.ticket_id::uuid, now() + make_interval(secs => @retention_seconds::float8)
FROM ROWS FROM (unnest(@scopes::text[]), unnest(@keys::text[]), unnest(@fingerprints::bytea[]),
                unnest(@responses::bytea[]), unnest(@ticket_ids::text[])) AS u(scope, key, fingerprint, response, ticket_id)
ORDER BY u.scope, u.key
ON CONFLICT (scope, key) DO UPDATE
SET fingerprint = EXCLUDED.fingerprint, response = EXCLUDED.response, response_schema = EXCLUDED.response_schema,
    ticket_id = EXCLUDED.ticket_id, created_at = now(), expires_at = EXCLUDED.expires_at
WHERE r.expires_at <= now()
RETURNING r.ticket_id;

-- name: GetRequests :many
SELECT r.scope, r.key, r.fingerprint, r.response, r.response_schema, r.ticket_id
FROM ROWS FROM (unnest(@scopes::text[]), unnest(@keys::text[])) AS u(scope, key)
JOIN client_request r ON r.scope = u.scope AND r.key = u.key;

-- name: InsertTickets :one
-- Of the tickets with a request those whose request is theirs: of the others an earlier one has had its effect. All
-- rows of a transaction carry its one now(). OFFSET 0 keeps the planner from reading all requests into a hash.
WITH inserted AS (
  INSERT INTO ticket (id, client_id, external_id, subject, message, content_hash, trace_context)
  SELECT u.id::uuid, u.client_id, u.external_id, u.subject, u.message, u.content_hash, u.trace_context
  FROM ROWS FROM (unnest(@ids::text[]), unnest(@client_ids::text[]), unnest(@external_ids::text[]), unnest(@subjects::text[]),
                  unnest(@messages::text[]), unnest(@content_hashes::bytea[]), unnest(@trace_contexts::text[]),
                  unnest(@request_scopes::text[]), unnest(@request_keys::text[]))
       AS u(id, client_id, external_id, subject, message, content_hash, trace_context, request_scope, request_key)
  WHERE u.request_key = ''
     OR EXISTS (SELECT FROM client_request r WHERE r.scope = u.request_scope AND r.key = u.request_key AND r.ticket_id = u.id::uuid OFFSET 0)
)
SELECT now()::timestamptz AS created_at;

-- name: GetTickets :many
SELECT t.id, t.client_id, t.external_id, t.subject, t.message, t.created_at, t.trace_context
FROM unnest(@ids::uuid[]) WITH ORDINALITY AS u(id, ordinal)
JOIN ticket t ON t.id = u.id
WHERE sqlc.narg(client_id)::text IS NULL OR t.client_id = sqlc.narg(client_id)
ORDER BY u.ordinal;

-- name: ShownEvaluations :many
-- The evaluation that each ticket shows: the active version's answer, else that of the newest older version, else (after
-- a rollback) of the newest one; and where there is no answer, what is to become one, in the same order.
SELECT DISTINCT ON (e.ticket_id) sqlc.embed(e)
FROM ticket_evaluation e
WHERE e.ticket_id = ANY (@ids::uuid[])
ORDER BY e.ticket_id, e.state = 'succeeded' DESC, e.active DESC,
  e.version_created_at <= (SELECT v.created_at FROM active_version a JOIN evaluator_version v ON v.id = a.version_id) DESC, e.version_created_at DESC;

-- name: ListEvaluations :many
SELECT sqlc.embed(e)
FROM ticket t
JOIN ticket_evaluation e ON e.ticket_id = t.id
WHERE t.id = @id AND (sqlc.narg(client_id)::text IS NULL OR t.client_id = sqlc.narg(client_id))
ORDER BY e.active DESC, e.version_created_at DESC;

-- name: Answers :many
SELECT sqlc.embed(r), coalesce((SELECT m.trace_id FROM model_call m WHERE m.id = r.model_call_id), '')::text AS trace_id
FROM evaluation_result r
WHERE r.idempotency_key = ANY (@keys::text[]);

-- name: TicketExists :one
SELECT EXISTS (SELECT FROM ticket WHERE id = @id AND (sqlc.narg(client_id)::text IS NULL OR client_id = sqlc.narg(client_id)));

-- name: ScanTickets :many
-- One window of a client's tickets, or of all clients', newest first, and those in it that pass the filter. The last
-- row is the end of the window, with the number of tickets seen in it, so that a filter that matches little costs a
-- bounded scan and the next page goes on from there. The window of all clients is made of those of each: their tickets
-- are in no index by time alone, which every create would pay for.
WITH RECURSIVE client AS (
  SELECT coalesce(sqlc.narg(client_id)::text, (SELECT min(t.client_id) FROM ticket t)) AS client_id
  UNION ALL
  SELECT (SELECT min(t.client_id) FROM ticket t WHERE t.client_id > c.client_id) FROM client c
  WHERE sqlc.narg(client_id) IS NULL AND c.client_id IS NOT NULL
), seen AS MATERIALIZED (
  SELECT w.id, w.created_at
  FROM client c
  CROSS JOIN LATERAL (
    SELECT t.id, t.created_at FROM ticket t
    WHERE t.client_id = c.client_id AND t.created_at >= @created_from AND t.created_at < @created_to
      AND (t.created_at, t.id) < (@after_created_at::timestamptz, @after_id::uuid)
    ORDER BY t.created_at DESC, t.id DESC
    LIMIT @window_size
  ) w
  ORDER BY w.created_at DESC, w.id DESC
  LIMIT @window_size
), matched AS (
  SELECT s.id, s.created_at
  FROM seen s
  LEFT JOIN LATERAL (
    SELECT * FROM ticket_evaluation e WHERE e.ticket_id = s.id
    ORDER BY e.state = 'succeeded' DESC, e.active DESC,
             e.version_created_at <= (SELECT v.created_at FROM active_version a JOIN evaluator_version v ON v.id = a.version_id) DESC, e.version_created_at DESC -- as ShownEvaluations
    LIMIT 1
  ) e ON @filtered::boolean
  WHERE (@state::text = '' OR e.state = @state)
    AND (@department::text = '' OR e.department = @department AND e.state = 'succeeded')
    AND (sqlc.narg(min_urgency)::float8 IS NULL OR e.urgency_score >= sqlc.narg(min_urgency) AND e.state = 'succeeded')
  ORDER BY s.created_at DESC, s.id DESC
  LIMIT @page_size
)
SELECT id, created_at, 0::bigint AS seen FROM matched
UNION ALL
(SELECT id, created_at, (SELECT count(*) FROM seen) FROM seen ORDER BY created_at, id LIMIT 1);

-- name: FollowersOf :many
-- The trace contexts of the tickets that each content serves.
SELECT u.content_hash::bytea AS content_hash, t.trace_context
FROM unnest(@content_hashes::bytea[]) AS u(content_hash)
CROSS JOIN LATERAL (
  SELECT t.trace_context FROM ticket t WHERE t.content_hash = u.content_hash AND t.trace_context <> '' LIMIT @most
) t;

-- name: CountFollowersOf :many
-- How many tickets with a trace each content serves, counted up to a number.
SELECT u.content_hash::bytea AS content_hash,
       (SELECT count(*) FROM (SELECT FROM ticket t WHERE t.content_hash = u.content_hash AND t.trace_context <> '' LIMIT @most) c) AS tickets
FROM unnest(@content_hashes::bytea[]) AS u(content_hash);

-- name: PruneRequests :execrows
DELETE FROM client_request r
USING (
  SELECT scope, key FROM client_request WHERE expires_at <= now() ORDER BY expires_at LIMIT @most FOR UPDATE SKIP LOCKED
) expired
WHERE r.scope = expired.scope AND r.key = expired.key;
