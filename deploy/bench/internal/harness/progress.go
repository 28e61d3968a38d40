package harness

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

const (
	barFrequency = 200 * time.Millisecond
	barWidth     = 40
)

// Progress shows how far the runs have come: a bar on a terminal, a line for each run elsewhere.
type Progress struct {
	out     io.Writer
	began   time.Time
	writer  progress.Writer // nil elsewhere
	bar     *progress.Tracker
	stopped chan struct{}
}

// StartProgress begins to show the progress of a number of runs.
func StartProgress(w io.Writer, runs int) *Progress {
	p := &Progress{out: w, began: time.Now(), stopped: make(chan struct{})}
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		close(p.stopped)
		return p
	}
	p.bar = &progress.Tracker{Message: "runs", Total: int64(runs), AutoStopDisabled: true}
	p.writer = progress.NewWriter()
	p.writer.SetOutputWriter(w)
	p.writer.SetUpdateFrequency(barFrequency)
	p.writer.SetTrackerLength(barWidth)
	p.writer.SetTrackerPosition(progress.PositionRight)
	p.writer.SetStyle(progress.StyleBlocks)
	p.writer.Style().Visibility.TrackerOverall = false
	p.writer.SetNumTrackersExpected(1)
	p.writer.AppendTracker(p.bar)
	go func() {
		defer close(p.stopped)
		p.writer.Render()
	}()
	return p
}

// Began says what runs now.
func (p *Progress) Began(group, subject string, round, rounds int) {
	if p.bar != nil {
		p.bar.UpdateMessage(fmt.Sprintf("%s %d/%d: %s", group, round, rounds, subject))
	}
}

// Ended says what it came to.
func (p *Progress) Ended(group, subject string, round, rounds int, f Figures) {
	figures := make([]string, 0, len(f))
	for name, v := range f {
		figures = append(figures, fmt.Sprintf("%s %.4g", name, v))
	}
	slices.Sort(figures)
	line := fmt.Sprintf("%5.0f s  %s %d/%d: %s: %s", time.Since(p.began).Seconds(), group, round, rounds, subject, strings.Join(figures, ", "))
	if p.bar == nil {
		fmt.Fprintln(p.out, line)
		return
	}
	p.writer.Log("%s", line)
	p.bar.Increment(1)
}

// Stop ends the bar.
func (p *Progress) Stop() {
	if p.writer != nil {
		p.bar.MarkAsDone()
		p.writer.Stop()
	}
	<-p.stopped
}
