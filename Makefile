# Everything starts here: `make demo` and `make test` set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PINS := pins/dev.txt
READY := $(VENV)/.ready
RAY_DEFAULT := $(CURDIR)/.venvs/ray-default

.PHONY: demo test lint types check bench clean

demo: $(READY)
	$(BIN)/rltrace wrap -- $(BIN)/python examples/train.py
	$(BIN)/rltrace report

test: $(READY) $(RAY_DEFAULT)/.ready
	RAY_DEFAULT_PACKAGES=$(RAY_DEFAULT) $(BIN)/python -m pytest

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
	@echo "installing into $(VENV) (a few minutes the first time)"
	test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(PINS) torch
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable '.[trainer,dev]'
	touch $@

$(RAY_DEFAULT)/.ready: pins/ray-default.txt $(PINS) | $(READY)
	@echo "installing what the tests of ray job submit need into .venvs/"
	rm -rf $(RAY_DEFAULT)
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --target $(RAY_DEFAULT) -r $<
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache rltrace-runs
