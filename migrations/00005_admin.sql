-- +goose Up

-- What operators changed: written in the transaction of the change, and never changed itself.
CREATE TABLE admin_audit (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT now(),
  principal  text NOT NULL CHECK (principal <> ''),
  method     text NOT NULL CHECK (method <> ''), -- such as VersionService.PromoteVersion
  target     text NOT NULL CHECK (target <> ''), -- such as versions/triage-2
  before     jsonb,                              -- NULL where there was nothing
  after      jsonb,                              -- NULL where there is nothing any more
  reason     text NOT NULL DEFAULT '',
  request_id text NOT NULL DEFAULT '',
  trace_id   text NOT NULL DEFAULT ''
);
CREATE INDEX admin_audit_target ON admin_audit (target text_pattern_ops, id);
CREATE TRIGGER admin_audit_immutable BEFORE UPDATE OR DELETE ON admin_audit
  FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- Promise 2 for operators. The row is inserted first in the transaction of the change, as with client_request.
CREATE TABLE admin_request (
  scope       text NOT NULL, -- the operator, a space, and the method
  key         text NOT NULL,
  fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
  response    bytea NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz NOT NULL CHECK (expires_at > created_at),
  PRIMARY KEY (scope, key)
);
CREATE INDEX admin_request_expires ON admin_request (expires_at);

-- What follows from an answer. A row never changes: an edited rule is a new policy.
CREATE TABLE policy (
  id               text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  description      text NOT NULL DEFAULT '',
  urgent_threshold double precision NOT NULL CHECK (urgent_threshold BETWEEN 0 AND 1),
  rules            jsonb NOT NULL CHECK (jsonb_typeof(rules) = 'array' AND jsonb_array_length(rules) > 0),
  digest           bytea NOT NULL CHECK (octet_length(digest) = 32),
  created_by       text NOT NULL,
  created_at       timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER policy_immutable BEFORE UPDATE OR DELETE ON policy
  FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE policy_activation (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  policy_id    text NOT NULL REFERENCES policy (id),
  replaced     text REFERENCES policy (id),
  activated_by text NOT NULL,
  activated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER policy_activation_immutable BEFORE UPDATE OR DELETE ON policy_activation
  FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE active_policy (
  singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  policy_id    text NOT NULL REFERENCES policy (id),
  activated_by text NOT NULL,
  activated_at timestamptz NOT NULL DEFAULT now()
);

-- The first policy: a priority that never falls when either of the answer's numbers rises.
INSERT INTO policy (id, description, urgent_threshold, rules, digest, created_by) VALUES (
  'builtin-1', 'Urgent by both numbers, high by one of them; the department''s own queue.', 0.5,
  '[{"name": "both", "when": "is_urgent >= urgent_threshold && urgency_score >= 0.5", "priority": "urgent", "queue": ""},
    {"name": "one", "when": "is_urgent >= urgent_threshold || urgency_score >= 0.75", "priority": "high", "queue": ""},
    {"name": "some urgency", "when": "urgency_score >= 0.25", "priority": "normal", "queue": ""},
    {"name": "the rest", "when": "true", "priority": "low", "queue": ""}]',
  '\x6b07e198edd7164d71d0fca395521a569f7a9bba49066e6bb7e1c2404820ab18', 'builtin');
INSERT INTO active_policy (policy_id, activated_by) VALUES ('builtin-1', 'builtin');
INSERT INTO policy_activation (policy_id, activated_by) VALUES ('builtin-1', 'builtin');

-- Long work over what is stored, done in chunks by whichever admin replica holds the job's lease: each chunk and the
-- job's progress commit together, so that a chunk counts once whatever happens to the replica.
--
--   evaluate  tickets of a range, under another version
--   replay    dead letters
--   policy    the active policy, to answers that are stored
CREATE TABLE reprocess_job (
  id            uuid PRIMARY KEY DEFAULT uuid_v7(),
  kind          text NOT NULL CHECK (kind IN ('evaluate', 'replay', 'policy')),
  spec          jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'), -- what was asked for; never changes
  state         text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'canceled', 'done', 'failed')),
  unsettled     boolean NOT NULL DEFAULT false, -- paused or canceled, and the work that waits is not all held back or gone
  reason        text NOT NULL DEFAULT '', -- of a state that no operator asked for
  cursor        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(cursor) = 'object'), -- where the next chunk begins
  counts        jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(counts) = 'object'), -- what chunks have come to, by name
  lease_id      uuid,
  locked_by     text,
  locked_until  timestamptz,
  not_before    timestamptz NOT NULL DEFAULT 'epoch', -- of the next chunk
  failures      integer NOT NULL DEFAULT 0 CHECK (failures >= 0), -- of the chunk that comes next
  created_by    text NOT NULL CHECK (created_by <> ''),
  created_at    timestamptz NOT NULL DEFAULT now(),
  changed_at    timestamptz NOT NULL DEFAULT now(),
  finished_at   timestamptz,
  trace_context text NOT NULL DEFAULT '',
  CHECK ((lease_id IS NULL) = (locked_by IS NULL) AND (lease_id IS NULL) = (locked_until IS NULL)),
  CHECK ((state IN ('canceled', 'done', 'failed')) = (finished_at IS NOT NULL)),
  CHECK (NOT unsettled OR state IN ('paused', 'canceled'))
);
CREATE INDEX reprocess_job_runnable ON reprocess_job (not_before) WHERE state = 'running' OR unsettled;
CREATE INDEX reprocess_job_newest ON reprocess_job (kind, id);

-- The transactions that write in this database, or may, as the snapshot of the statement has it: all that it knows of but
-- those that are known to be another database's, which may go on for hours, or a vacuum's. One whose lock is not seen counts.
CREATE FUNCTION running_writers() RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
  SELECT r.xid::text::bigint
  FROM pg_snapshot_xip(pg_current_snapshot()) AS r(xid)
  WHERE NOT EXISTS (
    SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.transactionid = r.xid::xid AND l.mode = 'ExclusiveLock' AND l.granted
      AND (a.datname <> current_database() OR a.usesysid IS NULL)) -- an autovacuum's: its kind is for superusers to see
$$;

-- Work that a job has asked for, as long as nobody else did: a new identical ticket takes it over into the live lane.
ALTER TABLE evaluation_outbox
  ADD COLUMN job_id uuid,
  ADD CHECK (job_id IS NULL OR lane = 'bulk');
CREATE INDEX evaluation_outbox_job ON evaluation_outbox (job_id, idempotency_key) WHERE job_id IS NOT NULL;

-- The job that a call was made for, to say what the job has cost. And the replay (a job's id) with which an operator has
-- set a call aside, to buy its answer again: such a call is history, and counts for nothing when it is decided whether
-- another may be made.
ALTER TABLE model_call
  ADD COLUMN job_id uuid,
  ADD COLUMN recalled_by uuid;
CREATE INDEX model_call_job ON model_call (job_id) WHERE job_id IS NOT NULL;
DROP INDEX model_call_unjudged;
CREATE INDEX model_call_unjudged ON model_call (idempotency_key)
  WHERE unjudged AND recalled_by IS NULL;

-- Tickets drawn once and kept, so that versions are compared over the same ones.
CREATE TABLE ticket_sample (
  id         text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  spec       jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
  created_by text NOT NULL CHECK (created_by <> ''),
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ticket_sample_member (
  sample_id text NOT NULL REFERENCES ticket_sample (id) ON DELETE CASCADE,
  ticket_id uuid NOT NULL,
  PRIMARY KEY (sample_id, ticket_id)
);

-- A dead letter that nobody wants stays dead, and is out of the way.
ALTER TABLE evaluation_outbox
  ADD COLUMN discarded_at timestamptz,
  ADD CHECK (discarded_at IS NULL OR status = 'dead');
-- The order of the list of dead letters; they die in it, so that a page is a range.
CREATE INDEX evaluation_outbox_dead_newest ON evaluation_outbox (dead_at, idempotency_key) WHERE status = 'dead';

-- What a replay has still to come to: the dead letters that it was made for, as they were then. A chunk takes its rows
-- off in the transaction that replays or skips them.
CREATE TABLE replay_selection (
  id              uuid NOT NULL,
  idempotency_key text COLLATE "C" NOT NULL,
  dead_at         timestamptz NOT NULL,
  PRIMARY KEY (id, idempotency_key)
);

-- An operator's pause is apart from the breaker: no success, failure or probe ends it.
ALTER TABLE provider_route
  ADD COLUMN paused_at    timestamptz,
  ADD COLUMN paused_by    text,
  ADD COLUMN pause_reason text,
  ADD CHECK (num_nulls(paused_at, paused_by, pause_reason) IN (0, 3));
