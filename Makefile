# Needs make and Python 3.11 or newer with venv; everything else goes into .venv.

# The first of these that is new enough and can make a virtual environment is taken.
# One of your own: make run PYTHON=/path/to/python3
PYTHON ?= python3.13 python3.12 python3.11 python3

VENV := .venv
BIN  := $(VENV)/bin
# Passed on to what `run`, `test`, `test-quick`, `fuzz`, `bench` and `recall-bench` start:
# make run ARGS="--port 7000"
ARGS  =

# What `test-quick` runs: no program, no fuzzing, no generated histories.
QUICK = tests/harness tests/unit tests/golden tests/policy_cases tests/conformance

# For every platform and Python that the project supports, so that the image may have any.
LOCKED = --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet

# A program that starts a hundred times should compile itself once.
unexport PYTHONDONTWRITEBYTECODE

# Two for each core: half of the time a test waits for a program that it started.
WORKERS := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# Two pips in one environment would tread on each other.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help run test test-quick fuzz faults check lint types imports conformance audit lock bench recall-bench pictures clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.with-run  ## start a relay on ws://127.0.0.1:7777 (PORT=7000: another port), its data in ./data
	@exec $(BIN)/rookery serve --data ./data $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(VENV)/.with-test  ## the whole test suite, on all cores; EFFORT=full: more examples, and mutants
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-quick: $(VENV)/.with-test  ## the tests that start no program and take less than a quarter of a second
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not process and not slow" $(QUICK) $(ARGS)

fuzz: $(VENV)/.with-test  ## what nobody would send: 200,000 examples, some ten minutes
	EFFORT=all $(BIN)/python -m pytest tests/fuzz -n 2 --dist worksteal --capture=no $(ARGS)

faults: $(VENV)/.with-test  ## crashes, torn writes, damaged files, failing disks, weeks on two machines: all of it
	EFFORT=all $(BIN)/python -m pytest tests/faults tests/e2e/test_week.py -n $(WORKERS) --dist worksteal --timeout 1500 $(ARGS)

check: lint types imports conformance audit  ## format, linter, types, import contracts, conformance, audit

lint: $(VENV)/.with-check  ## only the linter
	$(BIN)/ruff format --check relay policies tests deploy
	$(BIN)/ruff check relay policies tests

types: $(VENV)/.with-test $(VENV)/.with-check  ## only the types, those of the tests too
	$(BIN)/mypy

imports: $(VENV)/.with-check  ## only the import contracts
	$(BIN)/lint-imports

conformance: $(VENV)/.with-test  ## only: every duty has a proof, no proof was deleted
	$(BIN)/python -m tests.conformance --check

audit: $(VENV)/.with-check  ## only: known vulnerabilities of what the image installs, where the data can be had
	$(BIN)/python deploy/audit.py

lock: $(VENV)/.with-check  ## deploy/*.lock anew: what the image installs, with hashes
	{ echo '# Made by `make lock`: what the image installs, each file by its hash.'; \
	  $(BIN)/uv pip compile pyproject.toml --extra postgres $(LOCKED); } > deploy/requirements.lock
	{ echo '# Made by `make lock`: what builds the wheel in the image, each file by its hash.'; \
	  echo 'hatchling>=1.27' | $(BIN)/uv pip compile - $(LOCKED); } > deploy/build.lock

bench: $(VENV)/.with-test  ## the benchmarks, one table at the end
	$(BIN)/python -m tests.bench $(ARGS)

recall-bench: $(VENV)/.with-test  ## how well memory is found again: a synthetic set, or --data FILE
	$(BIN)/python -m tests.recall $(ARGS)

pictures: $(VENV)/.with-test  ## the terminal pictures of README.md, from what the commands print
	$(BIN)/python -m tests.pictures

clean:  ## remove .venv and the caches, never ./data
	rm -rf $(VENV) build dist .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find relay policies tests -type d -name __pycache__ -prune -exec rm -rf {} +

# A stamp for each set of packages: installed once, and again when pyproject.toml changes.
EXTRA_run   := [sqlcipher]
EXTRA_test  := [test]
EXTRA_check := [check]

$(VENV)/.with-%: $(VENV)/.made pyproject.toml
	@echo "installing what 'make $*' needs into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(EXTRA_$*)'
	@touch $@

# The names are tried, not only looked for: a shim may stand in for a Python that is not there.
$(VENV)/.made:
	@for python in $(PYTHON); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        "$$python" -m venv $(VENV) && touch $@; exit; \
	    fi; \
	done; \
	echo "no Python 3.11 or newer with venv among: $(PYTHON). On Debian: apt install python3-venv; else name one: make PYTHON=/path/to/python3" >&2; \
	exit 1
