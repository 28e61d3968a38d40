-- The rows of one ticket. The key comes first: a request that was there already writes nothing else.
-- $1 scope, $2 key, $3 content hash, $4 response, $5 ticket, $6 subject, $7 message
WITH request AS (
  INSERT INTO client_request (scope, key, fingerprint, response, response_schema, ticket_id, expires_at)
  VALUES ($1, $2, $3, $4, 1, $5, now() + interval '7 days')
  ON CONFLICT DO NOTHING
  RETURNING ticket_id
), stored AS (
  INSERT INTO ticket (id, client_id, subject, message, content_hash)
  SELECT ticket_id, 'bench', $6, $7, $3 FROM request
  RETURNING id
)
INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane)
SELECT evaluation_key($3, v.digest), $3, s.id, v.id, v.route, 'live'
FROM stored s
CROSS JOIN active_version a
JOIN evaluator_version v ON v.id = a.version_id
ON CONFLICT DO NOTHING
