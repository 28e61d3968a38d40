-- name: LockTickets :many
-- The tickets that keys with a result, or in the dead letters, speak of, as far as their clients have an enabled
-- endpoint; keys of the active version first. The tickets are locked, in the order of their ids, so that one transaction
-- at a time numbers a ticket's events. Without an enabled endpoint nothing is read but that.
WITH ended AS MATERIALIZED (
  SELECT r.idempotency_key, r.content_hash, r.version_id
  FROM evaluation_result r
  WHERE r.idempotency_key = ANY (@keys::text[]) AND EXISTS (SELECT FROM webhook_endpoint e WHERE e.state = 'enabled')
  UNION ALL
  SELECT o.idempotency_key, o.content_hash, o.version_id
  FROM evaluation_outbox o
  WHERE o.idempotency_key = ANY (@keys::text[]) AND o.status = 'dead' AND EXISTS (SELECT FROM webhook_endpoint e WHERE e.state = 'enabled')
), listening AS MATERIALIZED (
  SELECT t.id, k.idempotency_key, k.version_id
  FROM ended k
  CROSS JOIN LATERAL (SELECT t.id, t.client_id FROM ticket t WHERE t.content_hash = k.content_hash OFFSET 0) t
  WHERE EXISTS (SELECT FROM webhook_endpoint e WHERE e.client_id = t.client_id AND e.state = 'enabled')
), locked AS MATERIALIZED (
  SELECT t.id FROM ticket t
  WHERE t.id = ANY (ARRAY(SELECT id FROM listening))
  ORDER BY t.id
  FOR NO KEY UPDATE
)
SELECT l.id AS ticket_id, l.idempotency_key
FROM listening l
WHERE (SELECT count(*) FROM locked) > 0 -- which has them locked
ORDER BY l.version_id = (SELECT a.version_id FROM active_version a) DESC NULLS LAST, l.id, l.idempotency_key;

-- name: Tell :execrows
-- Writes the deliveries that follow from tickets' evaluations as they stand; README.md has the rules. The tickets are
-- locked before, in a statement of its own, so that this one sees what was told until then; no ticket may come twice.
-- Answers of keys that the same transaction tells of (@keys) are no earlier ones. @promotion_id is the promotion that is
-- worked off, 0 where an evaluation has just ended; @born, where the tickets are stored by this transaction.
WITH era AS MATERIALIZED (
  -- When versions were the active one for the last time. A version that never was is none that clients hear of.
  SELECT p.version_id, max(p.until) AS until
  FROM (SELECT version_id, lead(promoted_at, 1, 'infinity') OVER (ORDER BY id) AS until FROM version_promotion) p
  GROUP BY p.version_id
), latest AS MATERIALIZED (
  SELECT id, version_id FROM version_promotion ORDER BY id DESC LIMIT 1
), ended AS MATERIALIZED (
  SELECT t.id AS ticket_id, t.client_id, t.external_id, t.content_hash, t.created_at, u.key AS idempotency_key,
         r.idempotency_key IS NOT NULL AS answered, coalesce(r.version_id, o.version_id) AS version_id,
         coalesce(r.version_id, o.version_id) = (SELECT version_id FROM latest) AS active,
         CASE WHEN r.idempotency_key IS NOT NULL THEN json_build_object(
           'department', r.department, 'urgency_score', r.urgency_score, 'is_urgent', r.is_urgent,
           'model_version', r.model_version, 'prompt_version', r.prompt_version, 'policy_version', r.policy_version,
           'priority', r.priority, 'queue', r.queue, 'model_call_id', r.model_call_id,
           'compute_time', to_char(r.computed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END AS answer,
         CASE WHEN r.idempotency_key IS NULL THEN json_build_object(
           'class', o.last_class, 'reason', o.last_reason,
           'dead_time', to_char(o.dead_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END AS dead_letter
  FROM ROWS FROM (unnest(@ticket_ids::uuid[]), unnest(@ticket_keys::text[])) AS u(ticket_id, key)
  CROSS JOIN LATERAL (SELECT * FROM ticket t WHERE t.id = u.ticket_id LIMIT 1) t -- looked up one by one, as all else here
  LEFT JOIN LATERAL (SELECT * FROM evaluation_result r WHERE r.idempotency_key = u.key LIMIT 1) r ON true
  LEFT JOIN LATERAL (SELECT * FROM evaluation_outbox o WHERE o.idempotency_key = u.key AND o.status = 'dead' LIMIT 1) o ON r.idempotency_key IS NULL
  WHERE (r.idempotency_key IS NOT NULL OR o.idempotency_key IS NOT NULL)
    AND EXISTS (SELECT FROM webhook_endpoint e WHERE e.state = 'enabled')
), judged AS MATERIALIZED (
  SELECT n.*, NOT @born::boolean AND EXISTS (
    SELECT FROM era w
    JOIN evaluator_version v ON v.id = w.version_id
    CROSS JOIN LATERAL (
      SELECT r.computed_at FROM evaluation_result r
      WHERE r.idempotency_key = evaluation_key(n.content_hash, v.digest) AND r.idempotency_key <> ALL (@keys::text[]) LIMIT 1) r
    WHERE w.version_id <> n.version_id AND w.until > n.created_at
      AND (@promotion_id::bigint = 0 OR r.computed_at < (SELECT p.promoted_at FROM version_promotion p WHERE p.id = @promotion_id))
  ) AS shown_before
  FROM ended n
  WHERE n.version_id IN (SELECT version_id FROM era)
), event AS MATERIALIZED (
  SELECT j.*, e.id AS endpoint_id, e.events,
         CASE WHEN NOT j.answered THEN CASE WHEN j.active OR NOT j.shown_before AND told.idempotency_key IS NULL THEN 'evaluation.dead_letter' END
              WHEN told.idempotency_key = j.idempotency_key THEN NULL
              WHEN told.idempotency_key IS NULL AND NOT j.shown_before THEN 'evaluation.succeeded'
              WHEN j.active THEN 'evaluation.superseded' END AS event,
         1 + coalesce((SELECT d.sequence FROM webhook_delivery d WHERE d.endpoint_id = e.id AND d.ticket_id = j.ticket_id
                       ORDER BY d.sequence DESC LIMIT 1), 0) AS sequence
  FROM judged j
  JOIN webhook_endpoint e ON e.client_id = j.client_id AND e.state = 'enabled'
    -- Who listens since a promotion hears nothing of what that changed before.
    AND (@promotion_id::bigint = 0 OR j.created_at >= e.listening_since
         OR e.listening_since < (SELECT p.promoted_at FROM version_promotion p WHERE p.id = @promotion_id))
  LEFT JOIN LATERAL ( -- the answer that the endpoint was told of last
    SELECT d.idempotency_key FROM webhook_delivery d
    WHERE d.endpoint_id = e.id AND d.ticket_id = j.ticket_id AND d.event IN ('evaluation.succeeded', 'evaluation.superseded')
    ORDER BY d.sequence DESC LIMIT 1) told ON true
)
INSERT INTO webhook_delivery (endpoint_id, event, ticket_id, idempotency_key, occasion, sequence, body)
SELECT v.endpoint_id, v.event, v.ticket_id, v.idempotency_key,
       CASE v.event WHEN 'evaluation.superseded' THEN (SELECT id FROM latest) ELSE 0 END, v.sequence,
       convert_to(json_strip_nulls(json_build_object(
         'type', v.event,
         'timestamp', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
         'data', json_build_object(
           'ticket_id', v.ticket_id, 'external_id', v.external_id, 'sequence', v.sequence,
           'state', CASE WHEN v.answered THEN 'SUCCEEDED' ELSE 'DEAD_LETTER' END,
           'version_id', v.version_id, 'evaluation_key', v.idempotency_key, 'answer', v.answer, 'dead_letter', v.dead_letter)))::text, 'UTF8')
FROM event v
WHERE v.event = ANY (v.events)
ORDER BY v.endpoint_id, v.ticket_id
ON CONFLICT (endpoint_id, ticket_id, event, idempotency_key, occasion) DO NOTHING;

-- name: Listening :many
SELECT DISTINCT e.client_id FROM webhook_endpoint e WHERE e.client_id = ANY (@client_ids::text[]) AND e.state = 'enabled';

-- name: FindPromotions :exec
-- A row of work for every promotion that replaced a version.
INSERT INTO webhook_supersession (promotion_id)
SELECT p.id FROM version_promotion p
WHERE p.replaced IS NOT NULL AND p.id > coalesce((SELECT max(s.promotion_id) FROM webhook_supersession s), 0)
ORDER BY p.id
ON CONFLICT DO NOTHING;

-- name: LockPromotion :one
-- The oldest promotion whose next chunk may be done: once nobody is left who began before it was known, and the tail
-- once nobody is left who stores tickets under the version before.
SELECT s.promotion_id, s.state, s.client_id, s.created_at, s.ticket_id, p.promoted_at, v.digest,
       EXISTS (SELECT FROM version_promotion n WHERE n.id > s.promotion_id)::boolean AS overtaken
FROM webhook_supersession s
JOIN version_promotion p ON p.id = s.promotion_id
JOIN evaluator_version v ON v.id = p.version_id
WHERE s.state <> 'done' AND s.barrier <= pg_snapshot_xmin(pg_current_snapshot())
  AND (s.state = 'walking' OR p.promoted_at + make_interval(secs => @tail_wait_seconds::float8) <= now())
ORDER BY s.promotion_id
LIMIT 1
FOR UPDATE OF s SKIP LOCKED;

-- name: NextClient :one
-- The first client, from this one on, that wants to know what its tickets are answered with; empty when there is none.
SELECT coalesce((
  SELECT e.client_id FROM webhook_endpoint e
  WHERE e.state = 'enabled' AND e.client_id >= @client_id AND e.events && ARRAY['evaluation.succeeded', 'evaluation.superseded']
  ORDER BY e.client_id LIMIT 1), '')::text AS client_id;

-- name: ClientAfter :one
SELECT coalesce((
  SELECT e.client_id FROM webhook_endpoint e
  WHERE e.state = 'enabled' AND e.client_id > @client_id AND e.events && ARRAY['evaluation.succeeded', 'evaluation.superseded']
  ORDER BY e.client_id LIMIT 1), '')::text AS client_id;

-- name: NextTickets :many
-- One client's tickets in the order of their creation, with their keys under a version, and whether that has answered them.
SELECT t.id, t.created_at, k.idempotency_key::text AS idempotency_key, coalesce(r.found, false)::boolean AS answered
FROM (
  SELECT t.id, t.created_at, t.content_hash FROM ticket t
  WHERE t.client_id = @client_id AND (t.created_at, t.id) > (@after_created_at::timestamptz, @after_id::uuid)
    AND t.created_at < @created_before::timestamptz
  ORDER BY t.created_at, t.id
  LIMIT @most
) t
CROSS JOIN LATERAL (SELECT evaluation_key(t.content_hash, @digest::bytea) AS idempotency_key) k
LEFT JOIN LATERAL (SELECT true AS found FROM evaluation_result r WHERE r.idempotency_key = k.idempotency_key LIMIT 1) r ON true
ORDER BY t.created_at, t.id;

-- name: LockByID :exec
SELECT FROM ticket t WHERE t.id = ANY (@ids::uuid[]) ORDER BY t.id FOR NO KEY UPDATE;

-- name: SavePromotion :exec
UPDATE webhook_supersession
SET state = @state, client_id = @client_id, created_at = @created_at, ticket_id = @ticket_id, told = told + @told::bigint, changed_at = now()
WHERE promotion_id = @promotion_id;

-- name: PlanClaim :exec
-- As for evaluations: on stale statistics the planner may sort the backlog instead of walking its index.
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);

-- name: LockReady :many
-- Enabled endpoints with something due and room for it, in turn. They are locked, so that one claim at a time counts what
-- is under way; those that are locked by another are its.
SELECT e.id
FROM webhook_endpoint e
CROSS JOIN LATERAL (
  SELECT 1 FROM webhook_delivery d
  WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.available_at <= now()
  ORDER BY d.available_at, d.id
  LIMIT 1
) due
WHERE e.state = 'enabled' AND e.not_before <= now()
  AND (SELECT count(*) FROM webhook_delivery s WHERE s.endpoint_id = e.id AND s.state = 'sending')
      < CASE WHEN e.consecutive_failures >= @failing_after::int THEN 1 ELSE @per_endpoint::bigint END
ORDER BY e.claimed_at, e.id
LIMIT @most
FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: Claim :many
-- Leases what is due at the locked endpoints, at most so many that each has per_endpoint under way, and one that fails a
-- single one.
WITH room AS MATERIALIZED (
  SELECT e.id, least(@most::bigint,
           (CASE WHEN e.consecutive_failures >= @failing_after::int THEN 1 ELSE @per_endpoint::bigint END)
           - (SELECT count(*) FROM webhook_delivery d WHERE d.endpoint_id = e.id AND d.state = 'sending')) AS free
  FROM webhook_endpoint e
  WHERE e.id = ANY (@endpoint_ids::uuid[])
), due AS MATERIALIZED (
  SELECT d.id
  FROM room r
  CROSS JOIN LATERAL (
    SELECT q.id FROM webhook_delivery q
    WHERE q.endpoint_id = r.id AND q.state = 'pending' AND q.available_at <= now()
    ORDER BY q.available_at, q.id
    LIMIT greatest(r.free, 0)
    FOR NO KEY UPDATE SKIP LOCKED
  ) d
), turn AS (
  UPDATE webhook_endpoint e SET claimed_at = clock_timestamp() WHERE e.id = ANY (@endpoint_ids::uuid[])
)
UPDATE webhook_delivery d
SET state = 'sending', attempts = d.attempts + 1, lease_id = gen_random_uuid(), locked_by = @worker::text,
    locked_until = now() + make_interval(secs => @lease_seconds::float8), last_attempt_at = now()
FROM webhook_endpoint e
WHERE d.id = ANY (ARRAY(SELECT id FROM due)) AND e.id = d.endpoint_id
RETURNING d.id, d.lease_id::uuid AS lease_id, d.endpoint_id, d.event, d.body, d.attempts, e.url,
  coalesce((SELECT t.trace_context FROM ticket t WHERE t.id = d.ticket_id), '')::text AS trace_context,
  ARRAY(SELECT s.sealed FROM webhook_secret s WHERE s.endpoint_id = e.id AND (s.expires_at IS NULL OR s.expires_at > now())
        ORDER BY s.created_at DESC, s.id DESC)::bytea[] AS secrets;

-- name: Extend :many
-- The heartbeat, as for evaluations. The leases that are lost come back.
WITH held AS MATERIALIZED (
  SELECT d.id FROM webhook_delivery d
  WHERE d.locked_by = @worker::text AND d.state = 'sending' AND d.lease_id = ANY (@leases::uuid[])
  FOR NO KEY UPDATE SKIP LOCKED
), extended AS (
  UPDATE webhook_delivery d
  SET locked_until = now() + make_interval(secs => @lease_seconds::float8)
  WHERE d.id = ANY (ARRAY(SELECT id FROM held))
)
SELECT u.lease::uuid AS lease
FROM unnest(@leases::uuid[]) AS u(lease)
WHERE u.lease NOT IN (SELECT d.lease_id FROM webhook_delivery d WHERE d.locked_by = @worker::text AND d.state = 'sending');

-- name: Settle :many
-- What attempts have come to, fenced by their leases.
WITH owned AS MATERIALIZED (
  SELECT d.id, u.state, u.delay_seconds, u.refund, u.status, u.reason
  FROM webhook_delivery d
  JOIN ROWS FROM (unnest(@ids::uuid[]), unnest(@leases::uuid[]), unnest(@states::text[]), unnest(@delay_seconds::float8[]),
                  unnest(@refunds::boolean[]), unnest(@statuses::int[]), unnest(@reasons::text[]))
       AS u(id, lease, state, delay_seconds, refund, status, reason) ON u.id = d.id
  WHERE d.lease_id = u.lease
  ORDER BY d.id
  FOR NO KEY UPDATE OF d
)
UPDATE webhook_delivery d
SET state = w.state, lease_id = NULL, locked_by = NULL, locked_until = NULL, attempts = d.attempts - w.refund::int,
    available_at = CASE w.state WHEN 'pending' THEN now() + make_interval(secs => w.delay_seconds) ELSE d.available_at END,
    finished_at = CASE WHEN w.state <> 'pending' THEN now() END,
    last_status = nullif(w.status, 0), last_reason = nullif(w.reason, '')
FROM owned w
WHERE d.id = w.id
RETURNING d.id;

-- name: NoteEndpoints :many
-- What attempts say of their endpoints. A success forgives all failures. From some failures on an endpoint is left alone
-- for a quarter of the time that it has been failing for, within bounds; what it asks for itself (pause) is kept as well.
-- One that is gone, or has failed for too long, is disabled. An endpoint that was well and is well is not touched.
WITH noted AS MATERIALIZED (
  SELECT e.id, u.delivered, u.gone, u.pause_seconds,
         CASE WHEN u.delivered THEN 0 ELSE e.consecutive_failures + u.failures END AS failures,
         CASE WHEN NOT u.delivered AND e.consecutive_failures + u.failures > 0 THEN coalesce(e.failing_since, now()) END AS failing_since,
         u.failures > 0 AS failed
  FROM webhook_endpoint e
  JOIN ROWS FROM (unnest(@ids::uuid[]), unnest(@delivered::boolean[]), unnest(@failures::int[]), unnest(@gone::boolean[]), unnest(@pause_seconds::float8[]))
       AS u(id, delivered, failures, gone, pause_seconds) ON u.id = e.id
  WHERE e.state = 'enabled' AND (NOT u.delivered OR u.pause_seconds > 0 OR e.consecutive_failures > 0)
  ORDER BY e.id
  FOR NO KEY UPDATE OF e
), judged AS MATERIALIZED (
  SELECT n.*,
         CASE WHEN n.gone THEN 'gone'
              WHEN n.failed AND n.failing_since <= now() - make_interval(secs => @disable_after_seconds::float8) THEN 'failing' END AS reason
  FROM noted n
)
UPDATE webhook_endpoint e
SET consecutive_failures = j.failures, failing_since = j.failing_since, changed_at = CASE WHEN j.reason IS NULL THEN e.changed_at ELSE now() END,
    state = CASE WHEN j.reason IS NULL THEN 'enabled' ELSE 'disabled' END, disabled_reason = j.reason,
    disabled_at = CASE WHEN j.reason IS NOT NULL THEN now() END,
    not_before = greatest(
      CASE WHEN j.delivered THEN 'epoch' ELSE e.not_before END,
      now() + make_interval(secs => j.pause_seconds),
      CASE WHEN j.failures >= @failing_after::int
           THEN now() + least(greatest((now() - j.failing_since) / 4, interval '1 second'), make_interval(secs => @pause_most_seconds::float8))
                        * (1 + random() / 4) END)
FROM judged j
WHERE e.id = j.id
RETURNING e.id, e.client_id, coalesce(j.reason, '')::text AS disabled_reason;

-- name: Reclaim :execrows
-- Expired leases: the request may have been sent; it is sent again, under the same id.
UPDATE webhook_delivery d
SET state = 'pending', lease_id = NULL, locked_by = NULL, locked_until = NULL, available_at = now(), last_status = NULL, last_reason = 'lease_expired'
WHERE d.id = ANY (ARRAY(
  SELECT q.id FROM webhook_delivery q
  WHERE q.state = 'sending' AND q.locked_until < now()
  ORDER BY q.id
  LIMIT @most
  FOR NO KEY UPDATE SKIP LOCKED));

-- name: PurgeDeliveries :execrows
-- Of endpoints that are deleted, and have been for longer than any transaction that did not see it yet.
DELETE FROM webhook_delivery d
WHERE d.id = ANY (ARRAY(
  SELECT q.id FROM webhook_endpoint e
  CROSS JOIN LATERAL (SELECT q.id FROM webhook_delivery q WHERE q.endpoint_id = e.id ORDER BY q.id LIMIT @most FOR UPDATE SKIP LOCKED) q
  WHERE e.state = 'deleted' AND e.changed_at < now() - interval '1 hour'
  LIMIT @most));

-- name: PurgeEndpoints :execrows
DELETE FROM webhook_endpoint e
WHERE e.state = 'deleted' AND e.changed_at < now() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM webhook_delivery d WHERE d.endpoint_id = e.id);

-- name: LockClient :exec
-- One registration of a client's at a time, so that its endpoints can be counted.
SELECT pg_advisory_xact_lock(hashtext('webhook_endpoint'), hashtext(@client_id::text));

-- name: EndpointByRequest :one
SELECT id, fingerprint FROM webhook_endpoint WHERE client_id = @client_id AND request_id = @request_id::text AND request_id <> '' AND state <> 'deleted';

-- name: CountEndpoints :one
SELECT count(*) FROM webhook_endpoint WHERE client_id = @client_id AND state <> 'deleted';

-- name: InsertEndpoint :exec
INSERT INTO webhook_endpoint (id, client_id, url, description, events, request_id, fingerprint)
VALUES (@id, @client_id, @url, @description, @events::text[], @request_id, @fingerprint);

-- name: GetEndpoint :one
SELECT sqlc.embed(e), (e.not_before > now())::boolean AS waits
FROM webhook_endpoint e WHERE e.id = @id AND e.client_id = @client_id AND e.state <> 'deleted';

-- name: ListEndpoints :many
SELECT sqlc.embed(e), (e.not_before > now())::boolean AS waits
FROM webhook_endpoint e WHERE e.client_id = @client_id AND e.state <> 'deleted' ORDER BY e.id;

-- name: LockEndpoint :one
SELECT sqlc.embed(e), false::boolean AS waits
FROM webhook_endpoint e WHERE e.id = @id AND e.client_id = @client_id AND e.state <> 'deleted' FOR UPDATE;

-- name: UpdateEndpoint :exec
-- Enabling forgives failures. It listens anew when it was disabled, or when it is to hear of other events.
UPDATE webhook_endpoint e
SET url = @url, description = @description, events = @events::text[], changed_at = now(),
    state = CASE WHEN @enabled::boolean THEN 'enabled' ELSE 'disabled' END,
    disabled_reason = CASE WHEN NOT @enabled THEN coalesce(e.disabled_reason, 'client') END,
    disabled_at = CASE WHEN NOT @enabled THEN coalesce(e.disabled_at, now()) END,
    listening_since = CASE WHEN e.state = 'disabled' AND @enabled OR NOT e.events @> @events::text[] THEN clock_timestamp() ELSE e.listening_since END,
    consecutive_failures = CASE WHEN @forgiven::boolean THEN 0 ELSE e.consecutive_failures END,
    failing_since = CASE WHEN NOT @forgiven THEN e.failing_since END,
    not_before = CASE WHEN @forgiven THEN 'epoch' ELSE e.not_before END
WHERE e.id = @id;

-- name: DeleteEndpoint :execrows
UPDATE webhook_endpoint e
SET state = 'deleted', disabled_reason = NULL, disabled_at = NULL, changed_at = now()
WHERE e.id = @id AND e.client_id = @client_id AND e.state <> 'deleted';

-- name: DeleteSecrets :exec
DELETE FROM webhook_secret WHERE endpoint_id = @endpoint_id;

-- name: SecretByRequest :one
SELECT extract(epoch FROM s.grace)::float8 AS grace_seconds, (s.created_at + s.grace)::timestamptz AS old_expire_time
FROM webhook_secret s WHERE s.endpoint_id = @endpoint_id AND s.request_id = @request_id::text;

-- name: SigningSecrets :one
SELECT count(*)::int FROM webhook_secret s WHERE s.endpoint_id = @endpoint_id AND (s.expires_at IS NULL OR s.expires_at > now());

-- name: ExpireSecrets :exec
-- Ends after the grace what would sign for longer. What has ended long ago is forgotten.
WITH forgotten AS (
  DELETE FROM webhook_secret s WHERE s.endpoint_id = @endpoint_id AND s.expires_at < now() - interval '7 days'
)
UPDATE webhook_secret s SET expires_at = now() + make_interval(secs => @grace_seconds::float8)
WHERE s.endpoint_id = @endpoint_id AND (s.expires_at IS NULL OR s.expires_at > now() + make_interval(secs => @grace_seconds::float8));

-- name: InsertSecret :one
INSERT INTO webhook_secret (endpoint_id, sealed, request_id, grace)
VALUES (@endpoint_id, @sealed, @request_id, make_interval(secs => @grace_seconds::float8))
RETURNING (created_at + grace)::timestamptz AS old_expire_time;

-- name: SealedOtherwise :many
-- Secrets that are not sealed with the key of this name.
SELECT s.id, s.endpoint_id, s.sealed FROM webhook_secret s
WHERE substring(s.sealed FROM 1 FOR octet_length(@prefix::bytea)) <> @prefix::bytea
ORDER BY s.id
LIMIT @most
FOR UPDATE SKIP LOCKED;

-- name: Reseal :exec
UPDATE webhook_secret s SET sealed = @sealed WHERE s.id = @id;

-- name: InsertTest :one
-- Before all that waits: a claim takes what has been due for longest.
INSERT INTO webhook_delivery (endpoint_id, event, body, available_at)
VALUES (@endpoint_id, 'endpoint.test', convert_to(json_strip_nulls(json_build_object(
  'type', 'endpoint.test', 'timestamp', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
  'data', json_build_object('endpoint_id', @endpoint_id::uuid)))::text, 'UTF8'), 'epoch')
RETURNING id;

-- name: TryNow :exec
-- What its client asks for does not wait for the end of a pause.
UPDATE webhook_endpoint SET not_before = 'epoch' WHERE id = @id AND not_before > now();

-- name: MatchDeliveries :many
-- A window of an endpoint's deliveries, newest first, and which of them pass the filter.
SELECT d.id, ((@state::text = '' OR d.state = @state) AND (@event::text = '' OR d.event = @event)
              AND (sqlc.narg(ticket_id)::uuid IS NULL OR d.ticket_id IS NOT DISTINCT FROM sqlc.narg(ticket_id)))::boolean AS matches
FROM webhook_delivery d
WHERE d.endpoint_id = @endpoint_id AND d.id < @before
ORDER BY d.id DESC
LIMIT @window_size;

-- name: GetDeliveries :many
SELECT d.id, d.event, d.ticket_id, d.sequence, d.state, d.attempts, d.last_status, d.last_reason, d.last_attempt_at, d.available_at,
       d.created_at, d.finished_at, (octet_length(d.body) > 0)::boolean AS kept
FROM webhook_delivery d
WHERE d.id = ANY (@ids::uuid[]) AND d.endpoint_id = @endpoint_id
ORDER BY d.id DESC;

-- name: Redeliver :execrows
-- One that is being sent is sent already.
UPDATE webhook_delivery d
SET state = 'pending', attempts = 0, available_at = now(), finished_at = NULL
WHERE d.id = @id AND d.endpoint_id = @endpoint_id AND d.state <> 'sending' AND octet_length(d.body) > 0;

-- name: RedeliverFailed :execrows
UPDATE webhook_delivery d
SET state = 'pending', attempts = 0, available_at = now(), finished_at = NULL
WHERE d.id = ANY (ARRAY(
  SELECT q.id FROM webhook_delivery q
  WHERE q.endpoint_id = @endpoint_id AND q.state = 'failed' AND q.finished_at >= @since::timestamptz AND octet_length(q.body) > 0
  ORDER BY q.finished_at, q.id
  LIMIT @most
  FOR NO KEY UPDATE SKIP LOCKED));

-- name: LockRetention :many
-- Up to where bodies have been looked after; nothing while somebody else is at it.
SELECT r.last_id FROM retention r WHERE r.subject = 'delivery' FOR UPDATE SKIP LOCKED;

-- name: EraseBodies :one
-- The next deliveries in the order of their ids, which is that of their making, up to an age. The row stays without its
-- body. What is not finished at that age waits for an endpoint that is disabled, and keeps it.
WITH seen AS MATERIALIZED (
  SELECT d.id FROM webhook_delivery d
  WHERE d.id > @after AND d.id < uuid_v7_floor(now() - make_interval(secs => @retention_seconds::float8))
  ORDER BY d.id
  LIMIT @most
), erased AS (
  UPDATE webhook_delivery d SET body = ''
  WHERE d.id = ANY (ARRAY(SELECT id FROM seen)) AND d.state IN ('delivered', 'failed') AND octet_length(d.body) > 0
  RETURNING d.id
)
SELECT coalesce((SELECT s.id FROM seen s ORDER BY s.id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000')::uuid AS last,
       (SELECT count(*) FROM erased) AS erased;

-- name: SaveRetention :exec
UPDATE retention SET last_id = @last_id WHERE subject = 'delivery';
