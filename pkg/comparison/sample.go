package comparison

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/evalonce/evalonce/pkg/comparison/internal/comparisonsql"
)

// ErrSampleNotFound is returned when no sample has the id asked for.
var ErrSampleNotFound = errors.New("no such sample")

// SampleExistsError is returned when a sample cannot be drawn because another one has its id.
type SampleExistsError struct{ ID string }

func (e *SampleExistsError) Error() string {
	return fmt.Sprintf("sample %s is there with another range, client, size or seed: samples never change, choose a new id", e.ID)
}

// Draw is what a sample is drawn from, and how. It is kept with the sample.
type Draw struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	ClientID string    `json:"client_id"`
	Size     int32     `json:"size"`
	Seed     int64     `json:"seed"`
}

// Sample is a set of tickets that does not change, whatever becomes of them.
type Sample struct {
	ID string
	Draw
	Tickets   int // that were drawn
	CreatedBy string
	CreatedAt time.Time
}

// CreateSample draws tickets and keeps which they are. The same draw under the same id again is no error and draws
// nothing; another one is a *SampleExistsError.
func CreateSample(ctx context.Context, tx pgx.Tx, id string, d Draw, by string) (created bool, err error) {
	d.From, d.To = d.From.UTC(), d.To.UTC() // so that equal instants are equal draws
	spec, err := json.Marshal(d)
	if err != nil {
		return false, fmt.Errorf("encode the draw of sample %s: %w", id, err)
	}
	q := comparisonsql.New(tx)
	n, err := q.InsertSample(ctx, comparisonsql.InsertSampleParams{ID: id, Spec: spec, CreatedBy: by})
	if err != nil {
		return false, fmt.Errorf("make sample %s: %w", id, err)
	}
	if n == 0 {
		there, err := GetSample(ctx, tx, id)
		if err != nil {
			return false, err
		}
		if there.Draw != d {
			return false, &SampleExistsError{ID: id}
		}
		return false, nil
	}
	if _, err := q.DrawMembers(ctx, comparisonsql.DrawMembersParams{
		SampleID: id, CreatedFrom: d.From, CreatedTo: d.To, ClientID: d.ClientID, Seed: strconv.FormatInt(d.Seed, 10), Size: d.Size,
	}); err != nil {
		return false, fmt.Errorf("draw sample %s: %w", id, err)
	}
	return true, nil
}

// GetSample returns the sample of an id, or ErrSampleNotFound.
func GetSample(ctx context.Context, db comparisonsql.DBTX, id string) (Sample, error) {
	found, err := samples(ctx, db, id)
	if err != nil {
		return Sample{}, err
	}
	if len(found) == 0 {
		return Sample{}, fmt.Errorf("sample %q: %w", id, ErrSampleNotFound)
	}
	return found[0], nil
}

// ListSamples returns all samples, the newest first.
func ListSamples(ctx context.Context, db comparisonsql.DBTX) ([]Sample, error) {
	return samples(ctx, db, "")
}

func samples(ctx context.Context, db comparisonsql.DBTX, id string) ([]Sample, error) {
	rows, err := comparisonsql.New(db).Samples(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	found := make([]Sample, len(rows))
	for i, r := range rows {
		found[i] = Sample{ID: r.ID, Tickets: int(r.Tickets), CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt}
		if err := json.Unmarshal(r.Spec, &found[i].Draw); err != nil {
			return nil, fmt.Errorf("decode the draw of sample %s: %w", r.ID, err)
		}
		found[i].From, found[i].To = found[i].From.UTC(), found[i].To.UTC()
	}
	return found, nil
}

// DeleteSample forgets a sample; ErrSampleNotFound when there is none.
func DeleteSample(ctx context.Context, tx pgx.Tx, id string) error {
	n, err := comparisonsql.New(tx).DeleteSample(ctx, id)
	if err != nil {
		return fmt.Errorf("delete sample %s: %w", id, err)
	}
	if n == 0 {
		return fmt.Errorf("sample %q: %w", id, ErrSampleNotFound)
	}
	return nil
}
