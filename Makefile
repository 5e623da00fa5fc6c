# The targets are the commands people use. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Every package, build requirements too, is installed from requirements/*.lock, and pip checks its hash.
INSTALL := $(BIN)/pip install --quiet --no-compile --no-build-isolation
EXTRAS := page rocksdb export registry msk tracing spark
# A lock lacks what the ones before it have.
NEEDS_msk := page
NEEDS_tracing := page registry msk
NEEDS_spark := export msk page
LOCKS := $(patsubst %,requirements/%.lock,run $(EXTRAS) dev)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiled modules are kept: each test process, and each bridge that a test starts, would compile all of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: setup
setup: $(READY) ## make .venv from the pinned versions, 1.7 GB with Spark and tests

$(READY): pyproject.toml kafka_timer/pyproject.toml requirements/build.lock $(LOCKS)
	$(call install,$(LOCKS))
	@touch $@

.PHONY: setup-bridge
setup-bridge: ## the same for the bridge alone, 120 MB; also setup-page, setup-rocksdb, setup-export, setup-registry, setup-spark
	$(call install,requirements/run.lock)

.PHONY: $(EXTRAS:%=setup-%)
$(EXTRAS:%=setup-%): setup-%:
	$(call install,$(patsubst %,requirements/%.lock,run $* $(NEEDS_$*)))

# $(call install,LOCKS): make .venv, and install the packages of LOCKS, the client and the bridge.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "Python 3.11 or later is needed ($(PYTHON) is older): make setup PYTHON=python3.12" >&2; exit 2; }
@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
  || { rm -rf $(VENV); echo "could not make $(VENV); on Debian: apt-get install python3-venv" >&2; exit 2; }
@echo "1/3 $(VENV) with $$($(BIN)/python --version), and what packages are built with"
@$(INSTALL) --require-hashes --requirement requirements/build.lock
@echo "2/3 $$(cat $(1) | grep -c '^[a-z].*==') packages: about $(if $(filter %/spark.lock,$(1)),1.7 GB with Spark,120 MB) on disk; a minute or two"
@$(INSTALL) --require-hashes $(foreach lock,$(1),--requirement $(lock))
@echo "3/3 the bridge and its client from this folder"
@$(INSTALL) --no-deps --editable ./kafka_timer --editable .
@mkdir -p .run
@echo "ready: $(BIN)/timer-bridge --help"
endef

.PHONY: lock
lock: ## write requirements/*.lock from pyproject.toml; pinned versions stay [ARGS='--upgrade-package NAME' or --upgrade]
	PYTHON='$(PYTHON)' scripts/lock.sh $(ARGS)

.PHONY: images
images: ## write the digest of each image of compose/.env; needs a Docker engine that can pull
	scripts/pin-images.sh

.PHONY: bake
bake: ## the images of bridge and audit by docker buildx [REPOSITORY=registry.example/timer-bridge TAG=0.2.0 ARGS=--push]
	BASE="$${BASE:-$$(sed -n 's/^BASE=//p' compose/.env)}" docker buildx bake --file compose/docker-bake.hcl $(ARGS)

# A process whose test hangs where pytest-timeout cannot end it, as in a call of a C library, shows its stacks and ends.
ENDS := --override-ini faulthandler_timeout=900 --override-ini faulthandler_exit_on_timeout=true

# Tests that need neither broker nor Spark run in two processes.
ALONE := not broker and not spark and not slow
QUICK := --numprocesses 2 -m '$(ALONE)'
# Tests with a broker wait for it most of the time, so three processes share two cores; with four, tests that compare the
# pace of processes fail. conftest.py says which tests stay together. They start in the order of their names: by size, the
# longest module, chaos, would start last and run alone.
SHARED := --numprocesses 3 --dist loadscope --no-loadscope-reorder $(ENDS)
WAITING := $(SHARED) -m '(broker or spark) and not slow'

# Static checks, and tests that need neither broker nor Spark: under a minute.
.PHONY: check
check: export SEEDS ?= 8
check: $(READY) static ## lint, types, imports, and most tests that need no broker and no Spark
	$(BIN)/python -m pytest --numprocesses 2 -m '$(ALONE) and not thorough'

.PHONY: static
static: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > .run/imports.log || { cat .run/imports.log; exit 1; }

# SEEDS: number of histories that the simulation plays. pytest's summary is the last line, for people and for CI. Below
# it is a line `flaky: NAME` for each test with a broker or Spark that failed and then passed alone.
.PHONY: test
test: export SEEDS ?= 100
test: $(READY) static ## everything: check, a real broker, Spark
	@# The broker's image is pulled or built meanwhile. If that fails, the first test that needs it says why.
	if docker info > /dev/null 2>&1; then compose/kafka/ensure-image.sh > .run/kafka-image.log 2>&1 & fi
	$(BIN)/python -m pytest $(QUICK)
	$(BIN)/python -m spark_jobs.fetch
	$(BIN)/python -m pytest -p integration_tests.support.rerun_failed $(WAITING)

.PHONY: test-full
test-full: export SEEDS ?= 20000
test-full: export EXAMPLES ?= 10
test-full: export CHAOS_MINUTES ?= 3
test-full: export BURST ?= 1000000
test-full: export KILLS ?= 20
test-full: $(READY) static ## the same with larger numbers: many seeds, many kills
	$(BIN)/python -m pytest --timeout 7200

.PHONY: demo
demo: $(READY) ## flights of 2013 through the bridge, audited by Spark [DAYS=1 SECONDS=30 ARGS=...]
	$(BIN)/python -m scripts.demo.run $(if $(DAYS),--days $(DAYS)) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

.PHONY: bench
bench: $(READY) ## the bridge beside plain transactions and RocketMQ: docs/benchmarks.md [ARGS=--quick: five minutes]
	$(BIN)/python -m scripts.bench.run $(ARGS)

.PHONY: chaos
chaos: $(READY) ## random faults in two bridges and three brokers under load; Spark audits the result [MINUTES=20 SEED=1]
	$(BIN)/python -m scripts.chaos.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

.PHONY: soak
soak: $(READY) ## a long steady load: memory, handles and disk stay flat, each timer comes once [MINUTES=30 PER_S=10000]
	$(BIN)/python -m scripts.chaos.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(PER_S),--per-s $(PER_S))

# Packages besides those of `make setup`.
PROOF := .run/proof.ready

$(PROOF): $(READY) requirements/docs.lock requirements/proof.lock
	$(INSTALL) --require-hashes --requirement requirements/docs.lock --requirement requirements/proof.lock
	@touch $@

SITE := .run/docs.ready

$(SITE): $(READY) requirements/docs.lock
	$(INSTALL) --require-hashes --requirement requirements/docs.lock
	@touch $@

.PHONY: fuzz
fuzz: $(PROOF) ## libFuzzer on the decoders of store files, journal and progress [SECONDS=600]
	$(BIN)/python -m scripts.fuzz.run $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: mutations
mutations: $(PROOF) ## mutmut: changed lines of store, partition, turn and others that no test notices [NAMES='timer.schedule.release_policy*']
	mkdir -p .run/mutations
	git ls-files bridge timer schemas kafka_timer scripts docs conftest.py pyproject.toml | tar -c -T - | tar -x -C .run/mutations
	cd .run/mutations && SEEDS=30 $(abspath $(BIN))/python -m mutmut run --max-children 1 $(NAMES)
	cd .run/mutations && $(abspath $(BIN))/python -m mutmut results

.PHONY: coverage
coverage: export SEEDS ?= 200
coverage: $(READY) ## line and branch coverage of timer, bridge and client, with and without a broker
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(QUICK)
	$(BIN)/python -m coverage run -m pytest $(SHARED) -m 'broker and not spark and not slow'
	$(BIN)/python -m coverage combine
	$(BIN)/python -m coverage report

.PHONY: audit
audit: $(PROOF) ## bandit over the code, and known vulnerabilities of all pinned versions (asks PyPI)
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive bridge timer schemas kafka_timer spark_jobs scripts
	$(BIN)/pip-audit --require-hashes --disable-pip $(patsubst %,--requirement %,$(wildcard requirements/*.lock))

.PHONY: release
release: $(PROOF) docs ## .run/release: packages, chart, site, bill of materials, images if Docker answers; tried, and where to upload
	$(BIN)/python -m scripts.release.build

.PHONY: docs
docs: $(SITE) ## docs/metrics.md, docs/settings.md and the chart's README from code and values, and the site of all pages in .run/site
	$(BIN)/python -m scripts.release.reference_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: format
format: $(READY) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: clean
clean: ## remove the files of all runs, jars and images too; .venv stays
	rm -rf .run artifacts spark-warehouse metastore_db derby.log {.,kafka_timer}/*.egg-info .hypothesis .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
