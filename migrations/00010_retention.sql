-- +goose Up

-- Up to where the retention of responses, tickets and deliveries has been looked after: what is older is erased, and not
-- looked at again.
CREATE TABLE retention (
  subject text PRIMARY KEY CHECK (subject IN ('response', 'ticket', 'delivery')),
  last_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);
INSERT INTO retention (subject) VALUES ('response'), ('ticket'), ('delivery');
GRANT SELECT, UPDATE (last_id) ON retention TO evalonce_sweeper;
