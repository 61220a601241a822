package probes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/knowledge"
	"github.com/pposiraegi/ppodoctor/probes/logread"
)

// How many logs are read: those of a workload's pods tell the same story.
const (
	podsPerWorkload = 3
	maxAppLogs      = 300
	logReaders      = 8
	recentDeath     = 24 * time.Hour
)

// Logs are the logs of containers that died or are not ready: of a run that
// ended first, then of the present one, of three pods a workload at most.
var Logs = &Probe[*LogSet]{
	Name:  "logs",
	About: "what failed in the logs of containers that died or are not ready",
	Reads: []Permission{{Verb: "get", Resource: "pods/log"}},
	After: []Any{Pods, Workloads},
	Gather: func(ctx context.Context, src Source, known *Facts) (*LogSet, error) {
		return gatherLogs(ctx, src, known, 0, func(p *corev1.Pod) []*ContainerLog { return troubledLogs(p, src.Now()) })
	},
}

// AppLogs are the present logs of containers that run and look healthy: a
// client whose server fails shows it here only. Three pods a workload at most.
var AppLogs = &Probe[*LogSet]{
	Name:  "app-logs",
	About: "what failed in the logs of containers that look healthy",
	Reads: []Permission{{Verb: "get", Resource: "pods/log"}},
	After: []Any{Pods, Workloads},
	Gather: func(ctx context.Context, src Source, known *Facts) (*LogSet, error) {
		return gatherLogs(ctx, src, known, maxAppLogs, func(p *corev1.Pod) []*ContainerLog {
			if Finished(p) || len(troubledLogs(p, src.Now())) > 0 {
				return nil
			}
			return presentLogs(p)
		})
	},
}

// A ContainerLog is what one log of a container says, or why it can't be had.
type ContainerLog struct {
	Namespace, Pod, Container string
	Previous                  bool             // of the last run that ended
	Ended                     bool             // the run that it is of has ended
	Excerpt                   *logread.Excerpt // nil where Gap says why
	Gap                       *Gap
}

// Document is where the log comes from.
func (l *ContainerLog) Document() Document {
	return Log(l.Namespace, l.Pod, l.Container, l.Previous)
}

// A LogSet is the logs of many containers; what can't be had is a gap of the
// single log.
type LogSet struct {
	all   []*ContainerLog
	byPod map[string][]*ContainerLog
	// Unread is how many logs were left out because others of their workload,
	// or enough in all, were read.
	Unread int
}

// All are the logs, by namespace, pod, order of containers; ended runs first.
func (s *LogSet) All() []*ContainerLog { return s.all }

// Of are the logs of a pod, in the order of All.
func (s *LogSet) Of(namespace, pod string) []*ContainerLog { return s.byPod[namespace+"/"+pod] }

// Decisive is the failure that says most about a pod, with its log; nil where
// no log of it says anything.
func (s *LogSet) Decisive(namespace, pod string) (*ContainerLog, *logread.Failure) {
	var in *ContainerLog
	var best *logread.Failure
	for _, l := range s.Of(namespace, pod) {
		if l.Excerpt == nil || l.Excerpt.Decisive == nil {
			continue
		}
		if d := l.Excerpt.Decisive; best == nil || best.Meaning == "" && d.Meaning != "" {
			in, best = l, d
		}
	}
	return in, best
}

// Gaps are the logs that can't be had.
func (s *LogSet) Gaps() []*Gap {
	var gaps []*Gap
	for _, l := range s.all {
		if l.Gap != nil {
			gaps = append(gaps, l.Gap)
		}
	}
	return gaps
}

// Of the logs of a pod, troubledLogs are those that may say why a container
// died or is not ready.
func troubledLogs(p *corev1.Pod, now time.Time) []*ContainerLog {
	var logs []*ContainerLog
	add := func(container string, previous, ended bool) {
		logs = append(logs, &ContainerLog{Namespace: p.Namespace, Pod: p.Name, Container: container, Previous: previous, Ended: ended})
	}
	for _, s := range Statuses(p) {
		last, state := s.LastTerminationState.Terminated, s.State
		died := last != nil && (last.ExitCode != 0 || !s.Ready) && (!s.Ready || now.Sub(last.FinishedAt.Time) < recentDeath)
		if died || s.RestartCount > 0 && state.Waiting != nil {
			add(s.Name, true, true)
		}
		switch {
		case state.Terminated != nil && state.Terminated.ExitCode != 0:
			add(s.Name, false, true)
		case state.Waiting != nil && s.RestartCount > 0:
			add(s.Name, false, true) // kubectl shows the run that ended
		case state.Running != nil && (!s.Ready || died):
			add(s.Name, false, false)
		}
	}
	return logs
}

// presentLogs are the present logs of a pod's running containers.
func presentLogs(p *corev1.Pod) []*ContainerLog {
	var logs []*ContainerLog
	for _, s := range Statuses(p) {
		if s.State.Running != nil {
			logs = append(logs, &ContainerLog{Namespace: p.Namespace, Pod: p.Name, Container: s.Name})
		}
	}
	return logs
}

// gatherLogs reads the logs that choose wants of each pod, of a few pods a
// workload. With a limit, which is for healthy pods, logs that a snapshot
// doesn't hold, or that no right would bring, are no gaps: nobody captures
// them all.
func gatherLogs(ctx context.Context, src Source, known *Facts, limit int, choose func(*corev1.Pod) []*ContainerLog) (*LogSet, error) {
	workloads, err := Workloads.Of(known)
	if err != nil {
		return nil, err
	}
	signatures, err := known.signatures()
	if err != nil {
		return nil, err
	}
	set := &LogSet{byPod: map[string][]*ContainerLog{}}
	var wanted []*ContainerLog
	for _, w := range workloads.All() {
		pods := 0
		for _, p := range workloads.Pods(w) {
			logs := choose(p)
			switch {
			case len(logs) == 0:
			case limit == 0 && pods == podsPerWorkload, limit > 0 && (pods == 2*podsPerWorkload || len(wanted) >= limit):
				set.Unread += len(logs)
			default:
				pods++
				wanted = append(wanted, logs...)
			}
		}
	}
	readLogs(ctx, src, known, signatures, wanted)
	set.keep(wanted, limit > 0)
	return set, nil
}

// keep indexes logs. Of a container whose run ended the present log and the
// previous one are the same: one of them is enough.
func (s *LogSet) keep(logs []*ContainerLog, onlyHeld bool) {
	held := map[[3]string]bool{}
	for _, l := range logs {
		if l.Excerpt != nil && l.Ended {
			held[[3]string{l.Namespace, l.Pod, l.Container}] = true
		}
	}
	for _, l := range logs {
		if l.Gap != nil && (onlyHeld && l.Gap.Reason == NotCaptured && (l.Gap.Detail == notHeld || l.Gap.Grant == "") || l.Ended && held[[3]string{l.Namespace, l.Pod, l.Container}]) {
			continue
		}
		s.all = append(s.all, l)
	}
	slices.SortStableFunc(s.all, func(a, b *ContainerLog) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	for _, l := range s.all {
		s.byPod[l.Namespace+"/"+l.Pod] = append(s.byPod[l.Namespace+"/"+l.Pod], l)
	}
}

func readLogs(ctx context.Context, src Source, known *Facts, signatures *knowledge.Signatures, logs []*ContainerLog) {
	queue := make(chan *ContainerLog)
	var wg sync.WaitGroup
	for range min(logReaders, len(logs)) {
		wg.Go(func() {
			for l := range queue {
				l.Excerpt, l.Gap = known.store.logs.once(l, func() (*logread.Excerpt, *Gap) { return l.read(ctx, src, signatures) })
			}
		})
	}
	for _, l := range logs {
		queue <- l
	}
	close(queue)
	wg.Wait()
}

func (l *ContainerLog) read(ctx context.Context, src Source, signatures *knowledge.Signatures) (excerpt *logread.Excerpt, gap *Gap) {
	doc := l.Document()
	r, err := src.Open(ctx, doc)
	if err == nil {
		defer r.Close()
		excerpt = logread.Read(r, signatures, logread.Options{Now: src.Now(), Ended: l.Ended})
		err = excerpt.Broken
	}
	if err != nil && !errors.As(err, &gap) {
		gap = gapf(doc, Unreadable, "%v", err)
	}
	return excerpt, gap
}

// readOnce are the logs that were read: several facts look at those of a
// controller, and each is fetched once a walk.
type readOnce struct {
	mu   sync.Mutex
	logs map[logKey]func() (*logread.Excerpt, *Gap)
}

type logKey struct {
	path  string
	ended bool
}

func (o *readOnce) once(l *ContainerLog, read func() (*logread.Excerpt, *Gap)) (*logread.Excerpt, *Gap) {
	key := logKey{l.Document().Path, l.Ended}
	o.mu.Lock()
	if o.logs == nil {
		o.logs = map[logKey]func() (*logread.Excerpt, *Gap){}
	}
	if o.logs[key] == nil {
		o.logs[key] = sync.OnceValues(read)
	}
	got := o.logs[key]
	o.mu.Unlock()
	return got()
}
