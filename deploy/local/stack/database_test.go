package stack

import "testing"

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p%40@h:1/old?sslmode=disable":  "postgres://u:p%40@h:1/new?sslmode=disable",
		"postgresql://h?dbname=old&sslmode=disable":  "postgresql://h/new?sslmode=disable",
		"host=h port=1 dbname=old password='a b'":    "host=h port=1 dbname=old password='a b' dbname=new",
		"postgres:///old?host=/var/run/postgresql&a": "postgres:///new?a=&host=%2Fvar%2Frun%2Fpostgresql",
	} {
		if got, err := withDatabase(address, "new"); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", address, got, err, want)
		}
	}
	if got, err := withDatabase("postgres://u:secret@h:port/x", "new"); err == nil || err.Error() != "the address of the server is no URL" {
		t.Errorf("got %q, %v", got, err)
	}
}
