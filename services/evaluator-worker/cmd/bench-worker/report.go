package main

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is what is printed; what was not measured is absent.
type report struct {
	Mode        string  `json:"mode"`
	Evaluations int     `json:"evaluations"`
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"per_second"`

	Claims     *latencies `json:"claims,omitempty"`
	Pickup     *latencies `json:"pickup,omitempty"`
	Statements *float64   `json:"statements_per_second,omitempty"`
	Held       *memory    `json:"held,omitempty"`
	After      *memory    `json:"after,omitempty"`
}

type latencies struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

func latenciesOf(all []time.Duration) *latencies {
	if len(all) == 0 {
		return &latencies{}
	}
	slices.Sort(all)
	at := func(share float64) float64 {
		return float64(all[int(share*float64(len(all)-1)+0.5)].Microseconds()) / 1000
	}
	return &latencies{Count: len(all), P50: at(0.5), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

// memory is what the process has, after a collection of its garbage.
type memory struct {
	Goroutines    int    `json:"goroutines"`
	HeapBytes     uint64 `json:"heap_bytes"`
	SysBytes      uint64 `json:"sys_bytes"`
	ResidentBytes uint64 `json:"resident_bytes,omitempty"` // where /proc tells it
}

func memoryNow() *memory {
	runtime.GC()
	runtime.GC() // a second one frees what the first found in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return &memory{Goroutines: runtime.NumGoroutine(), HeapBytes: m.HeapAlloc, SysBytes: m.Sys, ResidentBytes: resident()}
}

func resident() uint64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
