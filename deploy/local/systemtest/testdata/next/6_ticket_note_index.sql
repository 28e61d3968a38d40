-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = 0; -- it waits for transactions to end, and nobody waits for it
DROP INDEX CONCURRENTLY IF EXISTS ticket_next_note; -- the half of one that was interrupted
CREATE INDEX CONCURRENTLY ticket_next_note ON ticket (next_note) WHERE next_note IS NOT NULL;
SET lock_timeout = '10s';
