package submit

import (
	"container/list"
	"sync"
)

const (
	// flushers is how many groups may be on their way at once: one is written while the other's commit is flushed. More
	// would make smaller groups and more commits.
	flushers = 2
	// worthwhile is how many make a group beside another that is as large or larger; beside a smaller one as many as that
	// has. So few requests wait for nobody, and many share their commits.
	worthwhile = 24
	// flushersOfCrowd is how many there may be once a crowd waits for them.
	flushersOfCrowd = 4
	crowd           = 64
	// groupMost bounds a group's rows, and with them the time that its members wait for each other.
	groupMost = 256
)

// queue is the requests that wait, and those who take them from it, in groups. There is no timer: a flusher takes what
// came while the others were busy.
type queue struct {
	mu       sync.Mutex
	waiting  list.List        // of *pending
	running  int              // flushers
	starting bool             // one of them has not taken its first group yet
	taken    int              // requests in groups that are on their way
	flush    func([]*pending) // nil until it opens
	stopped  bool
	empty    chan struct{} // closed once it is stopped and the last flusher has ended
}

// open starts the flushing of what waits, and of what comes.
func (q *queue) open(flush func([]*pending)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flush = flush
	q.start()
}

// put reports whether the request is taken. It is then answered, unless somebody calls leave.
func (q *queue) put(p *pending) (leave func(), taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil, false
	}
	place := q.waiting.PushBack(p)
	q.start()
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waiting.Remove(place) // which does nothing to one that is on its way
	}, true
}

// start starts another flusher where there is room and work for one.
func (q *queue) start() {
	n := q.waiting.Len()
	if q.flush == nil || n == 0 || q.starting {
		return
	}
	if q.running < flushers && n >= min(q.taken, worthwhile) || q.running < flushersOfCrowd && n >= crowd {
		q.running++
		q.starting = true
		go q.run()
	}
}

// run flushes what waits, again and again, until nothing does.
func (q *queue) run() {
	q.mu.Lock()
	q.starting = false
	group := q.take()
	q.mu.Unlock()
	for group != nil {
		q.flush(group)
		q.mu.Lock()
		q.taken -= len(group)
		group = q.take()
		q.mu.Unlock()
	}
}

// take returns a flusher's next group, or nil, with which it ends.
func (q *queue) take() []*pending {
	n := min(q.waiting.Len(), groupMost)
	if n == 0 {
		if q.running--; q.running == 0 && q.stopped {
			close(q.empty)
		}
		return nil
	}
	q.taken += n
	group := make([]*pending, n)
	for i := range group {
		group[i], _ = q.waiting.Remove(q.waiting.Front()).(*pending)
	}
	return group
}

// stop takes no more requests, and returns when those that were taken are answered.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	if q.running == 0 {
		close(q.empty)
	}
	q.mu.Unlock()
	<-q.empty
}
