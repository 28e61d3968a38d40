-- +goose NO TRANSACTION
-- +goose Up

-- In place of the indexes that are partial by the status, which a claim changes: what is dead has the time since when.
SET lock_timeout = 0; -- they wait for transactions to end, and nobody waits for them

-- The claim's order, exactly. What is being processed is in it, too, and is passed over.
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_due;
CREATE INDEX CONCURRENTLY evaluation_outbox_due ON evaluation_outbox (route, lane, available_at, idempotency_key) WHERE dead_at IS NULL;

DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_buried;
CREATE INDEX CONCURRENTLY evaluation_outbox_buried ON evaluation_outbox (last_class, last_reason, version_id, dead_at)
  WHERE dead_at IS NOT NULL;

-- The order of the list of dead letters; they die in it, so that a page is a range.
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_buried_newest;
CREATE INDEX CONCURRENTLY evaluation_outbox_buried_newest ON evaluation_outbox (dead_at, idempotency_key) WHERE dead_at IS NOT NULL;

-- Dead letters by what they are for, without the discarded ones: counted along the index alone.
DROP INDEX CONCURRENTLY IF EXISTS evaluation_outbox_buried_reason;
CREATE INDEX CONCURRENTLY evaluation_outbox_buried_reason ON evaluation_outbox (last_class, last_reason)
  WHERE dead_at IS NOT NULL AND discarded_at IS NULL;

SET lock_timeout = '10s';
