package report

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

const (
	barFrequency  = 100 * time.Millisecond
	lineFrequency = 3 * time.Second
	barWidth      = 40
)

// Progress shows how much of something is done: as a bar on a terminal, and elsewhere as a line every few seconds.
type Progress struct {
	done    atomic.Int64
	bar     *progress.Tracker // nil elsewhere
	stop    chan struct{}
	stopped chan struct{}
}

// StartProgress begins to show the progress of total of something, which what names in the past participle.
func StartProgress(w io.Writer, what string, total int) *Progress {
	p := &Progress{stop: make(chan struct{}), stopped: make(chan struct{})}
	began := time.Now()
	if terminal(w) {
		p.startBar(w, what, total)
		return p
	}
	line := func() {
		fmt.Fprintf(w, "%s %d of %d tickets after %.1f s\n", what, p.done.Load(), total, time.Since(began).Seconds())
	}
	go func() {
		defer close(p.stopped)
		tick := time.NewTicker(lineFrequency)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				line()
			case <-p.stop:
				line()
				return
			}
		}
	}()
	return p
}

func (p *Progress) startBar(w io.Writer, what string, total int) {
	p.bar = &progress.Tracker{Message: what, Total: int64(total), AutoStopDisabled: true}
	out := progress.NewWriter()
	out.SetOutputWriter(w)
	out.SetUpdateFrequency(barFrequency)
	out.SetTrackerLength(barWidth)
	out.SetTrackerPosition(progress.PositionRight)
	out.SetStyle(progress.StyleBlocks)
	out.Style().Options.SpeedPosition = progress.PositionRight
	out.Style().Visibility.Speed = true
	out.Style().Visibility.TrackerOverall = false
	out.SetNumTrackersExpected(1)
	out.SetAutoStop(true)
	out.AppendTracker(p.bar)
	go func() {
		defer close(p.stopped)
		out.Render()
	}()
	go func() {
		<-p.stop
		if p.done.Load() < int64(total) {
			p.bar.MarkAsErrored()
		} else {
			p.bar.MarkAsDone()
		}
	}()
}

// Add counts n more.
func (p *Progress) Add(n int) {
	p.done.Add(int64(n))
	if p.bar != nil {
		p.bar.Increment(int64(n))
	}
}

// Stop shows how far it came, for the last time.
func (p *Progress) Stop() {
	close(p.stop)
	<-p.stopped
}

func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
