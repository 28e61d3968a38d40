-- name: DecisionsAfter :many
-- A chunk of the results in the order of their keys.
SELECT idempotency_key, department, is_urgent, urgency_score, policy_version, priority, queue
FROM evaluation_result
WHERE idempotency_key > @after
ORDER BY idempotency_key
LIMIT @most;

-- name: SetDecisions :execrows
UPDATE evaluation_result r
SET policy_version = @policy_version, priority = u.priority, queue = u.queue
FROM ROWS FROM (unnest(@keys::text[]), unnest(@priorities::text[]), unnest(@queues::text[])) AS u(key, priority, queue)
WHERE r.idempotency_key = u.key;
