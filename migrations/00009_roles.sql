-- +goose Up

-- What each service may do: as much as its statements need. Whoever a service logs in as is made a member of its role,
-- and of no other; the migrations run as the owner of the tables. A role belongs to the whole server, so another database's
-- migrations may have made it already.
-- +goose StatementBegin
DO $$
DECLARE
  wanted text;
  missing text := '';
BEGIN
  FOREACH wanted IN ARRAY ARRAY['evalonce_ticket_api', 'evalonce_evaluator_worker', 'evalonce_sweeper', 'evalonce_admin'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = wanted);
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
    EXCEPTION
      WHEN duplicate_object OR unique_violation THEN NULL; -- made by another database's in this moment
      WHEN insufficient_privilege THEN missing := missing || format(' CREATE ROLE %I NOLOGIN;', wanted);
    END;
  END LOOP;
  IF missing <> '' THEN
    RAISE EXCEPTION 'role % may not create roles: have an administrator run, and then migrate again:%', current_user, missing
      USING ERRCODE = 'insufficient_privilege';
  END IF;
END
$$;

-- The schema and the record of migrations have names that only the database knows. What runs as the owner must look its
-- tables up in the schema before it looks at anybody's temporary ones.
DO $$
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO evalonce_ticket_api, evalonce_evaluator_worker, evalonce_sweeper, evalonce_admin', current_schema());
  EXECUTE format('ALTER FUNCTION ensure_model_call_partitions(integer) SET search_path = %I, pg_temp', current_schema());
  IF to_regclass('goose_db_version') IS NOT NULL THEN
    GRANT SELECT ON goose_db_version TO evalonce_ticket_api, evalonce_evaluator_worker, evalonce_sweeper, evalonce_admin;
  END IF;
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION ensure_model_call_partitions(integer) FROM PUBLIC;

-- A row can only be locked by who may change it: a grant of one column that is never changed stands for that, here and
-- below.

GRANT SELECT ON active_version, evaluator_version, version_promotion, evaluation_result, ticket_evaluation, ticket
  TO evalonce_ticket_api;
GRANT SELECT (id, trace_id) ON model_call TO evalonce_ticket_api;
GRANT INSERT, UPDATE (trace_context) ON ticket TO evalonce_ticket_api;
GRANT SELECT, INSERT, UPDATE (fingerprint, response, response_schema, ticket_id, created_at, expires_at) ON client_request TO evalonce_ticket_api;
GRANT SELECT, INSERT, UPDATE (ticket_id, status, attempts, available_at, created_at, dead_at, discarded_at, lane, job_id) ON evaluation_outbox
  TO evalonce_ticket_api;
GRANT SELECT ON api_credential TO evalonce_ticket_api;
GRANT SELECT, INSERT,
  UPDATE (url, description, events, state, disabled_reason, disabled_at, listening_since, not_before, consecutive_failures, failing_since, changed_at)
  ON webhook_endpoint TO evalonce_ticket_api;
GRANT SELECT, INSERT, DELETE, UPDATE (expires_at) ON webhook_secret TO evalonce_ticket_api;
GRANT SELECT, INSERT, UPDATE (state, attempts, available_at, finished_at) ON webhook_delivery TO evalonce_ticket_api;

GRANT SELECT ON active_version, evaluator_version, version_promotion, active_policy, policy, spend_limit, ticket TO evalonce_evaluator_worker;
GRANT UPDATE (trace_context) ON ticket TO evalonce_evaluator_worker;
GRANT SELECT, DELETE,
  UPDATE (status, attempts, unknown_calls, available_at, lease_id, locked_by, locked_until, last_class, last_reason, last_error, dead_at)
  ON evaluation_outbox TO evalonce_evaluator_worker;
GRANT SELECT, INSERT ON evaluation_result TO evalonce_evaluator_worker;
GRANT SELECT, INSERT,
  UPDATE (outcome, finished_at, class, reason, error, http_status, provider_request_id, served_model, input_tokens, cached_input_tokens,
          output_tokens, reasoning_tokens, cost_usd, charged_usd, response, trace_id, late)
  ON model_call TO evalonce_evaluator_worker;
GRANT SELECT,
  UPDATE (state, reason, not_before, consecutive_failures, failing_since, trips, probe_id, ramp_id, ramp_level, ramp_calls, ramp_at,
          request_credit, token_credit, token_ratio, refilled_at, short_usd, changed_at)
  ON provider_route TO evalonce_evaluator_worker;
GRANT SELECT, INSERT, UPDATE (used_usd) ON spend TO evalonce_evaluator_worker;
GRANT SELECT, DELETE,
  UPDATE (state, disabled_reason, disabled_at, not_before, consecutive_failures, failing_since, claimed_at, changed_at)
  ON webhook_endpoint TO evalonce_evaluator_worker;
GRANT SELECT, UPDATE (sealed) ON webhook_secret TO evalonce_evaluator_worker;
GRANT SELECT, INSERT, DELETE,
  UPDATE (state, attempts, available_at, lease_id, locked_by, locked_until, last_status, last_reason, last_attempt_at, finished_at)
  ON webhook_delivery TO evalonce_evaluator_worker;
GRANT SELECT, INSERT, UPDATE (state, client_id, created_at, ticket_id, told, changed_at) ON webhook_supersession TO evalonce_evaluator_worker;

-- The sweeper's fsck reads all that there are promises of.
GRANT SELECT ON active_version, evaluator_version, version_promotion, ticket, client_request, admin_request, evaluation_outbox, evaluation_result,
  model_call, model_call_default, provider_route, reprocess_job, spend, spend_limit, webhook_endpoint, webhook_delivery, webhook_supersession
  TO evalonce_sweeper;
GRANT EXECUTE ON FUNCTION ensure_model_call_partitions(integer) TO evalonce_sweeper;
GRANT UPDATE (subject, message, erased_at) ON ticket TO evalonce_sweeper;
GRANT DELETE, UPDATE (created_at) ON client_request, admin_request TO evalonce_sweeper;
GRANT INSERT,
  UPDATE (ticket_id, status, attempts, unknown_calls, available_at, created_at, lease_id, locked_by, locked_until, last_class, last_reason, last_error,
          dead_at, discarded_at, lane, job_id)
  ON evaluation_outbox TO evalonce_sweeper;
GRANT UPDATE (outcome, finished_at, class, reason, error, response) ON model_call TO evalonce_sweeper;
GRANT INSERT, UPDATE (body) ON webhook_delivery TO evalonce_sweeper;

-- The admin's fsck, too.
GRANT SELECT ON active_version, evaluator_version, version_promotion, active_policy, policy, policy_activation, ticket, client_request,
  evaluation_outbox, evaluation_result, model_call, model_call_default, provider_route, spend, spend_limit, ticket_sample, ticket_sample_member,
  webhook_endpoint, webhook_delivery, webhook_supersession
  TO evalonce_admin;
GRANT SELECT, INSERT ON admin_audit TO evalonce_admin;
GRANT SELECT, INSERT, UPDATE (fingerprint, response, created_at, expires_at) ON admin_request TO evalonce_admin;
GRANT INSERT ON evaluator_version, version_promotion, policy, policy_activation TO evalonce_admin;
GRANT INSERT, UPDATE (version_id, promoted_by, promoted_at) ON active_version TO evalonce_admin;
GRANT UPDATE (policy_id, activated_by, activated_at) ON active_policy TO evalonce_admin;
GRANT SELECT, INSERT, UPDATE (revoked_at, revoked_by) ON api_credential TO evalonce_admin;
GRANT INSERT,
  UPDATE (call_timeout, requests_per_minute, tokens_per_minute, concurrent_calls, count_output, request_credit, token_credit, refilled_at,
          state, reason, not_before, consecutive_failures, failing_since, trips, probe_id, ramp_id, ramp_level, ramp_calls, ramp_at,
          paused_at, paused_by, pause_reason, changed_at)
  ON provider_route TO evalonce_admin;
GRANT INSERT, DELETE, UPDATE (limit_usd) ON spend_limit TO evalonce_admin;
GRANT INSERT, UPDATE ON spend TO evalonce_admin; -- all of its columns: it is locked as a whole
GRANT SELECT, INSERT,
  UPDATE (state, unsettled, reason, cursor, counts, lease_id, locked_by, locked_until, not_before, failures, changed_at, finished_at)
  ON reprocess_job TO evalonce_admin;
GRANT SELECT, INSERT, DELETE ON replay_selection TO evalonce_admin;
GRANT INSERT, DELETE ON ticket_sample TO evalonce_admin;
GRANT INSERT ON ticket_sample_member TO evalonce_admin;
GRANT INSERT, DELETE,
  UPDATE (ticket_id, status, attempts, unknown_calls, available_at, created_at, last_class, last_reason, last_error, dead_at, discarded_at, lane,
          job_id, owner, note)
  ON evaluation_outbox TO evalonce_admin;
GRANT UPDATE (outcome, error, response, recalled_by) ON model_call TO evalonce_admin;
GRANT UPDATE (policy_version, priority, queue) ON evaluation_result TO evalonce_admin;
GRANT UPDATE (subject, message, erased_at) ON ticket TO evalonce_admin;
GRANT INSERT ON webhook_delivery TO evalonce_admin;

GRANT SELECT, UPDATE (taken_at, data) ON queue_snapshot TO evalonce_admin;
GRANT SELECT ON sweep_run TO evalonce_admin;
GRANT SELECT, UPDATE (began_at, ended_at, ok, well_at, counts) ON sweep_run TO evalonce_sweeper;
