-- An operator may recall the calls of a dead letter, to buy its answer again; recalled_by then names the replay that did
-- it. The calls of a key that are recalled by the same replay, or by none, are a life of the key: what holds of the calls
-- of a key holds within each of its lives.
--
-- Every check names the first of what contradicts its promise, with the number of all: tickets, versions and calls
-- by their id, evaluations by their key, routes by name, sums of money by scope and period.
--
-- The tables are read whole, so what counts is that two large ones meet by a hash. Where a check is of all calls of a
-- key it begins with those that no result names, which are few, and looks the others up; to group or sort the ledger
-- by key would take ten times as long.

-- name: SetStatementTimeout :exec
-- For this transaction, in milliseconds.
SELECT set_config('statement_timeout', @milliseconds::text, true);

-- name: TicketWithoutWork :many
-- By the content, not by the key: two scans and a hash instead of a look-up for every ticket and version. KeyDiffers
-- holds the two equal.
SELECT t.id::text AS id, count(*) OVER () AS count
FROM ticket t
WHERE t.erased_at IS NULL
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.content_hash = t.content_hash)
  AND NOT EXISTS (SELECT FROM evaluation_outbox o WHERE o.content_hash = t.content_hash)
ORDER BY 1 LIMIT @examples;

-- name: RequestWithoutTicket :many
-- The scope of a request is its client's id, a space, and the method.
SELECT r.ticket_id::text AS id, count(*) OVER () AS count
FROM client_request r
LEFT JOIN ticket t ON t.id = r.ticket_id
WHERE t.id IS NULL OR NOT starts_with(r.scope, t.client_id || ' ')
ORDER BY 1 LIMIT @examples;

-- name: ResponseBoughtAgain :many
-- Once a response has arrived no further call of its key is opened. Two calls may both be answered all the same:
-- the second was opened while the first was taken for lost. A call's id has the time it was opened at, in
-- milliseconds; a call that never left is none. Both times are taken under the lock of the work. A response of another
-- life may be bought again, unless it was the answer.
SELECT x.idempotency_key AS id, count(*) OVER () AS count
FROM model_call x
JOIN model_call y ON y.idempotency_key = x.idempotency_key AND y.outcome <> 'unsent'
WHERE x.outcome <> 'unsent'
  AND NOT EXISTS (SELECT FROM evaluation_result n WHERE n.model_call_id = x.id)
  AND (x.outcome IN ('saved', 'rejected', 'answered') AND y.id >= uuid_v7_floor(x.finished_at + interval '1 millisecond')
         AND (x.outcome = 'answered' OR x.recalled_by IS NOT DISTINCT FROM y.recalled_by)
       OR y.outcome IN ('saved', 'rejected', 'answered') AND x.id >= uuid_v7_floor(y.finished_at + interval '1 millisecond')
         AND (y.outcome = 'answered' OR x.recalled_by IS NOT DISTINCT FROM y.recalled_by))
GROUP BY x.idempotency_key
ORDER BY 1 LIMIT @examples;

-- name: PaidTwice :many
-- A response that comes in time ends the calls of its key's life. It is told apart from a late one by the mark of the ledger
-- and not by the times, which a saved response changes when it is judged.
SELECT x.idempotency_key AS id, count(*) OVER () AS count
FROM model_call x
WHERE x.outcome IN ('saved', 'rejected', 'answered') AND NOT x.late
  AND NOT EXISTS (SELECT FROM evaluation_result n WHERE n.model_call_id = x.id)
GROUP BY x.idempotency_key, x.recalled_by
HAVING count(*) + EXISTS (SELECT FROM evaluation_result r JOIN model_call m ON m.id = r.model_call_id
                          WHERE r.idempotency_key = x.idempotency_key AND m.idempotency_key = x.idempotency_key
                            AND m.outcome = 'answered' AND NOT m.late AND m.recalled_by IS NOT DISTINCT FROM x.recalled_by)::int > 1
ORDER BY 1 LIMIT @examples;

-- name: PaidTooOften :many
-- A call is opened only while those of unknown outcome before it are within the version's allowance, and one whose
-- response arrived in time is the last. So what is paid, or may be, is at most one call more than the allowance,
-- also when a late response has made a known call of an unknown one.
SELECT x.idempotency_key AS id, count(*) OVER () AS count
FROM model_call x
JOIN evaluator_version v ON v.id = x.version_id
WHERE x.outcome IN ('open', 'unknown', 'saved', 'rejected', 'answered')
  AND NOT EXISTS (SELECT FROM evaluation_result n WHERE n.model_call_id = x.id)
GROUP BY x.idempotency_key, x.recalled_by, v.unknown_policy, v.max_unknown_calls
HAVING count(*) + EXISTS (SELECT FROM evaluation_result r JOIN model_call m ON m.id = r.model_call_id
                          WHERE r.idempotency_key = x.idempotency_key AND m.recalled_by IS NOT DISTINCT FROM x.recalled_by)::int
       -- With recover a call more is open while the lost ones are asked for, and closed unsent if none may follow.
       > CASE v.unknown_policy WHEN 'hold' THEN 1 WHEN 'recover' THEN v.max_unknown_calls + 2 ELSE v.max_unknown_calls + 1 END
ORDER BY 1 LIMIT @examples;

-- name: UnknownCallsDiffer :many
-- A late response makes a known call of an unknown one, and leaves the count as it is. Work beside a result may have
-- been made anew, with a count of its own.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
LEFT JOIN (
  SELECT m.idempotency_key, count(*) AS unknown
  FROM model_call m
  WHERE (m.outcome = 'unknown' OR m.late) AND m.recalled_by IS NULL
  GROUP BY m.idempotency_key
) c ON c.idempotency_key = o.idempotency_key
WHERE o.unknown_calls <> coalesce(c.unknown, 0)
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)
ORDER BY 1 LIMIT @examples;

-- name: OpenCallWithoutLease :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.outcome = 'open'
  AND NOT EXISTS (SELECT FROM evaluation_outbox o WHERE o.idempotency_key = m.idempotency_key AND o.lease_id = m.lease_id)
ORDER BY 1 LIMIT @examples;

-- name: LeaseWithoutCall :many
-- Leased work has its ledger row, or needs none because a response is here already.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
WHERE o.status = 'processing'
  AND NOT EXISTS (SELECT FROM model_call m
                  WHERE m.idempotency_key = o.idempotency_key
                    AND (m.outcome = 'open' AND m.lease_id = o.lease_id OR m.outcome IN ('saved', 'rejected') AND m.recalled_by IS NULL))
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)
ORDER BY 1 LIMIT @examples;

-- name: LeaseWithTwoCalls :many
SELECT min(m.idempotency_key)::text AS id, count(*) OVER () AS count
FROM model_call m
GROUP BY m.lease_id
HAVING count(*) > 1
ORDER BY 1 LIMIT @examples;

-- name: AttemptOutOfBounds :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
JOIN evaluator_version v ON v.id = m.version_id
WHERE m.attempt NOT BETWEEN 1 AND v.max_attempts
ORDER BY 1 LIMIT @examples;

-- name: RecallWithoutReplay :many
-- A replay recalls calls of dead letters, which are over; and those that died before it was made, so that their calls
-- are older.
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.recalled_by IS NOT NULL
  AND (m.outcome = 'open'
       OR NOT EXISTS (SELECT FROM reprocess_job j
                      WHERE j.id = m.recalled_by AND j.kind = 'replay' AND j.spec ->> 'mode' = 'recall' AND j.created_at >= m.started_at))
ORDER BY 1 LIMIT @examples;

-- name: CallWithoutEvaluation :many
-- Open, saved and answered calls without an evaluation have checks of their own.
SELECT x.id::text AS id, count(*) OVER () AS count
FROM model_call x
LEFT JOIN evaluation_result r ON r.idempotency_key = x.idempotency_key
LEFT JOIN evaluation_outbox o ON o.idempotency_key = x.idempotency_key
WHERE NOT EXISTS (SELECT FROM evaluation_result n WHERE n.model_call_id = x.id)
  AND x.version_id IS DISTINCT FROM coalesce(r.version_id, o.version_id)
  AND (coalesce(r.version_id, o.version_id) IS NOT NULL OR x.outcome NOT IN ('open', 'saved', 'answered'))
ORDER BY 1 LIMIT @examples;

-- name: ResponseLost :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.outcome = 'saved'
  AND (m.response IS NULL
         AND NOT EXISTS (SELECT FROM evaluation_outbox o JOIN ticket t ON t.content_hash = o.content_hash
                         WHERE o.idempotency_key = m.idempotency_key AND t.erased_at IS NOT NULL)
         AND NOT EXISTS (SELECT FROM evaluation_result r JOIN ticket t ON t.content_hash = r.content_hash
                         WHERE r.idempotency_key = m.idempotency_key AND t.erased_at IS NOT NULL)
       OR NOT EXISTS (SELECT FROM evaluation_outbox o WHERE o.idempotency_key = m.idempotency_key)
          AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = m.idempotency_key))
ORDER BY 1 LIMIT @examples;

-- name: AnswerWithoutResult :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.outcome = 'answered'
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = m.idempotency_key)
ORDER BY 1 LIMIT @examples;

-- name: DeadBesideResult :many
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
JOIN evaluation_result r ON r.idempotency_key = o.idempotency_key
WHERE o.status = 'dead'
ORDER BY 1 LIMIT @examples;

-- name: DeadWithoutCause :many
-- The cause is in the ledger: a call that brought no answer, or brought it when the work was dead already. Recalled ones
-- are the cause of an earlier death.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
WHERE o.status = 'dead'
  AND (o.dead_at IS NULL OR coalesce(o.last_class, '') = '' OR coalesce(o.last_reason, '') = ''
       OR o.last_reason <> 'erased' -- which needs no call
         AND NOT EXISTS (SELECT FROM model_call m
                         WHERE m.idempotency_key = o.idempotency_key AND m.outcome NOT IN ('open', 'unsent') AND m.recalled_by IS NULL))
ORDER BY 1 LIMIT @examples;

-- name: WorkWithoutText :many
-- What is due, or under way, can be sent.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
JOIN ticket t ON t.id = o.ticket_id
WHERE o.status <> 'dead' AND t.erased_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = o.idempotency_key)
ORDER BY 1 LIMIT @examples;

-- name: TextLeft :many
-- A response of which all tickets are erased. One may have come late: the sweeper takes it away.
SELECT m.id::text AS id, count(*) OVER () AS count
FROM ticket t
CROSS JOIN evaluator_version v
JOIN model_call m ON m.idempotency_key = evaluation_key(t.content_hash, v.digest)
WHERE t.erased_at IS NOT NULL AND (m.response IS NOT NULL OR m.error IS NOT NULL)
  AND ticket_with_text(t.id, t.content_hash) IS NULL
GROUP BY m.id
ORDER BY 1 LIMIT @examples;

-- name: DeadByOutage :many
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
WHERE o.status = 'dead' AND o.last_class IN ('throttled', 'operator')
ORDER BY 1 LIMIT @examples;

-- name: UnroutableWork :many
-- Work is claimed by its route; under any but its version's it waits for ever, or goes to another account.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
JOIN evaluator_version v ON v.id = o.version_id
WHERE o.route <> v.route
ORDER BY 1 LIMIT @examples;

-- name: KeyDiffers :many
SELECT e.idempotency_key::text AS id, count(*) OVER () AS count
FROM (
  SELECT o.idempotency_key, o.content_hash, o.version_id FROM evaluation_outbox o
  UNION ALL
  SELECT r.idempotency_key, r.content_hash, r.version_id FROM evaluation_result r
) e
LEFT JOIN evaluator_version v ON v.id = e.version_id
WHERE e.idempotency_key IS DISTINCT FROM evaluation_key(e.content_hash, v.digest)
ORDER BY 1 LIMIT @examples;

-- name: ContentDiffers :many
SELECT e.id::text AS id, count(*) OVER () AS count
FROM (
  SELECT o.idempotency_key AS id FROM evaluation_outbox o
  WHERE NOT EXISTS (SELECT FROM ticket t WHERE t.id = o.ticket_id AND t.content_hash = o.content_hash)
  UNION ALL
  SELECT r.idempotency_key FROM evaluation_result r
  WHERE NOT EXISTS (SELECT FROM ticket t WHERE t.id = r.ticket_id AND t.content_hash = r.content_hash)
) e
ORDER BY 1 LIMIT @examples;

-- name: ResultWithoutAnswer :many
SELECT r.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_result r
WHERE NOT EXISTS (
  SELECT FROM model_call m
  WHERE m.id = r.model_call_id AND m.idempotency_key = r.idempotency_key AND m.version_id = r.version_id AND m.outcome = 'answered')
ORDER BY 1 LIMIT @examples;

-- name: AnswerOffContract :many
SELECT r.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_result r
JOIN evaluator_version v ON v.id = r.version_id
WHERE r.prompt_version <> v.prompt_version OR r.policy_version = ''
  OR (r.version_id, r.department) NOT IN (
    SELECT d.id, coalesce(d.department ->> 'name', '') -- with a NULL among them NOT IN is never true
    FROM (SELECT w.id, jsonb_array_elements(w.departments) AS department FROM evaluator_version w) d)
ORDER BY 1 LIMIT @examples;

-- name: ActiveVersionDiffers :many
SELECT coalesce(h.active, h.promoted)::text AS id, count(*) OVER () AS count
FROM (
  SELECT (SELECT a.version_id FROM active_version a) AS active,
         (SELECT p.version_id FROM version_promotion p ORDER BY p.id DESC LIMIT 1) AS promoted
) h
WHERE h.active IS DISTINCT FROM h.promoted
ORDER BY 1 LIMIT @examples;

-- name: ActivePolicyDiffers :many
SELECT coalesce(h.active, h.activated)::text AS id, count(*) OVER () AS count
FROM (
  SELECT (SELECT a.policy_id FROM active_policy a) AS active,
         (SELECT p.policy_id FROM policy_activation p ORDER BY p.id DESC LIMIT 1) AS activated
) h
WHERE h.active IS DISTINCT FROM h.activated
ORDER BY 1 LIMIT @examples;

-- name: HeldForNobody :many
-- A job that was resumed lets its work go, and one that was canceled takes it back, chunk by chunk.
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
LEFT JOIN reprocess_job j ON j.id = o.job_id
WHERE o.status = 'pending' AND o.available_at = 'infinity'
  AND (j.id IS NULL OR j.state IN ('canceled', 'done') AND NOT j.unsettled)
ORDER BY 1 LIMIT @examples;

-- name: ChargeDiffers :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.charged_usd <> charge_of(m.outcome, m.cost_usd, m.charged_usd)
ORDER BY 1 LIMIT @examples;

-- name: SpendDiffers :many
-- Of this month and the one before: of older ones the ledger may have let go its calls.
WITH charged AS MATERIALIZED (
  SELECT v.route, spend_period('day', m.started_at) AS day, sum(m.charged_usd) AS usd
  FROM model_call m
  JOIN evaluator_version v ON v.id = m.version_id
  WHERE m.charged_usd IS NOT NULL
    AND m.id >= uuid_v7_floor(spend_period('month', now() - interval '1 month')::timestamp AT TIME ZONE 'UTC')
  GROUP BY v.route, spend_period('day', m.started_at)
)
SELECT (s.scope || ', ' || s.period || ' of ' || s.period_start)::text AS id, count(*) OVER () AS count
FROM spend s
WHERE s.period_start >= spend_period('month', now() - interval '1 month')
  AND s.used_usd <> s.uncharged_usd + coalesce((
    SELECT sum(c.usd) FROM charged c
    WHERE s.scope IN ('*', c.route) AND s.period_start = date_trunc(s.period, c.day::timestamp)::date), 0)
ORDER BY 1 LIMIT @examples;

-- name: WorkBesideResult :many
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
JOIN evaluation_result r ON r.idempotency_key = o.idempotency_key
WHERE o.status <> 'dead'
ORDER BY 1 LIMIT @examples;

-- name: LeaseExpired :many
SELECT o.idempotency_key AS id, count(*) OVER () AS count
FROM evaluation_outbox o
WHERE o.status = 'processing' AND o.locked_until < now()
ORDER BY 1 LIMIT @examples;

-- name: CallsOverLimit :many
SELECT r.name AS id, count(*) OVER () AS count
FROM provider_route r
WHERE r.concurrent_calls < (SELECT count(*) FROM evaluation_outbox o WHERE o.route = r.name AND o.status = 'processing')
ORDER BY 1 LIMIT @examples;

-- name: ResponseUnused :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
WHERE m.outcome = 'saved' AND m.response IS NOT NULL
  AND (EXISTS (SELECT FROM evaluation_result r WHERE r.idempotency_key = m.idempotency_key)
       OR EXISTS (SELECT FROM evaluation_outbox o WHERE o.idempotency_key = m.idempotency_key AND o.status = 'dead'))
ORDER BY 1 LIMIT @examples;

-- name: CallInDefaultPartition :many
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call_default m
ORDER BY 1 LIMIT @examples;

-- name: Unevaluated :many
-- One page of tickets, newest first by the time in their ids: those with neither work nor a result under any version,
-- and the oldest of the page as its end. The active version is looked up first and then the newest, so that the first
-- look-up is the last one for most tickets; a join in any other order would make one for each version.
WITH version AS MATERIALIZED (
  SELECT v.digest
  FROM evaluator_version v
  LEFT JOIN active_version a ON a.version_id = v.id
  ORDER BY a.version_id, v.created_at DESC
), page AS MATERIALIZED (
  SELECT t.id, t.content_hash, t.trace_context
  FROM ticket t
  WHERE t.id < @before AND t.erased_at IS NULL
    AND t.id >= coalesce(uuid_v7_floor(now() - make_interval(secs => sqlc.narg(window_seconds)::float8)), '00000000-0000-0000-0000-000000000000')
  ORDER BY t.id DESC
  LIMIT @most
)
SELECT p.id, p.content_hash, p.trace_context, false AS page_end
FROM page p
WHERE NOT EXISTS (
  SELECT
  FROM version v
  CROSS JOIN LATERAL (SELECT evaluation_key(p.content_hash, v.digest) AS idempotency_key) k
  LEFT JOIN evaluation_result r ON r.idempotency_key = k.idempotency_key
  LEFT JOIN evaluation_outbox o ON o.idempotency_key = k.idempotency_key
  WHERE r.idempotency_key IS NOT NULL OR o.idempotency_key IS NOT NULL)
UNION ALL
(SELECT p.id, p.content_hash, '', true FROM page p ORDER BY p.id LIMIT 1);

-- name: ModelSubstituted :many
-- A snapshot of the model that was asked, named by its date, is no other model; nor is one that does not say what it is.
SELECT m.id::text AS id, count(*) OVER () AS count
FROM model_call m
JOIN evaluator_version v ON v.id = m.version_id
CROSS JOIN LATERAL (SELECT regexp_replace(v.model, '-latest$', '') AS model) asked
WHERE m.served_model <> '' AND m.served_model <> v.model
  AND NOT (starts_with(m.served_model, asked.model)
           AND substr(m.served_model, length(asked.model) + 1) ~ '^[-@](\d{8}|\d{4}|\d{4}-\d{2}-\d{2})$')
ORDER BY 1 LIMIT @examples;
