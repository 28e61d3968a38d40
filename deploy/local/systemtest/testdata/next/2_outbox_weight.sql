-- +goose Up
ALTER TABLE evaluation_outbox
  ADD COLUMN next_weight integer NOT NULL DEFAULT 1,
  ADD CONSTRAINT evaluation_outbox_next_weight_check CHECK (next_weight > 0) NOT VALID;
