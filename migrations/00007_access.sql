-- +goose Up

-- Who may call, and as whom. What is stored of a token is its SHA-256, so that a copy of this table opens nothing.
CREATE TABLE api_token (
  id         uuid PRIMARY KEY DEFAULT uuid_v7(),
  client_id  text NOT NULL CHECK (client_id ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$'),
  name       text NOT NULL CHECK (name <> '' AND length(name) <= 128), -- what it is for
  roles      text[] NOT NULL CHECK (cardinality(roles) > 0 AND roles <@ ARRAY[
               'tickets:write', 'tickets:read', 'tickets:read-all', 'webhooks:write', 'admin:read', 'admin:write']),
  digest     bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
  created_by text NOT NULL CHECK (created_by <> ''),
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz CHECK (expires_at > created_at),
  revoked_by text,
  revoked_at timestamptz,
  CHECK ((revoked_by IS NULL) = (revoked_at IS NULL))
);
-- A name is free again once its token is revoked.
CREATE UNIQUE INDEX api_token_name ON api_token (client_id, name) WHERE revoked_at IS NULL;
