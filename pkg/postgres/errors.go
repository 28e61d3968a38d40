package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes, https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	serializationFailure         = "40001"
	deadlockDetected             = "40P01"
	statementCompletionUnknown   = "40003"
	transactionResolutionUnknown = "08007"

	queryCanceled    = "57014"
	lockNotAvailable = "55P03"

	classConnectionException = "08"
	classIntegrityConstraint = "23"
)

// ErrRunAgain matches an error with which a transaction gives itself up for the sake of others, as the server does on a
// deadlock: it is [Retryable].
var ErrRunAgain = errors.New("the transaction has to run again")

// Retryable reports whether the transaction was rolled back for the sake of others, so that the same
// transaction may well succeed when it is run again from its beginning.
func Retryable(err error) bool {
	if errors.Is(err, ErrCommitUnknown) {
		return false
	}
	if errors.Is(err, ErrRunAgain) {
		return true
	}
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == serializationFailure || pgErr.Code == deadlockDetected)
}

// LockNotAvailable reports whether a lock was not to be had at once, or not in the time that there was for it.
func LockNotAvailable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == lockNotAvailable
}

// TookTooLong reports whether the server gave a statement up: for its timeout, or because somebody canceled it.
func TookTooLong(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == queryCanceled
}

// ConstraintViolation returns the name of the constraint that refused a row. The name is empty when what refused
// has none: a NOT NULL column, or a trigger that raised an error of this class.
func ConstraintViolation(err error) (name string, ok bool) {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, classIntegrityConstraint) {
		return pgErr.ConstraintName, true
	}
	return "", false
}

// ConnectionLost reports whether the connection failed and not the statement: the server could not be reached, went
// away or ended the session. The end of the caller's own context is none of these, though it closes a connection
// that is in the middle of a statement.
func ConnectionLost(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fatal(pgErr) || strings.HasPrefix(pgErr.Code, classConnectionException)
	}
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	return errors.As(err, &connectErr) || errors.As(err, &netErr) ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// fatal reports whether the error ended the session.
func fatal(err *pgconn.PgError) bool {
	severity := err.SeverityUnlocalized
	if severity == "" {
		severity = err.Severity
	}
	return severity == "FATAL" || severity == "PANIC"
}
