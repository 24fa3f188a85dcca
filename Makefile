# Everything a fresh machine with Python 3.11 and gcc needs: `make run` and `make test`.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml $(shell find src native -type f -not -name '*.pyc' -not -path '*/__pycache__/*')

.PHONY: run test test-python test-native policies fuzz lint bench system-deps clean

run: $(INSTALLED)
	$(BIN)/guanaco demo

test: lint test-native fuzz test-python

test-python: $(INSTALLED)
	$(BIN)/python -m pytest

test-native: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" native/run_tests.sh

# Native policies against their Python references on 10,000 random traces; the check tries fewer.
policies: $(INSTALLED)
	GUANACO_EXAMPLES=10000 $(BIN)/python -m pytest tests/properties/test_policies_agree.py -k "random or prior" -p no:cacheprovider --timeout=7200

# Longer runs: FUZZ_S=1800 make fuzz
FUZZ_S ?= 60
fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/fuzz_gguf.py -max_total_time=$(FUZZ_S) -verbosity=0

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.run_all

# liburing is optional: without it experts are read by a pool of threads.
system-deps:
	@if [ ! -e /usr/include/liburing.h ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing liburing-dev for the io_uring back end"; \
	  { apt-get update -qq && apt-get install -y -qq liburing-dev; } >/dev/null 2>&1 \
	    || echo "liburing-dev could not be installed: going on with the thread pool"; \
	fi

$(INSTALLED): $(SOURCES) | system-deps
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet ".[dev,fuzz]"
	@touch $@

clean:
	rm -rf $(VENV) build
