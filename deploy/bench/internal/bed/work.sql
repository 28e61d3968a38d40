-- Work for the tickets of these numbers: due in their order, or retries that are due later.
INSERT INTO evaluation_outbox (idempotency_key, content_hash, ticket_id, version_id, route, lane, attempts, available_at, created_at,
                               last_class, last_reason)
SELECT evaluation_key(sha256(n::text::bytea), v.digest), sha256(n::text::bytea),
       (lpad(to_hex(1750000000000 + n / 1000), 12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
       v.id, v.route, @lane::text, (@due_seconds::float8 > 0)::int,
       transaction_timestamp() - interval '1 minute' + n * interval '1 microsecond' + make_interval(secs => @due_seconds::float8),
       transaction_timestamp() - interval '1 minute' + n * interval '1 microsecond',
       CASE WHEN @due_seconds::float8 > 0 THEN 'transient' END, CASE WHEN @due_seconds::float8 > 0 THEN 'server_error' END
FROM generate_series(@first::bigint, @first::bigint + @count::bigint - 1) n
CROSS JOIN (SELECT id, digest, route FROM evaluator_version WHERE id = @version::text) v
