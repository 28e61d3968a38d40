-- What a next release could expand the schema by. Each large table has a migration of its own: one that locks two waits for
-- the second with the first locked, and so may the services, the other way round.
-- +goose Up
ALTER TABLE ticket ADD COLUMN next_note text;
