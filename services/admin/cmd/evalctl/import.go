package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	"github.com/evalonce/evalonce/pkg/backoff"
	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/rpc"
	"github.com/evalonce/evalonce/pkg/ticketfile"
	ticketv1 "github.com/evalonce/evalonce/proto/gen/evalonce/ticket/v1"
)

// importer creates a ticket for each row of a file. Whatever happens to it, each row has its ticket at most once: a batch
// commits whole or not at all, and whoever sends a row again, in whatever batch, sends the same idempotency key.
//
// In memory it holds the batches that are on their way, and 16 bytes of each row's hash.
type importer struct {
	tickets ticketv1.TicketServiceClient
	flags   importFlags
	done    func(bytes int64)                // called for all that has been dealt with
	told    func(line int, why string)       // called for each row that is rejected, one at a time
	seen    map[[sha256.Size / 2]byte]uint32 // how often each content has come

	rows, created, replayed, rejected atomic.Int64
	complete                          bool

	mu sync.Mutex // around told
}

// batch is rows that are created together.
type batch struct {
	lines    []int
	requests []*ticketv1.CreateTicketRequest
	keys     map[string]bool
	bytes    int   // of text
	size     int64 // of the file
}

// batchBytes bounds the text of a batch: well within what a service takes by default, and what its answer may hold.
const batchBytes = 1 << 20

func newImporter(tickets ticketv1.TicketServiceClient, flags importFlags, done func(int64), told func(int, string)) *importer {
	return &importer{tickets: tickets, flags: flags, done: done, told: told, seen: map[[sha256.Size / 2]byte]uint32{}}
}

func (i *importer) columns() ticketfile.Columns {
	columns := ticketfile.TicketColumns()
	if i.flags.keyColumn != "" {
		columns.Required = append(columns.Required, i.flags.keyColumn)
	}
	return columns
}

var errStrict = errors.New("a row cannot be imported")

// run reads rows and sends them; it returns when all that was sent is dealt with.
func (i *importer) run(ctx context.Context, rows *ticketfile.Reader) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(i.flags.concurrency)
	err := i.read(ctx, rows, func(b *batch) {
		group.Go(func() error {
			if err := i.send(ctx, b); err != nil {
				return err
			}
			i.done(b.size)
			return nil
		})
	})
	if sent := group.Wait(); sent != nil {
		return sent // what the reading ended for
	}
	i.complete = err == nil
	return err
}

func (i *importer) read(ctx context.Context, rows *ticketfile.Reader, send func(*batch)) error {
	b := &batch{keys: map[string]bool{}}
	var begin int64
	flush := func() {
		b.size, begin = rows.Offset()-begin, rows.Offset()
		send(b)
		b = &batch{keys: map[string]bool{}}
	}
	for ctx.Err() == nil {
		row, err := rows.Next()
		if errors.Is(err, io.EOF) {
			flush()
			return nil
		}
		var request *ticketv1.CreateTicketRequest
		if err == nil {
			i.rows.Add(1)
			request, err = i.request(row)
		} else if wrong, ok := errors.AsType[*ticketfile.LineError](err); !ok || wrong.Final {
			flush()
			return err
		} else {
			i.rows.Add(1)
		}
		if err != nil {
			line, what := lineOf(err)
			if err := i.reject(line, what); err != nil {
				return err
			}
			continue
		}
		text := len(request.GetSubject()) + len(request.GetMessage())
		// A key that is in the batch already would be refused; in the next one it is a repetition.
		if len(b.requests) == i.flags.batch || len(b.requests) > 0 && b.bytes+text > batchBytes || b.keys[request.GetRequestId()] {
			flush()
		}
		b.lines, b.requests, b.bytes = append(b.lines, row.Line), append(b.requests, request), b.bytes+text
		b.keys[request.GetRequestId()] = true
	}
	return context.Cause(ctx)
}

func lineOf(err error) (int, string) {
	if wrong, ok := errors.AsType[*ticketfile.LineError](err); ok {
		return wrong.Line, wrong.Err.Error()
	}
	return 0, err.Error()
}

// request is what a row asks for.
func (i *importer) request(row ticketfile.Row) (*ticketv1.CreateTicketRequest, error) {
	t, err := row.Ticket("")
	if err != nil {
		return nil, err
	}
	key := row.Values[i.flags.keyColumn]
	switch {
	case i.flags.keyColumn == "":
		key = i.keyOf(t)
	case !rpc.ValidKey(key):
		return nil, &ticketfile.LineError{Line: row.Line, Err: fmt.Errorf("%q must be 1 to 255 visible ASCII characters", i.flags.keyColumn)}
	}
	return &ticketv1.CreateTicketRequest{Subject: t.Subject, Message: t.Message, ExternalId: t.ExternalID, RequestId: key}, nil
}

// keyOf makes a key of a row's content, and of how often that came before. It does not depend on the row's place, so that
// a file may be corrected between two runs.
func (i *importer) keyOf(t ticketfile.Ticket) string {
	hash := sha256.New()
	hash.Write([]byte("evalonce/import/1"))
	for _, s := range []string{t.ExternalID, t.Subject, t.Message} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		hash.Write([]byte(s))
	}
	mark := [sha256.Size / 2]byte(hash.Sum(nil)[:sha256.Size/2])
	i.seen[mark]++
	return "import-" + hex.EncodeToString(mark[:]) + "-" + strconv.FormatUint(uint64(i.seen[mark]), 10)
}

// reject tells of a row that is not imported.
func (i *importer) reject(line int, why string) error {
	i.rejected.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.told(line, why)
	if i.flags.strict {
		return errStrict
	}
	return nil
}

// send creates what a batch asks for, but for the rows that the service refuses.
func (i *importer) send(ctx context.Context, b *batch) error {
	for len(b.requests) > 0 {
		err := i.create(ctx, b)
		if err == nil {
			return nil
		}
		call, ok := errors.AsType[*callError](err)
		if !ok {
			return err
		}
		refused := refusedRows(call, len(b.requests))
		switch {
		case len(refused) > 0:
			if err := i.drop(b, refused); err != nil {
				return err
			}
		case reasonOf(call) == rpc.ReasonRequestTooLarge && len(b.requests) > 1:
			half := len(b.requests) / 2
			first := &batch{lines: b.lines[:half], requests: b.requests[:half]}
			if err := i.send(ctx, first); err != nil {
				return err
			}
			b.lines, b.requests = b.lines[half:], b.requests[half:]
		case reasonOf(call) == rpc.ReasonRequestTooLarge:
			return i.drop(b, map[int]string{0: call.status.Message()})
		default:
			return err
		}
	}
	return nil
}

// drop rejects rows and leaves the others in the batch.
func (i *importer) drop(b *batch, refused map[int]string) error {
	var lines []int
	var requests []*ticketv1.CreateTicketRequest
	for at, r := range b.requests {
		why, bad := refused[at]
		if !bad {
			lines, requests = append(lines, b.lines[at]), append(requests, r)
			continue
		}
		if err := i.reject(b.lines[at], why); err != nil {
			return err
		}
	}
	b.lines, b.requests = lines, requests
	return nil
}

// create sends a batch until the service has answered, or until patience ends. What has been sent may be sent again.
func (i *importer) create(ctx context.Context, b *batch) error {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		response, err := i.tickets.BatchCreateTickets(ctx, &ticketv1.BatchCreateTicketsRequest{Requests: b.requests})
		if err == nil {
			i.count(response.GetReplayed())
			return nil
		}
		call, ok := errors.AsType[*callError](err)
		if !ok || !passing(call) {
			return err
		}
		wait := backoff.Delay(attempt, content.Key(b.requests[0].GetRequestId()), retryDelay(call))
		if time.Since(began)+wait > i.flags.patience {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// count tells the rows that are new from those that were there.
func (i *importer) count(replayed []bool) {
	for _, there := range replayed {
		if there {
			i.replayed.Add(1)
		} else {
			i.created.Add(1)
		}
	}
}

// passing reports whether the same call may succeed later.
func passing(call *callError) bool {
	switch call.status.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

func retryDelay(call *callError) time.Duration {
	for _, d := range call.status.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			return retry.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func reasonOf(call *callError) string {
	for _, d := range call.status.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// refusedRows are the places, in a batch of n, of the rows that an error is about, with what is wrong with them.
func refusedRows(call *callError, n int) map[int]string {
	refused := map[int]string{}
	blame := func(field, why string) {
		place, rest, found := strings.Cut(strings.TrimPrefix(field, "requests["), "]")
		at, err := strconv.Atoi(place)
		if !found || err != nil || at < 0 || at >= n {
			return
		}
		if rest = strings.TrimPrefix(rest, "."); rest != "" {
			why = rest + ": " + why
		}
		if before := refused[at]; before != "" {
			why = before + "; " + why
		}
		refused[at] = why
	}
	for _, d := range call.status.Details() {
		switch d := d.(type) {
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				blame(v.GetField(), v.GetDescription())
			}
		case *errdetails.ErrorInfo:
			if d.GetReason() == rpc.ReasonKeyReused {
				blame(d.GetMetadata()["field"], "this idempotency key was used with another ticket")
			}
		}
	}
	return refused
}
