package main

func boards() []board { return []board{overview(), money(), provider(), queue(), api()} }

// quantile of a histogram, by its labels.
func quantile(q, name, by string) string {
	labels := "le"
	if by != "" {
		labels += ", " + by
	}
	return "histogram_quantile(" + q + ", sum by (" + labels + ") (rate(" + name + "_bucket[$__rate_interval])))"
}

func rate(name, by string) string {
	return "sum by (" + by + ") (rate(" + name + "[$__rate_interval]))"
}

func last(name, by string) string { return "max by (" + by + ") (" + name + ")" }

func overview() board {
	return board{"overview", "EvalOnce: overview", []panel{
		{title: "Oldest work that is due", about: "How long the ticket has waited that has waited the longest.", unit: "s", queries: []query{
			{"{{route}} {{lane}}", last("evalonce_queue_oldest_ready_age_seconds", "route, lane")},
		}},
		{title: "Tickets and answers", about: "Tickets created, and evaluations answered, in a second.", unit: "reqps", queries: []query{
			{"tickets", `sum(rate(evalonce_tickets_total{outcome="created"}[$__rate_interval]))`},
			{"evaluations", `sum(rate(evalonce_evaluations_total{outcome="answered"}[$__rate_interval]))`},
		}},
		{title: "From ticket to answer", unit: "s", queries: []query{
			{"{{lane}} p50", quantile("0.5", "evalonce_evaluation_latency_seconds", "lane")},
			{"{{lane}} p99", quantile("0.99", "evalonce_evaluation_latency_seconds", "lane")},
		}},
		{title: "Time of a creation", unit: "s", queries: []query{
			{"p50", quantile("0.5", "evalonce_create_duration_seconds", "")}, {"p99", quantile("0.99", "evalonce_create_duration_seconds", "")},
		}},
		{title: "Routes that are shut", about: "1 while a route is in the state.", unit: "short", queries: []query{
			{"{{route}} {{state}}", `max by (route, state) (evalonce_route_state{state!="closed"}) > 0`},
		}},
		{title: "Dead letters", unit: "short", queries: []query{{"{{class}} {{reason}}", last("evalonce_dead_letters", "class, reason")}}},
		{title: "Spent in the last 24 hours", unit: "currencyUSD", number: true, queries: []query{
			{"spent", "sum(increase(evalonce_model_cost_USD_total[24h]))"},
		}},
		{title: "Saved in the last 24 hours", about: "What the newest 10,000 tickets would have cost more with a call for each.", unit: "currencyUSD", number: true, queries: []query{
			{"saved", "sum(max by (route) (evalonce_saved_USD))"},
		}},
	}}
}

func money() board {
	const answered = `sum by (version) (rate(evalonce_model_calls_total{outcome="answered"}[1h]))`
	return board{"money", "EvalOnce: money", []panel{
		{title: "Spend", about: "US$ in an hour, at the prices of the versions.", unit: "currencyUSD", queries: []query{
			{"{{version}} {{model}}", "3600 * sum by (version, model) (rate(evalonce_model_cost_USD_total[$__rate_interval]))"},
		}},
		{title: "Cost of an answer", about: "All that was paid under a version, its failures too, by its answers.", unit: "currencyUSD", queries: []query{
			{"{{version}}", "sum by (version) (rate(evalonce_model_cost_USD_total[1h])) / " + answered},
		}},
		{title: "Saved", about: "What the newest 10,000 tickets of 24 hours would have cost more with a call for each.", unit: "currencyUSD", queries: []query{
			{"{{route}}", last("evalonce_saved_USD", "route")},
		}},
		{title: "Tickets that needed no call", about: "Of all that were created.", unit: "percentunit", queries: []query{
			{"{{state}}", `sum by (state) (rate(evalonce_dedup_hits_total[$__rate_interval])) / on () group_left () sum(rate(evalonce_tickets_total{outcome="created"}[$__rate_interval]))`},
		}},
		{title: "Budgets in use", about: "Of what may be spent in the period.", unit: "percentunit", queries: []query{
			{"{{scope}} {{period}}", last("evalonce_spend_USD", "scope, period") + " / " + last("evalonce_spend_limit_USD", "scope, period")},
		}},
		{title: "Tokens", unit: "short", queries: []query{{"{{version}} {{type}}", rate("evalonce_model_tokens_total", "version, type")}}},
		{title: "Calls that may have been paid for without an answer", unit: "short", queries: []query{
			{"{{found}}", "sum by (found) (increase(evalonce_unknown_outcomes_total[1h]))"},
		}},
	}}
}

func provider() board {
	return board{"provider", "EvalOnce: providers", []panel{
		{title: "Calls", unit: "reqps", queries: []query{{"{{provider}} {{model}} {{outcome}}", rate("evalonce_model_calls_total", "provider, model, outcome")}}},
		{title: "Failures by class", unit: "reqps", queries: []query{{"{{class}}", `sum by (class) (rate(evalonce_model_calls_total{class!="none"}[$__rate_interval]))`}}},
		{title: "Time of a call", unit: "s", queries: []query{
			{"{{model}} p50", quantile("0.5", "evalonce_model_call_duration_seconds", "model")},
			{"{{model}} p99", quantile("0.99", "evalonce_model_call_duration_seconds", "model")},
		}},
		{title: "Evaluations under way", unit: "short", queries: []query{{"{{route}}", "sum by (route) (evalonce_calls_running)"}}},
		{title: "State of the routes", about: "1 for the state that a route is in.", unit: "short", queries: []query{
			{"{{route}} {{state}}", last("evalonce_route_state", "route, state") + " > 0"},
		}},
		{title: "Limits: what may be used at once", unit: "short", queries: []query{
			{"{{route}} {{limit}}", last("evalonce_route_permits", "route, limit")},
			{"{{route}} {{limit}} at most", last("evalonce_route_limit", "route, limit")},
		}},
		{title: "Answers of another model", unit: "short", queries: []query{
			{"{{model}} {{version}}", "sum by (model, version) (increase(evalonce_model_substitutions_total[1h]))"},
		}},
	}}
}

func queue() board {
	return board{"queue", "EvalOnce: health of the queue", []panel{
		{title: "Depth", unit: "short", queries: []query{{"{{route}} {{lane}} {{state}}", last("evalonce_queue_depth", "route, lane, state")}}},
		{title: "Oldest work that is due", unit: "s", queries: []query{{"{{route}} {{lane}}", last("evalonce_queue_oldest_ready_age_seconds", "route, lane")}}},
		{title: "Claims", unit: "reqps", queries: []query{{"{{route}} {{lane}} {{known}}", rate("evalonce_claims_total", "route, lane, known")}}},
		{title: "What becomes of claims", unit: "reqps", queries: []query{{"{{outcome}} {{class}}", rate("evalonce_evaluations_total", "outcome, class")}}},
		{title: "From ticket to call", unit: "s", queries: []query{
			{"{{lane}} p50", quantile("0.5", "evalonce_pickup_latency_seconds", "lane")},
			{"{{lane}} p99", quantile("0.99", "evalonce_pickup_latency_seconds", "lane")},
		}},
		{title: "Leases", unit: "short", queries: []query{
			{"lost", "sum(increase(evalonce_leases_lost_total[15m]))"},
			{"taken back, {{to}}", "sum by (to) (increase(evalonce_leases_reclaimed_total[15m]))"},
		}},
		{title: "Sweeps", about: "Since the last one that ended well, and the age of what is read of the tables.", unit: "s", queries: []query{
			{"since the last sweep", "max(evalonce_sweep_age_seconds)"}, {"age of the snapshot", "max(evalonce_snapshot_age_seconds)"},
		}},
		{title: "Jobs", unit: "short", queries: []query{{"{{kind}} {{state}}", last("evalonce_jobs", "kind, state")}}},
		{title: "Dead rows of the hot tables", unit: "short", queries: []query{{"{{table}}", `max by (table) (evalonce_table_tuples{state="dead"})`}}},
		{title: "Size of the hot tables", unit: "bytes", queries: []query{{"{{table}}", last("evalonce_table_size_bytes", "table")}}},
		{title: "Oldest snapshot of the database", unit: "s", queries: []query{{"age", "max(evalonce_db_oldest_snapshot_age_seconds)"}}},
		{title: "Connections", unit: "short", queries: []query{{"{{pool}} {{state}}", "sum by (pool, state) (evalonce_db_connections)"}}},
	}}
}

func api() board {
	return board{"api", "EvalOnce: API and webhooks", []panel{
		{title: "Creations", unit: "reqps", queries: []query{{"{{outcome}}", rate("evalonce_tickets_total", "outcome")}}},
		{title: "Time of a creation", unit: "s", queries: []query{
			{"{{outcome}} p50", quantile("0.5", "evalonce_create_duration_seconds", "outcome")},
			{"{{outcome}} p99", quantile("0.99", "evalonce_create_duration_seconds", "outcome")},
		}},
		{title: "Calls", unit: "reqps", queries: []query{{"{{rpc_method}} {{rpc_response_status_code}}", rate("rpc_server_call_duration_seconds_count", "rpc_method, rpc_response_status_code")}}},
		{title: "Time of a call, p99", unit: "s", queries: []query{{"{{rpc_method}}", quantile("0.99", "rpc_server_call_duration_seconds", "rpc_method")}}},
		{title: "Creations that share a transaction", unit: "short", queries: []query{{"mean", "sum(rate(evalonce_create_group_size_sum[$__rate_interval])) / sum(rate(evalonce_create_group_size_count[$__rate_interval]))"}}},
		{title: "Time spent waiting for connections", about: "Seconds in a second, all callers together.", unit: "short", queries: []query{{"{{pool}}", rate("evalonce_db_wait_time_seconds_total", "pool")}}},
		{title: "Webhooks", unit: "reqps", queries: []query{{"{{outcome}} {{reason}}", rate("evalonce_webhook_attempts_total", "outcome, reason")}}},
		{title: "Time of a delivery, p99", unit: "s", queries: []query{{"{{outcome}}", quantile("0.99", "evalonce_webhook_attempt_duration_seconds", "outcome")}}},
		{title: "Oldest delivery that is due", unit: "s", queries: []query{{"age", "max(evalonce_webhook_oldest_due_age_seconds)"}}},
		{title: "Webhook endpoints", unit: "short", queries: []query{{"{{state}}", last("evalonce_webhook_endpoints", "state")}}},
	}}
}
