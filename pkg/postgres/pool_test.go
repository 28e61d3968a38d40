package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/pgtest"
	"github.com/evalonce/evalonce/pkg/postgres"
)

func TestOpenSetsTheSession(t *testing.T) {
	t.Parallel()
	pool, err := postgres.Open(t.Context(), postgres.Config{
		URL:                      pgtest.EmptyURL(t) + "&lock_timeout=7s",
		MaxConns:                 3,
		MinConns:                 9,
		AppName:                  "ticket-api",
		StatementTimeout:         1500 * time.Millisecond,
		LockTimeout:              time.Second,
		IdleInTransactionTimeout: time.Microsecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for setting, want := range map[string]string{
		"application_name":                    "ticket-api",
		"statement_timeout":                   "1500ms",
		"lock_timeout":                        "7s", // the URL's
		"idle_in_transaction_session_timeout": "1ms",
		"transaction_timeout":                 "",
	} {
		var got *string
		if err := pool.QueryRow(t.Context(), "SELECT current_setting($1, true)", setting).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if want != "" && (got == nil || *got != want) {
			t.Errorf("%s = %v, want %s", setting, got, want)
		}
	}
	if got := pool.Config().MaxConns; got != 3 {
		t.Errorf("MaxConns = %d, want 3", got)
	}
	if got := pool.Config().MinConns; got != 3 {
		t.Errorf("MinConns = %d, want no more than MaxConns", got)
	}
}

func TestOpenLeavesTheExecModeToTheURL(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	for suffix, want := range map[string]pgx.QueryExecMode{
		"": pgx.QueryExecModeCacheStatement,
		"&default_query_exec_mode=cache_describe": pgx.QueryExecModeCacheDescribe,
		"&default_query_exec_mode=exec":           pgx.QueryExecModeExec,
	} {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url + suffix})
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Config().ConnConfig.DefaultQueryExecMode; got != want {
			t.Errorf("%q: exec mode %s, want %s", suffix, got, want)
		}
		// What a pooler would refuse is not sent unless it was asked for.
		for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			if _, sent := pool.Config().ConnConfig.RuntimeParams[name]; sent {
				t.Errorf("%q: %s is sent at start-up", suffix, name)
			}
		}
		pool.Close()
	}
}

func TestOpenFailsWithoutThePassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	url := pgtest.EmptyURL(t)
	for name, bad := range map[string]string{
		"unknown database":   strings.Replace(url, "postgres@", "postgres:hunter2@", 1) + "&dbname=nowhere",
		"nobody listens":     "postgres://u:hunter2@127.0.0.1:1/db?sslmode=disable",
		"slash in password":  "postgres://u:hunter2/x@127.0.0.1:5432/db",
		"hash in password":   "postgres://u:hunter2#x@127.0.0.1:5432/db",
		"percent":            "postgres://u:hunter2%zz@127.0.0.1:5432/db",
		"keyword":            "host=127.0.0.1 port=hunter2 password=hunter2",
		"no scheme":          "u:hunter2@127.0.0.1/db",
		"pool parameter":     "postgres://u:hunter2@127.0.0.1:1/db?pool_max_conns=many",
		"unknown exec mode":  "postgres://u:hunter2@127.0.0.1:1/db?default_query_exec_mode=hunter2",
		"password parameter": "postgres://u@127.0.0.1:1/db?password=hunter2&sslmode=hunter2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: bad, ConnectTimeout: 5 * time.Second})
			if err == nil {
				pool.Close()
				t.Fatal("the pool opened")
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the error contains the password: %v", err)
			}
		})
	}
}
