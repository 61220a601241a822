# The two commands of a newcomer: make demo, make test.
.PHONY: demo test test-paths-million build screenshots lint fuzz controlplane test-live bench

# Static and without symbols: it runs in any container, and a scan holds a
# third less memory, as nothing of the binary is relocated when it starts.
build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ppodoctor ./cmd/ppodoctor

# The scan itself exits 1, for something is wrong in the incident.
demo: build
	@bin/ppodoctor scan --demo; code=$$?; [ $$code -eq 1 ] || exit $$code

test:
	go test -timeout 30m ./...

# The pictures of README.md; needs chromium and script.
screenshots: build
	go run ./testdata/screenshots bin/ppodoctor

lint:
	@unformatted=$$(go tool gofumpt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofumpt-ed: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...

# Each fuzzer for some inputs, or for a time (FUZZTIME=30s); what it finds is
# kept as a seed.
FUZZTIME ?= 1000x
fuzz:
	@for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg >/tmp/ppodoctor-fuzz.log 2>&1 || { cat /tmp/ppodoctor-fuzz.log; exit 1; }; \
		done; \
	done

# A real etcd and kube-apiserver. Built once: Go's build cache keeps them.
CONTROLPLANE ?= $(CURDIR)/bin/controlplane
controlplane:
	testdata/controlplane/build.sh $(CONTROLPLANE)

# Every scenario in a running cluster: live, recorded and replayed are
# diagnosed alike; and what happens with fewer rights.
test-live: controlplane
	PPODOCTOR_CONTROLPLANE=$(CONTROLPLANE) go test -tags controlplane -timeout 30m -count 1 ./probes/live

# A scan of a generated cluster beside a bare lister of the same kinds.
NODES ?= 1000
PODS ?= 10000
CRASHING ?= 0
bench: build controlplane
	PPODOCTOR_CONTROLPLANE=$(CONTROLPLANE) go test -tags controlplane -timeout 60m -count 1 -run '^$$' -bench Scan -benchtime 1x -v ./probes/live -nodes $(NODES) -pods $(PODS) -crashing $(CRASHING)

# The path solver against the plain evaluator of the tests, a million questions.
test-paths-million:
	NETWORK_PATHS=1000000 go test -timeout 60m -count 1 -run TestPathsAgainstOracle -v ./probes/network
