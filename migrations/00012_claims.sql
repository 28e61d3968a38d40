-- +goose Up

-- What is claimed together, until all of it is settled: the keys among which expired leases are looked for. A claim has no
-- index of evaluation_outbox to write to, since none of them has, or is partial by, a column that it changes; so leases are
-- found by this list. It may name work that is leased no longer, and is then cut off when it is looked at.
CREATE TABLE evaluation_claim (
  id       uuid PRIMARY KEY,
  route    text NOT NULL,
  worker   text NOT NULL,
  keys     text[] COLLATE "C" NOT NULL,
  size     integer NOT NULL CHECK (size > 0), -- of keys, which so need not be read
  check_at timestamptz NOT NULL -- when to look again whether a lease of these is over
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX evaluation_claim_check ON evaluation_claim (check_at, id);
-- Keys are as good as random: to compress them costs time, and saves nothing.
ALTER TABLE evaluation_claim ALTER COLUMN keys SET STORAGE EXTERNAL;

GRANT SELECT, INSERT, DELETE, UPDATE (check_at) ON evaluation_claim TO evalonce_evaluator_worker, evalonce_sweeper;
GRANT SELECT ON evaluation_claim TO evalonce_admin;

-- A page has room for a second version of each of its rows, which a claim makes.
ALTER TABLE evaluation_outbox SET (fillfactor = 45);
