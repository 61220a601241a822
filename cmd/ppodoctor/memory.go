package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// headroom is how much garbage a scan lets pile up before it collects, in
// bytes. Go's own pace goes by the heap's size alone: a small heap would be
// collected dozens of times, and a large one take twice the memory that it
// needs, though a scan is short and runs beside others' work, in pods with a
// limit.
const headroom = 22 << 20

// leastPace is the pace of a large heap, in percent of what lives.
const leastPace = 25

// keepHeadroom sets the collector's pace anew after each collection. A
// finalizer runs once a collection.
func keepHeadroom() {
	debug.SetGCPercent(headroom / (4 << 20) * 100) // the runtime counts the first from 4 MB
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var pace func(*[2]uintptr)
	pace = func(sentinel *[2]uintptr) {
		metrics.Read(live)
		debug.SetGCPercent(max(leastPace, int(headroom*100/max(1, live[0].Value.Uint64()))))
		runtime.SetFinalizer(sentinel, pace)
	}
	runtime.SetFinalizer(new([2]uintptr), pace)
}
