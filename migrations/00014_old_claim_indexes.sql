-- +goose NO TRANSACTION
-- contract: no statement has needed these since 00013. A worker from before that would sort a long queue for each claim: stop
-- such workers first where the queue is long.
-- +goose Up

SET lock_timeout = 0; -- it waits for transactions to end, and nobody waits for it
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_claim;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_leased;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead_newest;
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_dead_reason;
SET lock_timeout = '10s';
