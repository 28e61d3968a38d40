-- +goose Up
ALTER TABLE model_call ADD COLUMN next_region text DEFAULT 'unknown';
