# The targets are the commands people use. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# pip applies PIP_CONSTRAINT to build requirements as well, which -c does not.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

.PHONY: setup
setup: $(READY) ## make .venv from the pinned versions; .venv/bin/timer-bridge is ready then

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed ($(PYTHON) is older): make setup PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "could not make $(VENV); on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --editable '.[spark,dev]'
	@touch $@

.PHONY: constraints
constraints: ## write constraints.txt anew from the latest versions that fit pyproject.toml
	PYTHON='$(PYTHON)' scripts/renew-constraints.sh
