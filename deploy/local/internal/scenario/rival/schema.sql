CREATE TABLE ticket (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  external_id text NOT NULL UNIQUE,
  subject     text NOT NULL,
  message     text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE evaluation (
  ticket_id     bigint PRIMARY KEY REFERENCES ticket (id),
  is_urgent     double precision NOT NULL,
  urgency_score double precision NOT NULL,
  department    text NOT NULL,
  computed_at   timestamptz NOT NULL DEFAULT now()
);

-- Of the queue alone. A finished job is deleted; run_at is when it may be taken, for the first time or again.
CREATE TABLE job (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ticket_id  bigint NOT NULL REFERENCES ticket (id),
  attempts   integer NOT NULL DEFAULT 0,
  run_at     timestamptz NOT NULL DEFAULT now(),
  last_error text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  dead_at    timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_due ON job (run_at) WHERE dead_at IS NULL;
