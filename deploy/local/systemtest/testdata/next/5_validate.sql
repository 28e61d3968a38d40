-- +goose Up
ALTER TABLE evaluation_outbox VALIDATE CONSTRAINT evaluation_outbox_next_weight_check;
