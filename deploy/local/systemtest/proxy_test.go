package systemtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proxy stands between the product and its database, reads the protocol, and cuts connections at their COMMIT.
type proxy struct {
	listener net.Listener
	upstream string
	address  string // of the database, through the proxy

	mu    sync.Mutex
	armed []treatment // of the next commits that they fit
	conns map[net.Conn]bool
	wait  sync.WaitGroup
}

// treatment is what happens to one commit.
type treatment struct {
	statement string // that has found or written something in the transaction, by its name in query.sql
	fate      fate
	until     <-chan struct{} // of an answer that is held back
	done      chan struct{}   // closed when the commit is there
}

type fate string

const (
	cutBefore fate = "cut before" // the connection is cut, and the server never learns of the COMMIT
	cutAfter  fate = "cut after"  // the server commits, and the connection is cut
	holdBack  fate = "hold back"  // the server commits, and the client hears of it later
)

func newProxy(t *testing.T, database string) *proxy {
	t.Helper()
	target, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{upstream: target.Host, conns: map[net.Conn]bool{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	target.Host = p.listener.Addr().String()
	p.address = target.String()
	p.wait.Go(p.serve)
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wait.Wait()
	})
	return p
}

// treat arms the proxy for the next commits. The channel is closed when the last of them is there.
func (p *proxy) treat(treatments ...treatment) (done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range treatments {
		treatments[i].done = make(chan struct{})
	}
	p.armed = treatments
	return treatments[len(treatments)-1].done
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		s := &session{proxy: p, client: client, server: server, names: map[string]string{}, rows: map[string]int{}}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wait.Go(func() {
			defer s.close()
			_ = s.requests()
		})
		p.wait.Go(func() {
			defer s.close()
			_ = s.answers()
		})
	}
}

// session is one connection. The protocol is that of https://www.postgresql.org/docs/current/protocol.html, as far as
// it says which statements a transaction has run and how many rows they gave.
type session struct {
	proxy          *proxy
	client, server net.Conn

	mu      sync.Mutex
	names   map[string]string // prepared statement: its name in query.sql
	bound   string            // the statement that runs next
	running []string          // statements whose end has not been reported
	rows    map[string]int    // of the transaction, by statement
	commit  treatment         // whose answer is awaited
}

func (s *session) close() {
	_ = s.client.Close()
	_ = s.server.Close()
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	delete(s.proxy.conns, s.client)
	delete(s.proxy.conns, s.server)
}

// requests passes on what the client says.
func (s *session) requests() error {
	// The first message has no type.
	head := make([]byte, 4)
	if _, err := io.ReadFull(s.client, head); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(head)-4)
	if _, err := io.ReadFull(s.client, body); err != nil {
		return err
	}
	if _, err := s.server.Write(append(head, body...)); err != nil {
		return err
	}
	for {
		kind, message, err := readMessage(s.client)
		if err != nil {
			return err
		}
		if forward := s.heard(kind, message[5:]); !forward {
			return errors.New("cut")
		}
		if _, err := s.server.Write(message); err != nil {
			return err
		}
	}
}

// heard notes what the client asks for, and reports whether the server is to hear it.
func (s *session) heard(kind byte, body []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case 'P': // Parse: the statement's name, its text
		name, rest := text0(body)
		sql, _ := text0(rest)
		s.names[name] = queryName(sql)
	case 'B': // Bind: the portal, the statement's name
		_, rest := text0(body)
		name, _ := text0(rest)
		s.bound = s.names[name]
	case 'E': // Execute
		s.running = append(s.running, s.bound)
	case 'Q': // a text to run
		sql, _ := text0(body)
		s.running = append(s.running, queryName(sql))
		switch strings.ToLower(sql) {
		case "rollback":
			clear(s.rows)
		case "commit":
			s.commit = s.proxy.take(s.rows)
			clear(s.rows)
			return s.commit.fate != cutBefore
		}
	}
	return true
}

// take returns what is to happen to the commit of a transaction that ran these statements; none when nothing is.
func (p *proxy) take(rows map[string]int) (next treatment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.armed) == 0 || rows[p.armed[0].statement] == 0 {
		return treatment{}
	}
	next, p.armed = p.armed[0], p.armed[1:]
	close(next.done)
	return next
}

// answers passes on what the server says.
func (s *session) answers() error {
	for {
		kind, message, err := readMessage(s.server)
		if err != nil {
			return err
		}
		switch commit := s.said(kind, message[5:]); commit.fate {
		case cutBefore, cutAfter:
			return errors.New("cut")
		case holdBack:
			<-commit.until
		}
		if _, err := s.client.Write(message); err != nil {
			return err
		}
	}
}

// said notes what the server reports, and returns how the commit is treated that this is the answer to.
func (s *session) said(kind byte, body []byte) (commit treatment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case 'C': // CommandComplete: the command and a number of rows
		tag, _ := text0(body)
		if len(s.running) > 0 {
			n, err := strconv.Atoi(tag[strings.LastIndexByte(tag, ' ')+1:])
			if err == nil {
				s.rows[s.running[0]] += n
			}
			s.running = s.running[1:]
		}
	case 'Z': // ReadyForQuery: after an error the rest does not run
		s.running = nil
	}
	commit, s.commit = s.commit, treatment{}
	return commit
}

func readMessage(r io.Reader) (kind byte, message []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 {
		return 0, nil, fmt.Errorf("a message of %d bytes", length)
	}
	message = make([]byte, 1+length)
	copy(message, head)
	_, err = io.ReadFull(r, message[5:])
	return head[0], message, err
}

// text0 splits a zero-terminated text off.
func text0(b []byte) (text string, rest []byte) {
	before, rest, _ := bytes.Cut(b, []byte{0})
	return string(before), rest
}

// queryName is the name that sqlc has put before the statement.
func queryName(sql string) string {
	rest, ok := strings.CutPrefix(sql, "-- name: ")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}
