# The README's commands are `make run` and `make test`; CI runs `make check` and `make test-all`.
PYTHON ?= python3
PROCESSES ?= auto
VENV := .venv
BIN := $(VENV)/bin
# Reasons of what is skipped stand at the end.
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -rfEs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test test-all check format clean

run: $(VENV)/.installed
	$(BIN)/fsvi-bench run --protocol quick

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not cluster"

test-all: $(VENV)/.installed-dev
	$(PYTEST)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("fsvi-bench needs Python 3.11 or newer; name one with: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch and others into $(VENV), some 300 MB from the package index; this takes minutes"
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch, test tools and others into $(VENV), several hundred MB from the package index; this takes minutes"
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed
