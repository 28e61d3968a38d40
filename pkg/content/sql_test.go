package content_test

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/evalonce/evalonce/pkg/content"
	"github.com/evalonce/evalonce/pkg/pgtest"
)

// The second step of the key exists twice, here and as evaluation_key in the schema. One server answers for both the
// golden vectors and for arbitrary pairs.
func TestSQLTwin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.New(t)

	inSQL := func(ctx context.Context, hash content.Hash, digest [32]byte) (key string, err error) {
		err = pool.QueryRow(ctx, `SELECT evaluation_key($1, $2)`, hash[:], digest[:]).Scan(&key)
		return key, err
	}
	for _, v := range vectors(t) {
		got, err := inSQL(ctx, bytes32(t, v.ContentHash), bytes32(t, v.VersionDigest))
		if err != nil || got != v.Key {
			t.Errorf("%s: %s, %v, want %s", v.Name, got, err, v.Key)
		}
	}

	bytes32s := rapid.SliceOfN(rapid.Byte(), 32, 32)
	rapid.Check(t, func(t *rapid.T) {
		hash := content.Hash(bytes32s.Draw(t, "hash"))
		digest := [32]byte(bytes32s.Draw(t, "digest"))
		want := content.KeyOf(hash, digest)
		if got, err := inSQL(ctx, hash, digest); err != nil || got != string(want) {
			t.Fatalf("%s, %v, want %s", got, err, want)
		}
	})
}
