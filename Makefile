# The two commands of a newcomer: make demo, make test.
.PHONY: demo test build lint

build:
	go build -o bin/ppodoctor ./cmd/ppodoctor

# The scan itself exits 1, for something is wrong in the incident.
demo: build
	@bin/ppodoctor scan --demo; code=$$?; [ $$code -eq 1 ] || exit $$code

test:
	go test ./...

lint:
	@unformatted=$$(go tool gofumpt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofumpt-ed: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
