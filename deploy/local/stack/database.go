package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// MakeDatabase makes a new database on a server, which ends with the stack, and returns its name. Whatever else is on
// that server stays untouched.
func (s *Stack) MakeDatabase(ctx context.Context, server string) (name string, err error) {
	name = "evalonce_demo_" + strings.ToLower(rand.Text()[:8])
	database, err := withDatabase(server, name)
	if err != nil {
		return "", fmt.Errorf("make a database: %w", err)
	}
	if err := execute(ctx, server, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'UTF8'"); err != nil {
		if _, answered := errors.AsType[*pgconn.PgError](err); answered {
			err = fmt.Errorf("%w; the role needs CREATEDB, and a pooler must not stand in front", err)
		}
		return "", fmt.Errorf("make a database: %w", err)
	}
	s.cleanup(func(ctx context.Context) error {
		if err := execute(ctx, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		return nil
	})
	s.UseDatabase(database)
	return name, nil
}

func execute(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// withDatabase names another database, in both forms that an address may have.
func withDatabase(address, name string) (string, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return address + " dbname=" + name, nil // the last of two counts
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("the address of the server is no URL") // what url.Parse says repeats the password
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
