PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests benchmarks tools)
RULES := Snakefile $(wildcard workflow/rules/*.smk)
PYTEST_FLAGS ?= -n 2 --dist loadgroup
CORES ?= $(shell nproc)
PRESET ?= paper
SNAKEMAKE = $(PY) -m snakemake --cores $(CORES)

# Pyright would otherwise ask the network whether a newer release exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env figures preview tiny report specs verify docs docs-check docs-site test test-site test-workflow test-slow test-gpu test-slurm test-faults chaos lint format zoo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create .venv with the pinned tools and this package

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Expected Python 3.11 or newer as \`$(PYTHON)\`, got \`$$($(PYTHON) --version 2>&1)\`. Name another one: make env PYTHON=python3.11" >&2; exit 1; }
	@echo "Installing the pinned packages into $(VENV): once, a few minutes and about 6 GB"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements.txt
	$(PY) -m pip install --quiet -e .
	@touch $@

figures: env ## the paper's figures, tables, claims and report from the recorded runs: nothing is trained, no GPU is needed
	$(SNAKEMAKE)
	$(SNAKEMAKE) --report figures/paper/report.html

preview: env ## everything in miniature from nothing: data, runs, figures, tables, claims, report
	$(SNAKEMAKE) --config preset=preview
	$(SNAKEMAKE) --report figures/preview/report.html --config preset=preview

tiny: env ## as preview, smaller still and without a download, for tests
	$(SNAKEMAKE) --config preset=tiny

report: env ## one HTML file with all figures, captions, claims, settings and runtimes (PRESET=paper)
	$(SNAKEMAKE) --report figures/$(PRESET)/report.html --config preset=$(PRESET)

specs: env ## settings of all runs as JSON, for a machine without Snakemake (PRESET=paper, EXPERIMENTS="bcd ...")
	$(PY) -m paper.runs --preset $(PRESET) $(if $(EXPERIMENTS),--experiments $(EXPERIMENTS)) --output results/$(PRESET)/specs.json

verify: env ## recompute N recorded runs, first epochs on a CPU, and compare (N=3, SEED=, VERIFY_FLAGS=)
	$(PY) -m paper.verify --preset paper --count $(or $(N),3) $(if $(SEED),--seed $(SEED)) $(VERIFY_FLAGS)

docs: env ## fill README.md and docs/ with figures, claims, times and cost from the recorded runs
	$(SNAKEMAKE) docs

docs-check: env ## after `make figures`: README.md and docs/ say what is recorded
	$(PY) -m paper.docs --check

# The site's tools stay out of the environment.
build/docs/.installed: requirements-docs.txt | env
	rm -rf build/docs
	$(PY) -m pip install --quiet --no-deps --target build/docs -r requirements-docs.txt
	@touch $@

docs-site: export PYTHONPATH := build/docs
docs-site: export NO_MKDOCS_2_WARNING := 1
docs-site: env build/docs/.installed ## build the documentation site from docs/ into build/site, without the network at view time
	$(PY) -m mkdocs build --quiet --strict
	@echo "The site is built: open build/site/index.html"

# One thread for each test process: the processes share the cores.
test: export OMP_NUM_THREADS := 1
test: lint ## lint, check types, run the tests (but those that have a target of their own)
	$(PY) -m pytest $(PYTEST_FLAGS) -m "not slow and not gpu and not slurm and not faults and not workflow and not site"

test-workflow: export OMP_NUM_THREADS := 1
test-workflow: env ## run Snakemake itself: reruns, forced jobs, recorded runs, extension, the report in a browser
	$(PY) -m pytest $(PYTEST_FLAGS) -m "workflow and not slow"

test-site: export OMP_NUM_THREADS := 1
test-site: env build/docs/.installed ## build the site and open it in a browser, run the tutorials, install the wheel
	$(PY) -m pytest $(PYTEST_FLAGS) -m site tests/site

test-slow: export OMP_NUM_THREADS := 1
test-slow: env ## run the few tests that take long each
	$(PY) -m pytest $(PYTEST_FLAGS) -m slow

test-gpu: env ## run the tests that need a GPU (skipped where there is none)
	$(PY) -m pytest $(PYTEST_FLAGS) -m gpu

# The executor is looked for here too: in the environment it would slow every start of Snakemake.
test-slurm: export PYTHONPATH := $(CURDIR)/build/slurm
test-slurm: export OMP_NUM_THREADS := 1
test-slurm: env ## run the tiny preset, and faults, through a Slurm that is started for it (skipped where there is none)
	$(PY) -m pytest -m slurm tests/slurm $(SLURM_FLAGS)

test-faults: export OMP_NUM_THREADS := 1
test-faults: env ## kill Snakemake and jobs, fill disks, damage files: the same command must finish with the same bytes
	$(PY) -m pytest $(PYTEST_FLAGS) -m faults tests/faults

chaos: env ## kill at random over the tiny preset, N rounds, and compare bytes with an undisturbed run (N=20, SEED=)
	$(PY) -m tests.faults.chaos --rounds $(or $(N),20) $(if $(SEED),--seed $(SEED))

lint: env ## check style, vocabulary and types
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m snakefmt --check $(RULES)
	$(PY) tools/vocabulary.py
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
