PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests benchmarks)
RULES := Snakefile $(wildcard workflow/rules/*.smk)
PYTEST_FLAGS ?= -n 2 --dist loadgroup
CORES ?= $(shell nproc)
SCALE ?= preview
SNAKEMAKE = $(VENV)/bin/snakemake --cores $(CORES)

# Pyright would otherwise ask the network whether a newer release exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env figures report specs test lint format zoo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create .venv with the pinned tools and this package

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements.txt
	$(PY) -m pip install --quiet -e .
	@touch $@

figures: env ## everything from nothing: data, runs, figures, tables, claims, report (SCALE=preview|paper|tiny, CORES=)
	$(SNAKEMAKE) --config scale=$(SCALE)
	$(MAKE) --no-print-directory report

report: env ## one HTML file with all figures, captions, claims, settings and runtimes: figures/SCALE/report.html
	$(SNAKEMAKE) --report figures/$(SCALE)/report.html --config scale=$(SCALE) accept_existing=False

specs: env ## settings of all runs as JSON, for a machine without Snakemake: results/SCALE/specs.json
	$(PY) -m paper.specs --scale $(SCALE) --output results/$(SCALE)/specs.json

# One thread for each test process: the processes share the cores.
test: export OMP_NUM_THREADS := 1
test: lint ## lint, check types, run the tests (without the zoo and GPU tests)
	$(PY) -m pytest $(PYTEST_FLAGS) -m "not zoo and not gpu"

lint: env ## check style and types
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m snakefmt --check $(RULES)
	$(PY) -m pyright

format: env ## apply the style
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)
	$(PY) -m snakefmt $(RULES)

zoo: env ## rescale the whole model zoo and print its table
	$(PY) -m tests.zoo $(if $(TABLE),--table $(TABLE))

bench: env ## time the rescaling against the literal algorithm
	$(PY) benchmarks/rescale.py $(BENCH_FLAGS)

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info
