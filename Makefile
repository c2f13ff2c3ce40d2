# `make run` and `make test` set everything up from nothing: Python 3.11, git and make are enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# DVC's stages call `seedloom` by name.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: run test bench check setup setup-test browser clean

run: setup
	$(BIN)/seedloom doctor --quick
	$(BIN)/dvc repro --quiet prepare
	$(BIN)/seedloom run lifecycle --params params.yaml:lifecycle --report.folder reports/lifecycle

# Files of tests run in two processes; `make test PROCESSES=0` runs all of them in one.
PROCESSES ?= 2
test: setup-test browser check
	$(BIN)/python -m pytest -n $(PROCESSES) --no-loadscope-reorder

check: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/seedloom cards --check

bench: setup-test
	$(BIN)/python -m pytest tests/benchmarks -o addopts= --benchmark-sort=name

setup: $(VENV)/.run
setup-test: $(VENV)/.test

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and exactly as pinned: a newer one would bring gigabytes of GPU libraries.
$(VENV)/.run: pyproject.toml constraints.txt bundled.txt | $(VENV)/bin/python
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e .
	$(PIP) --no-deps -r bundled.txt
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e '.[dev,dask]'
	touch $@

browser:
	scripts/install_browser.sh

clean:
	rm -rf $(VENV) .seedloom
