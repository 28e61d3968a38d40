-- +goose Up

-- Where a client wants to be told of its tickets. What the last attempts have come to is kept here, for all of the
-- endpoint's deliveries: not_before keeps an endpoint that fails, or asks for patience, from being tried by each of them.
CREATE TABLE webhook_endpoint (
  id                   uuid PRIMARY KEY DEFAULT uuid_v7(),
  client_id            text NOT NULL CHECK (client_id <> ''),
  url                  text NOT NULL CHECK (url ~ '^https?://' AND octet_length(url) <= 2048),
  description          text NOT NULL DEFAULT '',
  events               text[] NOT NULL CHECK (cardinality(events) > 0 AND events <@
                         ARRAY['evaluation.succeeded', 'evaluation.dead_letter', 'evaluation.superseded']),
  -- deleted: gone for its client; its deliveries and then the row itself are removed little by little.
  state                text NOT NULL DEFAULT 'enabled' CHECK (state IN ('enabled', 'disabled', 'deleted')),
  disabled_reason      text CHECK (disabled_reason IN ('client', 'gone', 'failing')),
  disabled_at          timestamptz,
  listening_since      timestamptz NOT NULL DEFAULT clock_timestamp(), -- without a pause, and for these events
  not_before           timestamptz NOT NULL DEFAULT 'epoch',
  consecutive_failures integer NOT NULL DEFAULT 0 CHECK (consecutive_failures >= 0),
  failing_since        timestamptz,                     -- the first of them
  claimed_at           timestamptz NOT NULL DEFAULT 'epoch', -- endpoints take turns
  request_id           text NOT NULL DEFAULT '',
  fingerprint          bytea NOT NULL CHECK (octet_length(fingerprint) = 32), -- of the request that made it
  created_at           timestamptz NOT NULL DEFAULT now(),
  changed_at           timestamptz NOT NULL DEFAULT now(),
  CHECK ((state = 'disabled') = (disabled_reason IS NOT NULL) AND (state = 'disabled') = (disabled_at IS NOT NULL)),
  CHECK ((consecutive_failures > 0) = (failing_since IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX webhook_endpoint_client ON webhook_endpoint (client_id, id) WHERE state <> 'deleted';
CREATE UNIQUE INDEX webhook_endpoint_request ON webhook_endpoint (client_id, request_id) WHERE request_id <> '' AND state <> 'deleted';

-- Signing secrets, sealed with a key that only the services have. All that have not expired sign.
CREATE TABLE webhook_secret (
  id          uuid PRIMARY KEY DEFAULT uuid_v7(),
  endpoint_id uuid NOT NULL REFERENCES webhook_endpoint (id) ON DELETE CASCADE,
  sealed      bytea NOT NULL,
  request_id  text NOT NULL DEFAULT '',
  grace       interval NOT NULL DEFAULT '0', -- that the ones before it were given
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz -- NULL for the newest
);
CREATE UNIQUE INDEX webhook_secret_newest ON webhook_secret (endpoint_id) WHERE expires_at IS NULL;
CREATE INDEX webhook_secret_endpoint ON webhook_secret (endpoint_id);
CREATE UNIQUE INDEX webhook_secret_request ON webhook_secret (endpoint_id, request_id) WHERE request_id <> '';

-- One event of one ticket for one endpoint, written in the transaction that made the event true. The row stays when it
-- is delivered: it is what keeps an endpoint from being told twice, and what a ticket's next sequence number follows.
-- It carries no foreign keys: their checks would lock one and the same endpoint for every row of every batch.
--
-- occasion is 0, or the promotion that made an answer the ticket's once more: a version can be promoted, replaced and
-- promoted again.
CREATE TABLE webhook_delivery (
  id              uuid PRIMARY KEY DEFAULT uuid_v7(), -- the webhook-id
  endpoint_id     uuid NOT NULL,
  event           text NOT NULL CHECK (event IN
                    ('evaluation.succeeded', 'evaluation.dead_letter', 'evaluation.superseded', 'endpoint.test')),
  ticket_id       uuid,
  idempotency_key text,
  occasion        bigint NOT NULL DEFAULT 0,
  sequence        bigint CHECK (sequence > 0), -- of the events of this ticket for this endpoint, from 1, without gaps
  body            bytea NOT NULL,
  state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'delivered', 'failed')),
  attempts        integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  available_at    timestamptz NOT NULL DEFAULT now(),
  lease_id        uuid,
  locked_by       text,
  locked_until    timestamptz,
  last_status     integer, -- of HTTP; NULL where there was no response
  last_reason     text,
  last_attempt_at timestamptz,
  created_at      timestamptz NOT NULL DEFAULT now(),
  finished_at     timestamptz,
  CHECK ((event = 'endpoint.test') = (ticket_id IS NULL) AND num_nulls(ticket_id, idempotency_key, sequence) IN (0, 3)),
  CHECK ((occasion > 0) = (event = 'evaluation.superseded')),
  CHECK ((state = 'sending') = (lease_id IS NOT NULL)),
  CHECK ((state = 'sending') = (locked_by IS NOT NULL)),
  CHECK ((state = 'sending') = (locked_until IS NOT NULL)),
  CHECK ((state IN ('delivered', 'failed')) = (finished_at IS NOT NULL))
) WITH (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX webhook_delivery_once ON webhook_delivery (endpoint_id, ticket_id, event, idempotency_key, occasion);
CREATE UNIQUE INDEX webhook_delivery_sequence ON webhook_delivery (endpoint_id, ticket_id, sequence);
-- The claim's order within an endpoint, exactly.
CREATE INDEX webhook_delivery_due ON webhook_delivery (endpoint_id, available_at, id) WHERE state = 'pending';
-- As many as requests are under way.
CREATE INDEX webhook_delivery_sending ON webhook_delivery (endpoint_id) WHERE state = 'sending';
CREATE INDEX webhook_delivery_leased ON webhook_delivery (locked_by) WHERE state = 'sending';
CREATE INDEX webhook_delivery_failed ON webhook_delivery (endpoint_id, finished_at, id) WHERE state = 'failed';
-- An endpoint's deliveries, newest first: the order of ListDeliveries.
CREATE INDEX webhook_delivery_newest ON webhook_delivery (endpoint_id, id);

-- How far the tickets have been looked through whose answer a promotion has changed: one row for each promotion, made
-- and worked off by the workers, chunk by chunk; a chunk's deliveries and its progress commit together.
CREATE TABLE webhook_supersession (
  promotion_id bigint PRIMARY KEY REFERENCES version_promotion (id),
  -- walking: all tickets; tail: those of the promotion's minutes once more; done.
  state        text NOT NULL DEFAULT 'walking' CHECK (state IN ('walking', 'tail', 'done')),
  barrier      xid8 NOT NULL DEFAULT pg_snapshot_xmax(pg_current_snapshot()), -- who began before this may not know of the promotion
  client_id    text NOT NULL DEFAULT '',
  created_at   timestamptz NOT NULL DEFAULT 'epoch', -- of the last ticket
  ticket_id    uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
  told         bigint NOT NULL DEFAULT 0 CHECK (told >= 0),
  changed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX webhook_supersession_open ON webhook_supersession (promotion_id) WHERE state <> 'done';
