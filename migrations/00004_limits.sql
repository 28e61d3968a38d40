-- +goose Up

-- What an account allows, NULL where it sets no limit, and how much of it may be used now. Workers reserve calls in
-- batches: whoever claims on a limited route locks the route's row, refills its credits by the database's clock and
-- takes what it claims. The buckets' rates and sizes are in pkg/route.
ALTER TABLE provider_route
  ADD COLUMN requests_per_minute integer CHECK (requests_per_minute > 0),
  ADD COLUMN tokens_per_minute   bigint CHECK (tokens_per_minute > 0),
  ADD COLUMN concurrent_calls    integer CHECK (concurrent_calls > 0),
  ADD COLUMN count_output        boolean NOT NULL DEFAULT false, -- the token limit counts output beside input
  ADD COLUMN request_credit      double precision NOT NULL DEFAULT 0,
  ADD COLUMN token_credit        double precision NOT NULL DEFAULT 0, -- below zero after a call that took more than expected
  ADD COLUMN refilled_at         timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN token_ratio         double precision NOT NULL DEFAULT 1 CHECK (token_ratio > 0), -- tokens counted, for one estimated from the size
  -- What the next call may cost, while a budget has no room for it.
  ADD COLUMN short_usd           numeric CHECK (short_usd > 0),
  -- The first of the consecutive failures.
  ADD COLUMN failing_since       timestamptz,
  -- A route that comes back gets its calls little by little: ramp_calls of ramp_level are under way.
  ADD COLUMN ramp_id             uuid,
  ADD COLUMN ramp_level          integer CHECK (ramp_level > 0),
  ADD COLUMN ramp_calls          integer CHECK (ramp_calls >= 0),
  ADD COLUMN ramp_at             timestamptz,
  ADD CHECK (num_nulls(ramp_id, ramp_level, ramp_calls, ramp_at) IN (0, 4));

-- Days and months are those of UTC.
CREATE FUNCTION spend_period(period text, at timestamptz) RETURNS date
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN date_trunc(period, at AT TIME ZONE 'UTC')::date;

-- What may be spent, by all routes together ('*') or by one.
CREATE TABLE spend_limit (
  scope     text NOT NULL CHECK (scope = '*' OR scope ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  period    text NOT NULL CHECK (period IN ('day', 'month')),
  limit_usd numeric NOT NULL CHECK (limit_usd > 0 AND limit_usd < 'Infinity'),
  PRIMARY KEY (scope, period)
);

-- What is spent, or may be: the charges of the calls that were opened in the period, and what calls cost before the
-- first limit made them charged. There is no CHECK on the sums: a mistake in them is for fsck to find, and must not
-- keep a paid answer from being saved.
CREATE TABLE spend (
  scope         text NOT NULL,
  period        text NOT NULL CHECK (period IN ('day', 'month')),
  period_start  date NOT NULL CHECK (period_start = date_trunc(period, period_start::timestamp)::date),
  used_usd      numeric NOT NULL DEFAULT 0,
  uncharged_usd numeric NOT NULL DEFAULT 0,
  PRIMARY KEY (scope, period, period_start)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- The worst case while a call is open, NULL when no limit asked for it; what charge_of says once it is closed.
ALTER TABLE model_call ADD COLUMN charged_usd numeric CHECK (charged_usd >= 0);

-- What a call is charged once its outcome is known: what it cost; nothing where nothing was bought; the worst case as
-- long as nobody knows.
CREATE FUNCTION charge_of(outcome text, cost_usd numeric, charged_usd numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN outcome IN ('answered', 'rejected', 'saved') THEN coalesce(cost_usd, charged_usd)
            WHEN outcome = 'failed' THEN coalesce(cost_usd, 0)
            WHEN outcome = 'unsent' THEN 0
            ELSE charged_usd END;
