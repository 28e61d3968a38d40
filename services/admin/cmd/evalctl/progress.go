package main

import (
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

const (
	barFrequency = 100 * time.Millisecond
	barWidth     = 40
)

// bar shows how much of something long is done, on a terminal; elsewhere it shows nothing.
type bar struct {
	tracker *progress.Tracker // nil elsewhere
	out     progress.Writer
	ended   chan struct{}
}

// startBar begins to show the progress of a total of something; 0 is one that is not known.
func (c *cli) startBar(what string, total int64, units progress.Units) *bar {
	if !terminal(c.err) {
		return &bar{}
	}
	b := &bar{
		tracker: &progress.Tracker{Message: what, Total: total, Units: units, AutoStopDisabled: true},
		out:     progress.NewWriter(), ended: make(chan struct{}),
	}
	b.out.SetOutputWriter(c.err)
	b.out.SetUpdateFrequency(barFrequency)
	b.out.SetTrackerLength(barWidth)
	b.out.SetTrackerPosition(progress.PositionRight)
	b.out.SetStyle(progress.StyleBlocks)
	b.out.Style().Options.SpeedPosition = progress.PositionRight
	b.out.Style().Visibility.Speed = true
	b.out.Style().Visibility.TrackerOverall = false
	b.out.SetNumTrackersExpected(1)
	b.out.SetAutoStop(true)
	b.out.AppendTracker(b.tracker)
	go func() {
		defer close(b.ended)
		b.out.Render()
	}()
	return b
}

// add counts n more.
func (b *bar) add(n int64) {
	if b.tracker != nil {
		b.tracker.Increment(n)
	}
}

// stop shows how far it came, for the last time.
func (b *bar) stop(err error) {
	if b.tracker == nil {
		return
	}
	if err != nil {
		b.tracker.MarkAsErrored()
	} else {
		b.tracker.MarkAsDone()
	}
	<-b.ended
}

func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
