package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Machine is what the figures were measured on.
type Machine struct {
	OS           string            `json:"os"`
	Cores        int               `json:"cores"`
	CPU          string            `json:"cpu"`
	MemoryBytes  int64             `json:"memory_bytes"`
	FsyncsPerSec float64           `json:"fsyncs_per_second"` // of 8 KiB, one after the other, where Postgres's data are
	Go           string            `json:"go"`
	Postgres     string            `json:"postgres"`
	Settings     map[string]string `json:"postgres_settings"`
	River        string            `json:"river"`
}

// ThisMachine finds out what can be known without a database. The disk that is asked is that of dir.
func ThisMachine(dir string, probe time.Duration) (Machine, error) {
	m := Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	m.CPU = procField("/proc/cpuinfo", "model name")
	if kib := procField("/proc/meminfo", "MemTotal"); kib != "" {
		if _, err := fmt.Sscanf(kib, "%d kB", &m.MemoryBytes); err != nil {
			return m, fmt.Errorf("read the machine's memory: %w", err)
		}
		m.MemoryBytes *= 1024
	}
	var err error
	m.FsyncsPerSec, err = fsyncRate(dir, probe)
	return m, err
}

// procField is the first value of a name in a file of the kernel's; empty on other systems.
func procField(path, name string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fsyncRate writes a block over and over, as a log of transactions is written by one session.
func fsyncRate(dir string, probe time.Duration) (perSecond float64, err error) {
	const block = 8192
	path := filepath.Join(dir, "fsync-probe")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
	data := make([]byte, block)
	began, n := time.Now(), 0
	for ; n == 0 || time.Since(began) < probe; n++ {
		if _, err := file.WriteAt(data, int64(n%1024)*block); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		if err := syscall.Fsync(int(file.Fd())); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
