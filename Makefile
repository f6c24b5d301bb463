# The README's commands are `make run`, `make check`, `make test` and `make docs`; CI runs all but the first, and `make test-all`.
PYTHON ?= python3
PROCESSES ?= auto
VENV := .venv
BIN := $(VENV)/bin
# -rfEs lists failures and skips with their reasons at the end.
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -rfEs
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# On all cores, where pip compiles on one, and without packages' own tests and parts that nothing imports here. Some packages
# have files for later Pythons.
UNUSED := '/tests?/|/ray/(rllib|data|serve|tune|train|llm|dashboard)/|/torch/(_inductor|testing|onnx)/'
COMPILE := $(BIN)/python -m compileall -q -j 0 -x $(UNUSED) $(VENV)/lib >/dev/null || true

# Hundreds of processes import the package, and each worker the tests, whose assertions pytest rewrites.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all check docs pictures format clean

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

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built site/index.html"

# Reruns the commands whose output or figures the documentation shows; PARTS="report ksw2015-fig2" selects parts.
pictures: $(VENV)/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/make_pictures.py $(PARTS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("fsvi-bench needs Python 3.11 or newer; name one with: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing torch and other packages into $(VENV): about 300 MB, which takes a few minutes"
	$(PIP) -e .
	@$(COMPILE)
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt tests/laplace.txt | $(BIN)/python
	@echo "installing torch, test tools and other packages into $(VENV): several hundred MB, which takes a few minutes"
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps -r tests/laplace.txt
	@$(COMPILE)
	touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing MkDocs, torch and other packages into $(VENV): about 300 MB, which takes a few minutes"
	$(PIP) -e '.[docs]'
	@$(COMPILE)
	touch $@ $(VENV)/.installed
