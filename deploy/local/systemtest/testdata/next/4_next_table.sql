-- +goose Up
CREATE TABLE next_tag (
  ticket_id uuid NOT NULL REFERENCES ticket (id),
  tag       text NOT NULL,
  PRIMARY KEY (ticket_id, tag)
);
