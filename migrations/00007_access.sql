-- +goose Up

-- Who may call, and as whom: whoever shows a token, or a client certificate with a name. What is stored of a token is its
-- SHA-256, so that a copy of this table opens nothing; of a certificate's name, too, beside the name.
CREATE TABLE api_credential (
  id         uuid PRIMARY KEY DEFAULT uuid_v7(),
  client_id  text NOT NULL CHECK (client_id ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$'),
  name       text NOT NULL CHECK (name <> '' AND length(name) <= 128), -- what it is for
  roles      text[] NOT NULL CHECK (cardinality(roles) > 0 AND roles <@ ARRAY[
               'tickets:write', 'tickets:read', 'tickets:read-all', 'webhooks:write', 'admin:read', 'admin:write']),
  san        text CHECK (san ~ '^(DNS|URI|email):.'), -- subject alternative name of the certificate; NULL for a token
  digest     bytea NOT NULL CHECK (octet_length(digest) = 32),
  created_by text NOT NULL CHECK (created_by <> ''),
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz CHECK (expires_at > created_at),
  revoked_by text,
  revoked_at timestamptz,
  CHECK ((revoked_by IS NULL) = (revoked_at IS NULL))
);
-- A name, and a certificate's, are free again once the credential is revoked.
CREATE UNIQUE INDEX api_credential_name ON api_credential (client_id, name) WHERE revoked_at IS NULL;
CREATE UNIQUE INDEX api_credential_digest ON api_credential (digest) WHERE revoked_at IS NULL;
