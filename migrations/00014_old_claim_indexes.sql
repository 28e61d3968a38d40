-- +goose NO TRANSACTION
-- contract: no statement has needed these since the release with 00013
-- +goose Up

SET lock_timeout = 0; -- it waits for transactions to end, and nobody waits for it
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_claim;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_leased;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead_newest;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead_reason;
SET lock_timeout = '10s';
