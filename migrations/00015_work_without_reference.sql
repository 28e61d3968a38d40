-- +goose Up

-- A ticket is never deleted, and nobody has the right to. The check that it is there locked it once for each row of work, and
-- took as long as the insert itself: work is made in the transaction of its ticket, or of tickets that are read in it.
ALTER TABLE evaluation_outbox DROP CONSTRAINT evaluation_outbox_ticket_id_fkey;
