-- +goose Up

-- Work and dead letters only: finishing deletes the row, so this table stays small and hot.
--
-- Keys are compared by their bytes, here and below, whatever the database's collation: that is what their indexes cost
-- most. Their CHECK counts apart, because a pattern with a repetition takes ten times as long.
--
-- locked_until is in no index, so that a heartbeat is a HOT update. version_id and route name rows that
-- cannot be deleted (a trigger, a foreign key); they carry no foreign key of their own here, because its
-- check would lock one and the same version row once for every row of every batch.
CREATE TABLE evaluation_outbox (
  idempotency_key text COLLATE "C" PRIMARY KEY CHECK (octet_length(idempotency_key) = 32 AND idempotency_key !~ '[^0-9a-f]'),
  content_hash    bytea NOT NULL CHECK (octet_length(content_hash) = 32),
  ticket_id       uuid NOT NULL REFERENCES ticket (id),
  version_id      text NOT NULL,
  route           text NOT NULL,
  lane            text NOT NULL CHECK (lane IN ('live', 'bulk')),
  status          text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'dead')),
  attempts        integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  unknown_calls   integer NOT NULL DEFAULT 0 CHECK (unknown_calls >= 0),
  available_at    timestamptz NOT NULL DEFAULT now(),
  lease_id        uuid,
  locked_by       text,
  locked_until    timestamptz,
  last_class      text CHECK (last_class IN ('transient', 'throttled', 'unknown', 'operator', 'permanent')),
  last_reason     text,
  last_error      text,
  trace_context   text NOT NULL DEFAULT '',
  created_at      timestamptz NOT NULL DEFAULT now(),
  dead_at         timestamptz,
  owner           text NOT NULL DEFAULT '',
  note            text NOT NULL DEFAULT '',
  CHECK ((status = 'processing') = (lease_id IS NOT NULL)),
  CHECK ((status = 'processing') = (locked_by IS NOT NULL)),
  CHECK ((status = 'processing') = (locked_until IS NOT NULL)),
  CHECK ((status = 'dead') = (dead_at IS NOT NULL)),
  CHECK (status <> 'dead' OR (last_class IS NOT NULL AND last_reason IS NOT NULL))
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
-- The claim's order, exactly.
CREATE INDEX evaluation_outbox_claim ON evaluation_outbox (route, lane, available_at, idempotency_key)
  WHERE status = 'pending';
-- Leases that a worker names (heartbeat) and all, oldest first (reclaim): as many as calls are running. Leases are
-- ordered by time, so each goes to the end.
CREATE INDEX evaluation_outbox_leased ON evaluation_outbox (lease_id) WHERE status = 'processing';
CREATE INDEX evaluation_outbox_dead ON evaluation_outbox (last_class, last_reason, version_id, dead_at)
  WHERE status = 'dead';

-- The answer of one key. First writer wins; a row never changes but for the policy's decision.
CREATE TABLE evaluation_result (
  idempotency_key text COLLATE "C" PRIMARY KEY CHECK (octet_length(idempotency_key) = 32 AND idempotency_key !~ '[^0-9a-f]'),
  content_hash    bytea NOT NULL CHECK (octet_length(content_hash) = 32),
  ticket_id       uuid NOT NULL,
  version_id      text NOT NULL,
  is_urgent       double precision NOT NULL CHECK (is_urgent BETWEEN 0 AND 1),
  department      text NOT NULL CHECK (department <> ''),
  urgency_score   double precision NOT NULL CHECK (urgency_score BETWEEN 0 AND 1),
  model_version   text NOT NULL,
  prompt_version  text NOT NULL,
  policy_version  text NOT NULL,
  priority        text NOT NULL,
  queue           text NOT NULL,
  model_call_id   uuid NOT NULL,
  computed_at     timestamptz NOT NULL DEFAULT now()
);

-- The ledger: a row is committed before its request may leave, and one row never sends twice.
--
--   open      the request may leave, or has left
--   unsent    closed without a request having left
--   failed    the provider said no, or was not reached
--   unknown   the request left and nobody knows what became of it
--   saved     a response arrived and is stored; the result is not yet written
--   rejected  a response arrived that can be no answer (refusal, truncated, contract violation)
--   answered  a response arrived and is the answer
--
-- Partitioned by month through the time in the identifier, so that the primary key is the identifier alone.
CREATE TABLE model_call (
  id                  uuid PRIMARY KEY,
  idempotency_key     text COLLATE "C" NOT NULL,
  version_id          text NOT NULL,
  lease_id            uuid NOT NULL,
  attempt             integer NOT NULL,
  started_at          timestamptz NOT NULL DEFAULT now(),
  finished_at         timestamptz,
  outcome             text NOT NULL DEFAULT 'open' CHECK (outcome IN
                        ('open', 'unsent', 'failed', 'unknown', 'saved', 'rejected', 'answered')),
  class               text CHECK (class IN ('transient', 'throttled', 'unknown', 'operator', 'permanent')),
  reason              text,
  error               text,
  http_status         integer,
  provider_request_id text,
  served_model        text,
  input_tokens        bigint CHECK (input_tokens >= 0),
  cached_input_tokens bigint CHECK (cached_input_tokens >= 0),
  output_tokens       bigint CHECK (output_tokens >= 0),
  reasoning_tokens    bigint CHECK (reasoning_tokens >= 0),
  cost_usd            numeric CHECK (cost_usd >= 0),
  response            bytea,
  trace_id            text,
  late                boolean NOT NULL DEFAULT false, -- the response came when the call had been taken for lost
  -- Paid for, and to be judged before another call may be made: a response that is not yet an answer, and one that came
  -- late and was none. A column, because the index below then says nothing of the outcome: an update that leaves all
  -- indexed columns as they are writes to no index.
  unjudged            boolean NOT NULL GENERATED ALWAYS AS (outcome = 'saved' OR outcome = 'rejected' AND late) STORED,
  CHECK ((outcome = 'open') = (finished_at IS NULL)),
  CHECK (outcome NOT IN ('failed', 'unknown', 'rejected') OR (class IS NOT NULL AND reason IS NOT NULL))
) PARTITION BY RANGE (id);
CREATE INDEX model_call_key ON model_call (idempotency_key);
-- Empty but for the moments after a failure.
CREATE INDEX model_call_unjudged ON model_call (idempotency_key) WHERE unjudged;
-- A row is opened small, and grows by the response when it is closed. The room for that is left in its page.
CREATE TABLE model_call_default PARTITION OF model_call DEFAULT WITH (fillfactor = 15);

-- Makes the partitions of this month and the next ones, skipping a month whose rows have already gone to
-- the default partition. Safe to run at any time, by several at once.
-- +goose StatementBegin
CREATE FUNCTION ensure_model_call_partitions(months_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  first date;
  made integer := 0;
  part text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext('ensure_model_call_partitions'));
  FOR m IN 0..months_ahead LOOP
    first := (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => m))::date;
    part := 'model_call_' || to_char(first, 'YYYY_MM');
    CONTINUE WHEN to_regclass(part) IS NOT NULL;
    CONTINUE WHEN EXISTS (
      SELECT FROM model_call_default d
      WHERE d.id >= uuid_v7_floor(first::timestamp AT TIME ZONE 'UTC')
        AND d.id < uuid_v7_floor((first + interval '1 month')::timestamp AT TIME ZONE 'UTC'));
    EXECUTE format('CREATE TABLE %I PARTITION OF model_call FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = 15)', part,
      uuid_v7_floor(first::timestamp AT TIME ZONE 'UTC'),
      uuid_v7_floor((first + interval '1 month')::timestamp AT TIME ZONE 'UTC'));
    made := made + 1;
  END LOOP;
  RETURN made;
END
$$;
-- +goose StatementEnd
SELECT ensure_model_call_partitions(3);

-- What every version has made of every ticket's content: a result, or the work towards it. A row of work beside a
-- result is work that the next claim finds finished. The keys are computed, and each is looked up by itself: the
-- limits keep the planner from joining whole tables instead.
CREATE VIEW ticket_evaluation AS
SELECT
  t.id AS ticket_id,
  v.id AS version_id,
  v.created_at AS version_created_at,
  v.id IS NOT DISTINCT FROM (SELECT a.version_id FROM active_version a) AS active,
  k.idempotency_key,
  (CASE WHEN r.idempotency_key IS NOT NULL THEN 'succeeded' ELSE o.status END)::text AS state,
  coalesce(o.attempts, 0) AS attempts,
  coalesce(r.ticket_id <> t.id, false)::boolean AS answered_without_call,
  -- Of a succeeded evaluation.
  coalesce(r.department, '') AS department, coalesce(r.is_urgent, 0) AS is_urgent, coalesce(r.urgency_score, 0) AS urgency_score,
  coalesce(r.model_version, '') AS model_version, coalesce(r.prompt_version, '') AS prompt_version,
  coalesce(r.policy_version, '') AS policy_version, coalesce(r.priority, '') AS priority, coalesce(r.queue, '') AS queue,
  coalesce(r.model_call_id, '00000000-0000-0000-0000-000000000000') AS model_call_id,
  coalesce(r.computed_at, 'epoch') AS computed_at,
  coalesce((SELECT m.trace_id FROM model_call m WHERE m.id = r.model_call_id), '')::text AS answer_trace_id,
  -- Of a dead one.
  coalesce(o.last_class, '') AS dead_class, coalesce(o.last_reason, '') AS dead_reason, coalesce(o.dead_at, 'epoch') AS dead_at
FROM ticket t
CROSS JOIN evaluator_version v
CROSS JOIN LATERAL (SELECT evaluation_key(t.content_hash, v.digest) AS idempotency_key) k
LEFT JOIN LATERAL (SELECT * FROM evaluation_result r WHERE r.idempotency_key = k.idempotency_key LIMIT 1) r ON true
LEFT JOIN LATERAL (SELECT * FROM evaluation_outbox o WHERE o.idempotency_key = k.idempotency_key LIMIT 1) o ON true
WHERE r.idempotency_key IS NOT NULL OR o.idempotency_key IS NOT NULL;
