-- +goose Up

-- What is measured of the tables, for the whole fleet: whichever replica of admin finds it too old computes it anew, while
-- it holds the row, and all of them show it.
CREATE TABLE queue_snapshot (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  taken_at  timestamptz NOT NULL,
  data      jsonb NOT NULL CHECK (jsonb_typeof(data) = 'array')
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
INSERT INTO queue_snapshot (taken_at, data) VALUES ('epoch', '[]');

-- The last sweep, and when one has ended well: a sweeper lives too short to be asked.
CREATE TABLE sweep_run (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  began_at  timestamptz NOT NULL,
  ended_at  timestamptz NOT NULL,
  ok        boolean NOT NULL,
  well_at   timestamptz NOT NULL, -- the end of the last one that was ok; before the first, when this table was made
  counts    jsonb NOT NULL CHECK (jsonb_typeof(counts) = 'object'),
  CHECK (began_at <= ended_at)
) WITH (fillfactor = 50);
INSERT INTO sweep_run (began_at, ended_at, ok, well_at, counts) VALUES (now(), now(), true, now(), '{}');

-- Dead letters by what they are for, without the discarded ones: counted along the index alone.
CREATE INDEX evaluation_outbox_dead_reason ON evaluation_outbox (last_class, last_reason) WHERE status = 'dead' AND discarded_at IS NULL;
