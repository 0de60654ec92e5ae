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
.PHONY: help env figures paper-figures report specs verify docs test test-slow test-gpu test-slurm test-faults chaos lint format zoo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create .venv with the pinned tools and this package

$(STAMP): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements.txt
	$(PY) -m pip install --quiet -e .
	@touch $@

figures: env ## everything from nothing: data, runs, figures, tables, claims, report (SCALE=preview|paper|tiny, CORES=)
	$(SNAKEMAKE) --config scale=$(SCALE)
	$(MAKE) --no-print-directory report

# Parts of the record that are not there are named and left out, not run.
paper-figures: env ## the paper's scale from the recorded runs under results/paper: nothing is trained, no GPU is needed
	$(PY) -m paper.recorded --scale paper
	$(SNAKEMAKE) --config scale=paper only_recorded=True
	$(SNAKEMAKE) --report figures/paper/report.html --config scale=paper only_recorded=True accept_existing=False

verify: env ## make N recorded runs again, first epochs on a CPU, and compare (N=3, SEED=, VERIFY_FLAGS=)
	$(PY) -m paper.verify --scale paper --count $(or $(N),3) $(if $(SEED),--seed $(SEED)) $(VERIFY_FLAGS)

docs: env ## fill README.md and docs/ with figures, claims, times and cost from the recorded runs
	$(PY) -m paper.tell

report: env ## one HTML file with all figures, captions, claims, settings and runtimes: figures/SCALE/report.html
	$(SNAKEMAKE) --report figures/$(SCALE)/report.html --config scale=$(SCALE) accept_existing=False

specs: env ## settings of all runs as JSON, for a machine without Snakemake: results/SCALE/specs.json (ITEMS="bcd ...")
	$(PY) -m paper.specs --scale $(SCALE) $(if $(ITEMS),--items $(ITEMS)) --output results/$(SCALE)/specs.json

# One thread for each test process: the processes share the cores.
test: export OMP_NUM_THREADS := 1
test: lint ## lint, check types, run the tests (but those that have a target of their own)
	$(PY) -m pytest $(PYTEST_FLAGS) -m "not slow and not gpu and not slurm and not faults"

test-slow: export OMP_NUM_THREADS := 1
test-slow: env ## run the few tests that take long each
	$(PY) -m pytest $(PYTEST_FLAGS) -m slow

test-gpu: env ## run the tests that need a GPU (skipped where there is none)
	$(PY) -m pytest $(PYTEST_FLAGS) -m gpu

# The executor is looked for here too: in the environment it would slow every start of Snakemake.
test-slurm: export PYTHONPATH := $(CURDIR)/build/slurm
test-slurm: export OMP_NUM_THREADS := 1
test-slurm: env ## run the tiny scale, and faults, through a Slurm that is started for it (skipped where there is none)
	$(PY) -m pytest -m slurm tests/slurm

test-faults: export OMP_NUM_THREADS := 1
test-faults: env ## kill Snakemake and jobs, fill disks, damage files: the same command must finish with the same bytes
	$(PY) -m pytest $(PYTEST_FLAGS) -m faults tests/faults

chaos: env ## kill at random over the tiny scale, N rounds, and compare bytes with an undisturbed run (N=20, SEED=)
	$(PY) -m tests.faults.chaos --rounds $(or $(N),20) $(if $(SEED),--seed $(SEED))

lint: env ## check style and types
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m snakefmt --check $(RULES)
	$(PY) -m pyright

format: env ## apply the style
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)
	$(PY) -m snakefmt $(RULES)

zoo: env ## rescale the model zoo and print its table (TABLE=file, MINUTES= to stop after)
	$(PY) -m tests.zoo $(if $(TABLE),--table $(TABLE)) $(if $(MINUTES),--minutes $(MINUTES))

bench: env ## time the rescaling against the literal algorithm, and the training engine
	$(PY) benchmarks/rescale.py $(BENCH_FLAGS)
	$(PY) benchmarks/train.py

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info
