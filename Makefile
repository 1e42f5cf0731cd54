# Every target is idempotent and says what it does; `make help` lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fmslurm-setup

# Most tests wait for processes of theirs, so several at a time take half as long on two cores. Cluster tests go file by
# file, since those of one file share a lab.
UNITS := -m 'not cluster and not soak' -n 3
CLUSTER := -m 'cluster and not soak' -n 2 --dist loadfile

.PHONY: help setup demo test test-unit test-matrix soak check lint types arrows bench man clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install what fmslurm needs: distribution packages (as root) and a virtual environment in .venv

$(STAMP): pyproject.toml constraints.txt .ci/packages
	sh .ci/packages
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup ## play the main job on a real Slurm with simulated hardware, and take everything down again
	bin/fmslurm lab demo

test: setup ## unit tests, and cluster tests on the installed Slurm
	$(BIN)/python -m pytest $(UNITS)
	$(BIN)/python -m pytest $(CLUSTER)

test-unit: setup ## only the tests that need no Slurm and no root
	$(BIN)/python -m pytest $(UNITS)

test-matrix: setup ## the cluster tests on three Slurm versions
	sh .ci/matrix

soak: setup ## what takes hours: a million histories, long kills, fuzzing
	$(BIN)/python -m pytest -m soak -s
	FMSLURM_BREAKER_EXAMPLES=20000 $(BIN)/python -m pytest tests/slurm/test_slurm_breaker_properties.py
	FMSLURM_SOAK_KILLS=20000 $(BIN)/python -m pytest -m '' tests/staging/test_staging_agent.py -k killed_at_random

check: lint types arrows ## lint, types and import arrows

lint: setup
	$(BIN)/ruff check slurm_ext tests bench examples docs
	$(BIN)/ruff format --check slurm_ext tests bench examples docs
	$(BIN)/shellcheck -s sh bin/fmslurm prolog/* epilog/* .ci/*

types: setup
	$(BIN)/mypy

arrows: setup
	$(BIN)/lint-imports

bench: setup ## every benchmark, short form; `bench/NAME --full` runs all versions and repeats
	@for bench in bench/*; do test -x "$$bench" && test -f "$$bench" || continue; "$$bench" || exit 1; done

man: setup ## man pages of all commands, made from their own help, in build/man
	$(BIN)/python docs/man.py build/man

clean: ## remove what setup and tests made inside this folder
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
