package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/migrations"
)

// ensureTemplate returns the name of a migrated database that nobody can connect to, as cloning requires. Whoever
// comes first makes it; one that was left half made is made anew.
func ensureTemplate(ctx context.Context, serverURL string) (name string, err error) {
	fingerprint, err := migrations.Fingerprint()
	if err != nil {
		return "", err
	}
	name = "evalonce_template_" + fingerprint[:16] + "_" + month(time.Now())
	err = withConn(ctx, serverURL, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext('evalonce/pgtest/template'))"); err != nil {
			return err
		}
		var ready bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND NOT datallowconn)",
			name).Scan(&ready); err != nil || ready {
			return err
		}
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
			return err
		}
		address, err := withDatabase(serverURL, name)
		if err != nil {
			return err
		}
		if _, err := migrations.Up(ctx, address); err != nil {
			return err
		}
		if err := withConn(ctx, address, func(conn *pgx.Conn) error { return partitionLastMonth(ctx, conn) }); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("make template database %s: %w", name, err)
	}
	return name, nil
}

// month names what a template is good for: the ledger in it has partitions of the months around.
func month(t time.Time) string { return t.UTC().Format("2006_01") }

// partitionLastMonth makes room in the ledger for the calls that tests make in the past, and not by much: a database that
// was migrated in this month has no partition of the one before.
func partitionLastMonth(ctx context.Context, conn *pgx.Conn) error {
	this := time.Now().UTC()
	this = time.Date(this.Year(), this.Month(), 1, 0, 0, 0, 0, time.UTC)
	last := this.AddDate(0, -1, 0)
	var create string
	err := conn.QueryRow(ctx, `SELECT format('CREATE TABLE %I PARTITION OF model_call FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = 15)',
		'model_call_' || $1::text, uuid_v7_floor($2), uuid_v7_floor($3))`, month(last), last, this).Scan(&create)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, create)
	return err
}

// createDatabase clones template under a new name and returns the clone's address.
func createDatabase(ctx context.Context, serverURL, template string) (name, address string, err error) {
	name = "evalonce_test_" + strings.ToLower(rand.Text()[:16])
	err = withConn(ctx, serverURL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template)
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("clone database %s: %w", template, err)
	}
	address, err = withDatabase(serverURL, name)
	return name, address, err
}

// dropDatabase ends whatever sessions are left.
func dropDatabase(ctx context.Context, serverURL, name string) error {
	err := withConn(ctx, serverURL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		return err
	})
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// withConn connects for one errand: a pool would leave a goroutine behind.
func withConn(ctx context.Context, serverURL string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, serverURL)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(ctx))
}

func withDatabase(serverURL, name string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("the server's address is not a URL")
	}
	u.Path = "/" + name
	return u.String(), nil
}
