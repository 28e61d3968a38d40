-- Tickets with their numbers in them. The identifiers are of version 7, in the order of the numbers.
INSERT INTO ticket (id, client_id, subject, message, content_hash, created_at)
SELECT (lpad(to_hex(1750000000000 + n / 1000), 12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
       'bench', 'Ticket ' || n,
       'I was charged twice for order ' || n || ', once on Monday and once today. Please refund one of the two payments to my card.',
       sha256(n::text::bytea), transaction_timestamp() - interval '1 minute' + n * interval '1 microsecond'
FROM generate_series(@first::bigint, @first::bigint + @count::bigint - 1) n
