PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests benchmarks)
PYTEST_FLAGS ?= -n 2

# Pyright would otherwise ask the network whether a newer release exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env test lint format zoo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create .venv with the pinned tools and this package

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements.txt
	$(PY) -m pip install --quiet -e .
	@touch $@

# One thread for each test process: the processes share the cores.
test: export OMP_NUM_THREADS := 1
test: lint ## lint, check types, run the tests (without the zoo and GPU tests)
	$(PY) -m pytest $(PYTEST_FLAGS) -m "not zoo and not gpu"

lint: env ## check style and types
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m pyright

format: env ## apply the style
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

zoo: env ## rescale the whole model zoo and print its table
	$(PY) -m tests.zoo $(if $(TABLE),--table $(TABLE))

bench: env ## time the rescaling against the literal algorithm
	$(PY) benchmarks/rescale.py $(BENCH_FLAGS)

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info
