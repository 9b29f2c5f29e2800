# Every target does its own set-up in .venv; the second time there is nothing to do.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
unexport PYTHONDONTWRITEBYTECODE # tests start many processes, and each would compile all of it

.PHONY: demo test test-elsewhere lint data bench docs slow reproduce clean help

help:
	@echo "make demo            set up and run the tour: train, cut, shelve, join, measure, report"
	@echo "make test            set up and run the tests"
	@echo "make test-elsewhere  run them as other processors and busier machines would (an hour)"
	@echo "make lint            ruff and mypy"
	@echo "make data            fetch the data sets that reproduce/ and benchmarks/ need into data/"
	@echo "make bench           run every benchmark; each prints a ratio to its peer"
	@echo "make reproduce       run the claims of the sources, small (some four hours the first time)"
	@echo "make docs            build the documentation into site/"
	@echo "make slow            proofs that take minutes"

demo: $(VENV)/.run
	$(BIN)/dovetail demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-elsewhere: $(VENV)/.dev
	$(BIN)/python scripts/test_elsewhere.py

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

data: $(VENV)/.run
	$(BIN)/dovetail data get --all

bench: $(VENV)/.run
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

reproduce: $(VENV)/.run
	@set -e; for file in reproduce/*.py; do echo "== $$file"; $(BIN)/python $$file; done

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.run: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (torch is large; this happens once) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet --editable ".[dev]"
	@touch $@
