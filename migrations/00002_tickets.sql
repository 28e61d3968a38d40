-- +goose Up

CREATE TABLE ticket (
  id            uuid PRIMARY KEY,
  client_id     text NOT NULL CHECK (client_id <> ''),
  external_id   text NOT NULL DEFAULT '',
  subject       text NOT NULL,
  message       text NOT NULL,
  content_hash  bytea NOT NULL CHECK (octet_length(content_hash) = 32),
  trace_context text NOT NULL DEFAULT '',
  created_at    timestamptz NOT NULL DEFAULT now(),
  erased_at     timestamptz, -- its text is gone for good; all that else is known of it stays
  CHECK (erased_at IS NULL OR subject = '' AND message = '')
);
-- A client's tickets, newest first: the order of ListTickets.
CREATE INDEX ticket_client_created ON ticket (client_id, created_at, id);
-- All tickets of one content: the followers of an evaluation.
CREATE INDEX ticket_content ON ticket (content_hash);
-- Recent tickets of all clients: reconciliation and reprocessing read ranges of it.
CREATE INDEX ticket_created ON ticket USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

CREATE INDEX ticket_erased ON ticket (erased_at) WHERE erased_at IS NOT NULL;

-- The ticket itself while it has its text, else the first that has the same; NULL when all of them are erased.
CREATE FUNCTION ticket_with_text(ticket_id uuid, content_hash bytea) RETURNS uuid
LANGUAGE sql STABLE
RETURN coalesce((SELECT t.id FROM ticket t WHERE t.id = $1 AND t.erased_at IS NULL),
                (SELECT t.id FROM ticket t WHERE t.content_hash = $2 AND t.erased_at IS NULL ORDER BY t.id LIMIT 1));

-- Promise 2. The row is inserted first in the transaction that creates the ticket, so that of two requests
-- with one key the second waits for the first, and then replays it or is refused.
CREATE TABLE client_request (
  scope           text NOT NULL,
  key             text NOT NULL,
  fingerprint     bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
  response        bytea NOT NULL,
  response_schema integer NOT NULL CHECK (response_schema > 0),
  ticket_id       uuid NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  expires_at      timestamptz NOT NULL CHECK (expires_at > created_at),
  PRIMARY KEY (scope, key)
);
CREATE INDEX client_request_expires ON client_request (expires_at);
