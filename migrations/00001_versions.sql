-- +goose Up

-- Time-ordered identifiers (RFC 9562, version 7) made by the database's clock: 48 bits of milliseconds, the version, and
-- what follows the version in a random value of version 4. Through text, which is the fastest way there is in SQL.
CREATE FUNCTION uuid_v7(at timestamptz DEFAULT clock_timestamp()) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
  SELECT (lpad(to_hex((date_part('epoch', at) * 1000)::bigint), 12, '0') || '7' || substr(gen_random_uuid()::text, 16))::uuid
$$;

-- The smallest version 7 identifier of an instant: the bound of a range of identifiers.
-- +goose StatementBegin
CREATE FUNCTION uuid_v7_floor(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (encode(substring(int8send((extract(epoch FROM at) * 1000)::bigint) FROM 3), 'hex')
          || '70008000000000000000')::uuid
$$;
-- +goose StatementEnd

-- The second step of the key, the twin of content.Key in Go; golden vectors hold the two equal.
CREATE FUNCTION evaluation_key(content_hash bytea, version_digest bytea) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN encode(substring(sha256('evalonce/key/1'::bytea || content_hash || version_digest) FROM 1 FOR 16), 'hex');

-- A route is one account at one provider: what is exhausted, throttled or broken together.
-- The states are a circuit breaker's: closed lets calls pass, open lets none, half_open one probe;
-- halted is open for a reason that only an operator can mend, and is probed at a slower pace.
CREATE TABLE provider_route (
  name                 text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  state                text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open', 'halted')),
  reason               text NOT NULL DEFAULT '',
  not_before           timestamptz NOT NULL DEFAULT 'epoch',
  consecutive_failures integer NOT NULL DEFAULT 0 CHECK (consecutive_failures >= 0),
  trips                integer NOT NULL DEFAULT 0 CHECK (trips >= 0),
  probe_id             uuid,
  call_timeout         interval NOT NULL DEFAULT '60 seconds' CHECK (call_timeout > interval '0'),
  changed_at           timestamptz NOT NULL DEFAULT now(),
  CHECK ((state = 'half_open') = (probe_id IS NOT NULL))
);

-- Everything that decides an answer, and what it costs. A row never changes: an edited prompt is a new version.
CREATE TABLE evaluator_version (
  id                        text PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  prompt_version            text NOT NULL CHECK (prompt_version <> ''),
  provider                  text NOT NULL CHECK (provider IN ('openai', 'openai_responses', 'anthropic')),
  model                     text NOT NULL CHECK (model <> ''),
  effort                    text NOT NULL DEFAULT '',
  prompt                    text NOT NULL,
  departments               jsonb NOT NULL CHECK (jsonb_typeof(departments) = 'array' AND jsonb_array_length(departments) > 0),
  max_output_tokens         integer NOT NULL CHECK (max_output_tokens > 0),
  answer_schema             integer NOT NULL CHECK (answer_schema > 0),
  digest                    bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
  route                     text NOT NULL REFERENCES provider_route (name),
  input_usd_per_mtok        numeric NOT NULL DEFAULT 0 CHECK (input_usd_per_mtok >= 0),
  cached_input_usd_per_mtok numeric NOT NULL DEFAULT 0 CHECK (cached_input_usd_per_mtok >= 0),
  output_usd_per_mtok       numeric NOT NULL DEFAULT 0 CHECK (output_usd_per_mtok >= 0),
  max_attempts              integer NOT NULL DEFAULT 8 CHECK (max_attempts > 0),
  unknown_policy            text NOT NULL DEFAULT 'resend' CHECK (unknown_policy IN ('resend', 'hold', 'recover')),
  max_unknown_calls         integer NOT NULL DEFAULT 2 CHECK (max_unknown_calls >= 0),
  max_age                   interval NOT NULL DEFAULT '24 hours' CHECK (max_age > interval '0'),
  created_by                text NOT NULL,
  created_at                timestamptz NOT NULL DEFAULT now()
);

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: register a new row instead of changing %', TG_TABLE_NAME, OLD.id
    USING ERRCODE = 'restrict_violation';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER evaluator_version_immutable BEFORE UPDATE OR DELETE ON evaluator_version
  FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TABLE active_version (
  singleton   boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  version_id  text NOT NULL REFERENCES evaluator_version (id),
  promoted_by text NOT NULL,
  promoted_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE version_promotion (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  version_id   text NOT NULL REFERENCES evaluator_version (id),
  replaced     text REFERENCES evaluator_version (id),
  promoted_by  text NOT NULL,
  promoted_at  timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER version_promotion_immutable BEFORE UPDATE OR DELETE ON version_promotion
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
