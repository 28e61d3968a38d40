package config_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evalonce/evalonce/pkg/config"
	"github.com/evalonce/evalonce/pkg/process"
)

type level int

func (l *level) UnmarshalText(text []byte) error {
	i := slices.Index([]string{"low", "high"}, string(text))
	if i < 0 {
		return errors.New("neither low nor high")
	}
	*l = level(i)
	return nil
}

type pool struct {
	Size int32 `env:"POOL_SIZE" envDefault:"8" help:"connections"`
}

type settings struct {
	URL     string        `env:"X_URL,required" secret:"true" help:"the database"`
	Token   string        `env:"X_TOKEN" envDefault:"s3cret-default" secret:"true" help:"the key"`
	Pin     int           `env:"X_PIN" secret:"true" help:"a number"`
	Lease   time.Duration `env:"X_LEASE" envDefault:"90s" help:"how long"`
	Workers int           `env:"X_WORKERS" envDefault:"4" help:"how many"`
	On      bool          `env:"X_ON" envDefault:"true" help:"whether"`
	Ratio   float64       `env:"X_RATIO" envDefault:"0.25" help:"a share"`
	Lanes   []string      `env:"X_LANES" envDefault:"live,bulk" help:"which"`
	Ports   []uint16      `env:"X_PORTS" help:"where"`
	Level   level         `env:"X_LEVEL" envDefault:"low" help:"low or high"`
	Live    pool          `envPrefix:"X_LIVE_"`
	Bulk    pool          `envPrefix:"X_BULK_"`
}

func (s *settings) Validate() error {
	var errs []error
	if s.Lease > time.Hour {
		errs = append(errs, errors.New("X_LEASE: longer than an hour"))
	}
	if s.Live.Size < s.Bulk.Size {
		errs = append(errs, errors.New("X_LIVE_POOL_SIZE: smaller than X_BULK_POOL_SIZE"))
	}
	return errors.Join(errs...)
}

func TestLoadReadsDefaults(t *testing.T) {
	t.Parallel()
	got, err := config.Load[settings]([]string{"X_URL=postgres://db", "X_LEASE=", "OTHER=1"}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.URL != "postgres://db" || got.Token != "s3cret-default" || got.Lease != 90*time.Second || got.Workers != 4 ||
		!got.On || got.Ratio != 0.25 || !slices.Equal(got.Lanes, []string{"live", "bulk"}) || got.Ports != nil ||
		got.Level != 0 || got.Live.Size != 8 || got.Bulk.Size != 8 {
		t.Errorf("%+v", got)
	}
}

func TestLoadReadsTheEnvironment(t *testing.T) {
	t.Parallel()
	got, err := config.Load[settings]([]string{
		"X_URL=postgres://db?a=b=c", "X_LEASE=1500ms", "X_LEASE=2s", "X_WORKERS=-7", "X_ON=false", "X_RATIO=1e-3",
		"X_LANES=bulk", "X_PORTS=80,65535", "X_LEVEL=high", "X_LIVE_POOL_SIZE=20", "X_BULK_POOL_SIZE=2", "X_PIN=1234",
	}, []string{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.URL != "postgres://db?a=b=c" || got.Lease != 1500*time.Millisecond || got.Workers != -7 || got.On ||
		got.Ratio != 0.001 || !slices.Equal(got.Lanes, []string{"bulk"}) || !slices.Equal(got.Ports, []uint16{80, 65535}) ||
		got.Level != 1 || got.Live.Size != 20 || got.Bulk.Size != 2 || got.Pin != 1234 {
		t.Errorf("%+v", got)
	}
}

func TestLoadDoesNotLookAtTheProcess(t *testing.T) {
	t.Parallel()
	got, err := config.Load[struct {
		Path string `env:"PATH" help:"set in every process"`
	}](nil, nil, io.Discard)
	if err != nil || got.Path != "" {
		t.Errorf("PATH = %q (%v), want none", got.Path, err)
	}
}

func TestLoadTellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.Load[settings]([]string{
		"X_TOKEN_FILE=/nonexistent/token", "X_PIN=12t4-hunter2", "X_LEASE=soon", "X_WORKERS=99999999999", "X_ON=perhaps",
		"X_PORTS=80,http", "X_LEVEL=hihg", "X_LIVE_POOL_SIZE=few",
	}, []string{"--token=hunter2", "extra"}, io.Discard)
	if !errors.Is(err, process.ErrUsage) {
		t.Fatalf("%v: not an error of usage", err)
	}
	want := `configuration (--help explains it):
  unknown argument "--token": settings are variables of the environment
  unknown argument "extra": settings are variables of the environment
  X_URL is not set: the database
  X_TOKEN_FILE: open /nonexistent/token: no such file or directory
  X_PIN: its value, which is secret, is no int
  X_LEASE="soon": time: invalid duration "soon"
  X_WORKERS="99999999999": value out of range
  X_ON="perhaps": invalid syntax
  X_PORTS="80,http": invalid syntax
  X_LEVEL="hihg": neither low nor high
  X_LIVE_POOL_SIZE="few": invalid syntax`
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestLoadTakesAnEmptyVariableForOneThatIsNotSet(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]func() error{
		"required": func() error {
			_, err := config.Load[struct {
				A string `env:"X_A,required" help:"a"`
			}]([]string{"X_A="}, nil, io.Discard)
			return err
		},
		"notEmpty": func() error {
			_, err := config.Load[struct {
				A string `env:"X_A,notEmpty" help:"a"`
			}]([]string{"X_A="}, nil, io.Discard)
			return err
		},
		"both": func() error {
			_, err := config.Load[struct {
				A string `env:"X_A,required,notEmpty" secret:"true" help:"a"`
			}]([]string{"X_A="}, nil, io.Discard)
			return err
		},
	} {
		if err := load(); !errors.Is(err, process.ErrUsage) || !strings.Contains(err.Error(), "X_A is not set: a") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadValidatesBesideWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, err := config.Load[settings]([]string{"X_URL=u", "X_LEASE=2h", "X_BULK_POOL_SIZE=9", "X_WORKERS=many"}, nil, io.Discard)
	want := `configuration (--help explains it):
  X_WORKERS="many": invalid syntax
  X_LEASE: longer than an hour
  X_LIVE_POOL_SIZE: smaller than X_BULK_POOL_SIZE`
	if err == nil || err.Error() != want || !errors.Is(err, process.ErrUsage) {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestLoadReadsSecretsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	url, empty := write("url", "postgres://db \r\n"), write("empty", "\n")

	got, err := config.Load[settings]([]string{"X_URL_FILE=" + url, "X_LEASE_FILE=" + url}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.URL != "postgres://db " || got.Lease != 90*time.Second {
		t.Errorf("URL %q, lease %v", got.URL, got.Lease)
	}
	for name, test := range map[string]struct{ environ, want string }{
		"both":  {"X_URL_FILE=" + url, "X_URL and X_URL_FILE are both set"},
		"empty": {"X_TOKEN_FILE=" + empty, "X_TOKEN_FILE: the file " + empty + " is empty"},
	} {
		_, err := config.Load[settings]([]string{"X_URL=hunter2", test.environ}, nil, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
	}
}

func TestHelpPrintsTheTable(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--help", "-help", "-h"} {
		var out strings.Builder
		if _, err := config.Load[settings](nil, []string{"ignored", flag}, &out); !errors.Is(err, config.ErrHelp) {
			t.Errorf("%s: %v", flag, err)
		}
		want := `Settings are variables of the environment; --version tells the release.

NAME              DEFAULT     MEANING
X_URL             (required)  the database; or its file as X_URL_FILE
X_TOKEN           (secret)    the key; or its file as X_TOKEN_FILE
X_PIN                         a number; or its file as X_PIN_FILE
X_LEASE           90s         how long
X_WORKERS         4           how many
X_ON              true        whether
X_RATIO           0.25        a share
X_LANES           live,bulk   which
X_PORTS                       where
X_LEVEL           low         low or high
X_LIVE_POOL_SIZE  8           connections
X_BULK_POOL_SIZE  8           connections
`
		if out.String() != want {
			t.Errorf("%s: got\n%swant\n%s", flag, &out, want)
		}
	}
}

// What only a programmer can have got wrong is found by the first test that loads the struct.
func TestLoadRefusesAStructThatDoesNotExplainItself(t *testing.T) {
	t.Parallel()
	refuse[struct {
		A string `env:"X_A"`
	}](t, "no help")
	refuse[struct {
		A string `help:"a"`
	}](t, "no env tag")
	refuse[struct {
		A string `env:"X_A,unset" help:"a"`
	}](t, "not supported")
	refuse[struct {
		A chan int `env:"X_A" envDefault:"1" help:"a"`
	}](t, "no parser")
	refuse[int](t, "no struct")
}

func refuse[T any](t *testing.T, want string) {
	t.Helper()
	_, err := config.Load[T](nil, nil, io.Discard)
	if err == nil || errors.Is(err, process.ErrUsage) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q, and no error of usage", err, want)
	}
}
