# Everything starts here: `make demo` and `make test` set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PINS := pins/dev.txt
READY := $(VENV)/.ready

.PHONY: demo test lint types check bench clean

demo: $(READY)
	$(BIN)/rltrace wrap -- $(BIN)/python examples/train.py
	$(BIN)/rltrace report

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

check: lint types test

bench: $(READY)
	$(BIN)/python -m benchmarks

# torch first, on its pin: an unpinned torch drags in gigabytes of CUDA.
$(READY): pyproject.toml $(PINS)
	test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(PINS) torch
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable '.[trainer,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache rltrace-runs
