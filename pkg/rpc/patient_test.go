package rpc

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// timed records what is done to a connection, in order.
type timed struct {
	*httptest.ResponseRecorder
	done []string
	full bool
}

func (w *timed) Write(b []byte) (int, error) {
	w.done = append(w.done, "write")
	if w.full {
		return 0, errors.New("nobody reads")
	}
	return w.ResponseRecorder.Write(b)
}

func (w *timed) FlushError() error {
	w.done = append(w.done, "flush")
	return nil
}

func (w *timed) SetReadDeadline(at time.Time) error  { return w.deadline("read", at) }
func (w *timed) SetWriteDeadline(at time.Time) error { return w.deadline("", at) }

func (w *timed) deadline(kind string, at time.Time) error {
	switch left := time.Until(at); {
	case at.IsZero():
		w.done = append(w.done, kind+"wait")
	case left > 0 && left <= time.Minute:
		w.done = append(w.done, kind+"limit")
	default:
		w.done = append(w.done, kind+"never")
	}
	return nil
}

func TestAStreamMayBeSilentAndAWriteMayNotLast(t *testing.T) {
	t.Parallel()
	answer := func(streams, full bool) string {
		conn := &timed{ResponseRecorder: httptest.NewRecorder(), full: full}
		w := &patientWriter{ResponseWriter: conn, conn: http.NewResponseController(conn), timeout: time.Minute}
		if streams {
			if err := w.stream(); err != nil {
				t.Error(err)
			}
		}
		if _, err := w.Write([]byte("x")); (err != nil) != full {
			t.Errorf("the write ends with %v", err)
		}
		w.Flush()
		w.end()
		return strings.Join(conn.done, " ")
	}
	for want, got := range map[string]string{
		"write flush": answer(false, false),
		"readwait wait limit write wait limit flush wait limit": answer(true, false),
		"readwait wait limit write limit flush wait limit":      answer(true, true),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
