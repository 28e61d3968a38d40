package pgtest

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Role is what a service may do in the database. Migrations make them.
type Role string

// The roles, one for each service.
const (
	TicketAPI       Role = "evalonce_ticket_api"
	EvaluatorWorker Role = "evalonce_evaluator_worker"
	Sweeper         Role = "evalonce_sweeper"
	Admin           Role = "evalonce_admin"
)

// As returns the address under which the same user, who must be a member of the role or a superuser, has the rights of
// the role alone. In production a service logs in as somebody who has no others; here whoever knows of it could take the
// user's own rights back, and no service does.
func As(address string, role Role) string {
	u, err := url.Parse(address)
	if err != nil {
		return address // whoever connects says so
	}
	// The driver sends it at start-up, as any setting that it does not know.
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += "role=" + string(role)
	return u.String()
}

// PoolAs returns a second pool on the database of a pool, with the rights of the role. It ends with the test.
func PoolAs(t testing.TB, db *pgxpool.Pool, role Role) *pgxpool.Pool {
	t.Helper()
	return Pool(t, As(db.Config().ConnString(), role))
}
