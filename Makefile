# Danubius: every target sets itself up. `make help` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
STAMP := .venv/.installed
RUN := . .venv/bin/activate &&
# Nothing is tried again: a test that fails now and then is a bug. Each has a time limit of its own (pyproject.toml,
# tests/conftest.py), and all of them together have one, so that whatever hangs is said and not waited for.
PYTEST := timeout --foreground --kill-after=60s 75m $(PY) -m pytest -q --tb=short --durations=10
export HYPOTHESIS_PROFILE ?= ci
# Where it is set, every process that a test starts would compile all that it imports, Spark's workers too.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test prove simulate prove-dev coverage test-azure test-danube-clients check format docs protos bench bench-rabbitmq bench-spark bench-cold bench-grpc fuzz lock clean

help: ## print this
	@echo 'make <target>; nothing needs to be set up before'
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml .ci/setup
	@.ci/setup
	@touch $@

setup: $(STAMP) ## make .venv from requirements.lock (done by every target when needed)

demo: $(STAMP) ## a broker, a fleet of sensors, two pipelines on Spark, every total checked (about a minute)
	@$(PY) -m danubius demo --dir .demo

test: $(STAMP) ## check and every test: unit, property, end to end, crash, Spark (minutes); every part runs, whatever fails
	@.ci/parts check 'make --no-print-directory check' \
	  tests "$(PYTEST) -n 6 --dist worksteal -m 'not spark and not azure and not danube_clients' --ignore tests/test_tidy.py --ignore tests/test_tidy_clock.py tests" \
	  spark "$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m 'spark and not azure' tests"

# Proofs print what they saw. PROVE_ARGS chooses among them: make prove PROVE_ARGS=tests/spark/test_sink_kills.py
PROVE_ARGS ?= tests
PROVE := DANUBIUS_PROVE=1 $(PY) -m pytest -q --tb=short -raP --durations=0
prove: $(STAMP) ## what is too long for `make test`: kills, histories and sizes by the thousand and the million (hours)
	@failed=0; \
	.ci/parts proofs "$(PROVE) -m '(prove or grows) and not spark and not azure' $(PROVE_ARGS)" || failed=1; \
	.ci/parts spark "$(PROVE) -m '(prove or grows) and spark and not azure' $(PROVE_ARGS)" || failed=1; \
	make --no-print-directory fuzz || failed=1; \
	make --no-print-directory prove-dev || failed=1; \
	exit $$failed

SEED ?= 0
simulate: $(STAMP) ## one simulated world, exactly: make simulate SEED=17 (as a failing test says), or SEED="1 2 3"
	@PYTHONPATH=src:tests $(PY) -m simulation $(SEED)

prove-dev: $(STAMP) ## every test in Python's development mode, which watches asyncio and memory (half as long again)
	$(subst $(PY),$(PY) -X dev,$(PYTEST)) -n 2 --dist worksteal -m 'not spark and not azure and not danube_clients' tests

COVERAGE := COVERAGE_RCFILE=$(CURDIR)/pyproject.toml $(PY) -m coverage
coverage: $(STAMP) ## lines and branches that the tests reach, brokers' processes too, all but Spark's (minutes)
	@rm -rf .coverage && mkdir .coverage
	$(COVERAGE) run -m pytest -q --tb=short -n 4 --dist worksteal -m 'not spark and not azure' tests
	@$(COVERAGE) combine --quiet && $(COVERAGE) report --skip-covered

AZURITE := .venv/azurite/node_modules/azurite
test-azure: $(STAMP) ## the object stores' tests against Azurite, which comes from npm (needs node and npm)
	@test -d $(AZURITE) || npm install --no-audit --no-fund --silent --prefix .venv/azurite azurite@3.35.0
	$(PYTEST) -m azure tests

test-danube-clients: $(STAMP) ## Danube's own clients for Python, Java and Go against a broker (needs mvn and Java 21, go; minutes)
	@$(PY) tests/e2e/danube_programs.py
	$(PYTEST) -n 2 -m danube_clients tests/e2e/test_published_clients.py

CHECKS := "ruff format --check --quiet ." "ruff check --quiet ." "basedpyright --level error" \
  "lint-imports --no-logo" "deptry --no-ansi src" "python -m pytest -q tests/test_tidy.py tests/test_tidy_clock.py"

check: $(STAMP) ## format, lint, types, layers, dependencies, tidiness (seconds)
	@. .venv/bin/activate; failed=0; for step in $(CHECKS); do \
	  if output=$$($$step 2>&1); then echo "ok    $$step"; else echo "FAIL  $$step"; echo "$$output"; failed=1; fi; \
	done; exit $$failed

format: $(STAMP) ## rewrite the code in the house format
	@$(RUN) ruff format . && ruff check --fix --quiet .

docs: $(STAMP) ## write the pages that are made from the code (docs/metrics.md, docs/operations/damage.md)
	@$(PY) -m danubius.app.metric_page docs/metrics.md
	@PYTHONPATH=src:tests $(PY) -m damage.table docs/operations/damage.md

PROTOS := src/danubius/edge/grpc/protos src/danubius/storage_service/protos
protos: $(STAMP) ## compile the protos of the gRPC edge and of the storage service (after a change to one of them)
	@for one in $(addsuffix /*.proto,$(PROTOS)); do \
	  $(PY) -m grpc_tools.protoc -I$${one%/*} --descriptor_set_out=$${one%.proto}.binpb $$one || exit 1; done

bench: $(STAMP) ## Danubius, Redis Streams and NATS JetStream on the same work; writes docs/benchmarks.md
	@$(PY) benches/run.py bench $(BENCH_ARGS)

bench-rabbitmq: $(STAMP) ## Danubius and RabbitMQ Streams on the same work; writes docs/benchmarks.md
	@$(PY) benches/run.py bench-rabbitmq $(BENCH_ARGS)

bench-spark: $(STAMP) ## topics read and written by Spark, micro-batches, latency; writes docs/benchmarks.md
	@$(PY) benches/spark.py $(BENCH_ARGS)

bench-cold: $(STAMP) ## cold storage beside plain OpenDAL, publishing with and without it; writes docs/benchmarks.md (minutes)
	@$(PY) benches/cold.py $(BENCH_ARGS)

bench-grpc: $(STAMP) ## Danube's own client beside the native one (minutes)
	@$(PY) benches/grpc.py $(BENCH_ARGS)

.PHONY: bench-attacks
bench-attacks: $(STAMP) ## memory, and latency of others, under attacks on the ports; --src SRC measures an older checkout (minutes)
	@$(PY) benches/attacks.py $(BENCH_ARGS)

fuzz: $(STAMP) ## the property and fuzz tests again with fresh dice and many more examples
	HYPOTHESIS_PROFILE=fuzz $(PYTEST) -n 2 --timeout 7200 tests/property $(wildcard tests/fuzz)

lock: $(STAMP) ## resolve pyproject.toml into requirements.lock (names and versions only)
	@$(RUN) { command -v uv >/dev/null || pip install -q uv; } && uv pip compile --quiet --universal --python-version 3.11 \
	  --extra broker --extra spark --extra avro --extra tables --extra grpc --extra tier --group dev --group bench --no-annotate --no-header \
	  pyproject.toml | sed -E '/^--/d' > requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## remove .venv, caches and results
	rm -rf .venv .coverage .bench .demo .hypothesis .pytest_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
