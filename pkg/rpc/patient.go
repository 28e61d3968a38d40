package rpc

import (
	"net/http"
	"time"
)

// patientWriter writes an answer. The server's deadlines, which count from the request on, are right for an answer that
// comes at once. A stream may go on for longer, and be silent for long in between: there is a deadline only while
// something is being written, so that who does not read is cut off, and who waits is not.
type patientWriter struct {
	http.ResponseWriter
	conn    *http.ResponseController
	timeout time.Duration
	streams bool
}

// stream says that the answer is a stream.
func (w *patientWriter) stream() error {
	w.streams = true
	// The deadline of reading would end the call, too: net/http waits for the caller to leave by reading on.
	if err := w.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return w.conn.SetWriteDeadline(time.Time{})
}

// end bounds the time in which the rest of a stream is sent, once nothing more comes. What cannot be bounded is not open.
func (w *patientWriter) end() {
	if w.streams {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.timeout))
	}
}

// within runs a write of a stream under a deadline of its own.
func (w *patientWriter) within(write func() error) error {
	if !w.streams {
		return write()
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	return w.conn.SetWriteDeadline(time.Time{})
}

func (w *patientWriter) Write(b []byte) (n int, err error) {
	err = w.within(func() error {
		n, err = w.ResponseWriter.Write(b)
		return err
	})
	return n, err
}

// Flush implements [http.Flusher]. What could not be sent shows in the next write.
func (w *patientWriter) Flush() { _ = w.within(w.conn.Flush) }

// Unwrap is for [http.ResponseController].
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
