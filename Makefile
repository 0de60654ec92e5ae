PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CODE := $(wildcard src tests benchmarks tools)
RULES := Snakefile workflow/Snakefile $(wildcard workflow/rules/*.smk)
PYTEST_FLAGS ?= -n 2 --dist loadgroup
CORES ?= $(shell nproc)
PRESET ?= paper
TORCH ?= 2.6.0
TORCH_TEST = pytest hypothesis numpy scipy packaging safetensors matplotlib
# One line for each job that starts or ends; a failed job is shown with its log.
SNAKEMAKE = $(PY) -m snakemake --cores $(CORES)

# Pyright would otherwise ask the network whether a newer release exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help env figures preview tiny report specs indices schema verify docs docs-check docs-site test test-site test-workflow test-slow test-torch test-gpu test-slurm test-faults test-registry chaos lint lint-style lint-types format zoo transformers mappings bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(STAMP) ## create .venv with the pinned packages (once, minutes)

$(STAMP): requirements/all.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Expected Python 3.11 or newer as \`$(PYTHON)\`, got \`$$($(PYTHON) --version 2>&1)\`. Name another one: make env PYTHON=python3.11" >&2; exit 1; }
	@echo "Installing the pinned packages into $(VENV): once; a few minutes, several GB"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements/all.txt
	$(PY) -m pip install --quiet -e .
	@touch $@

figures: env ## figures, tables, claims and report from the recorded runs
	@echo "Drawing from the recorded runs: two minutes on two cores. Nothing is trained."
	$(SNAKEMAKE)
	$(SNAKEMAKE) --report figures/paper/report.html
	@echo "Done. Figures: figures/paper. Claims: results/paper/claims.md."
	@echo "Open figures/paper/report.html"

preview: env ## every experiment from nothing in miniature, on a CPU
	@echo "Downloading data if needed, training and measuring in miniature: about seven"
	@echo "minutes on two cores."
	$(SNAKEMAKE) --config preset=preview
	$(SNAKEMAKE) --report figures/preview/report.html --config preset=preview
	@echo "Done. Figures: figures/preview. Open figures/preview/report.html"

tiny: env ## as preview, smaller still and without a download (for tests)
	$(SNAKEMAKE) --config preset=tiny
	@echo "Done. Figures: figures/tiny"

report: env ## the report alone: one HTML file (PRESET=paper)
	$(SNAKEMAKE) --report figures/$(PRESET)/report.html --config preset=$(PRESET)
	@echo "Done. Open figures/$(PRESET)/report.html"

specs: env ## settings of all runs as JSON (PRESET=, EXPERIMENTS="bcd toy")
	$(PY) -m paper.plan --preset $(PRESET) $(if $(EXPERIMENTS),--experiments $(EXPERIMENTS)) --output results/$(PRESET)/specs.json

indices: env ## after new runs: write the indices of recorded runs (PRESET=paper)
	$(PY) -m paper.plan --preset $(PRESET) --indices

schema: env ## write config/schema.json, with which editors check config.yaml
	PYTHONPATH=src $(PY) -m paper.config > config/schema.json

verify: env ## recompute N recorded runs and compare (N=3 SEED= VERIFY_FLAGS=)
	$(PY) -m paper.verify --preset paper --count $(or $(N),3) $(if $(SEED),--seed $(SEED)) $(VERIFY_FLAGS)

docs: env ## fill README.md and docs/ with the recorded numbers
	$(SNAKEMAKE) docs

docs-check: env ## README.md and docs/ show the recorded numbers (after figures)
	$(PY) -m paper.docs --check

# The tools that build the site are installed outside of the environment.
build/docs/.installed: requirements/docs.txt | env
	rm -rf build/docs
	$(PY) -m pip install --quiet --no-deps --target build/docs -r requirements/docs.txt
	@touch $@

docs-site: export PYTHONPATH := build/docs
docs-site: export NO_MKDOCS_2_WARNING := 1
docs-site: env build/docs/.installed ## build the documentation site into build/site
	$(PY) -m mkdocs build --quiet --strict
	@echo "The site is built: open build/site/index.html"

# One thread per test process, because the processes share the cores.
test: export OMP_NUM_THREADS := 1
test: lint ## style, types, and all tests without a target of their own
	$(PY) -m pytest $(PYTEST_FLAGS) -m "not slow and not gpu and not slurm and not faults and not workflow and not site and not registry"

test-workflow: export OMP_NUM_THREADS := 1
test-workflow: env ## Snakemake: reruns, forced jobs, extension, the report
	$(PY) -m pytest $(PYTEST_FLAGS) -m "workflow and not slow"

test-site: export OMP_NUM_THREADS := 1
test-site: env build/docs/.installed ## the site in a browser, the tutorials, the wheel
	$(PY) -m pytest $(PYTEST_FLAGS) -m site tests/site

test-slow: export OMP_NUM_THREADS := 1
test-slow: export PROGRAMS ?= 300
test-slow: env ## the few tests that take long each
	$(PY) -m pytest $(PYTEST_FLAGS) -m slow

# Releases of torch that the library supports, each in an environment of its own with little beside it.
test-torch: export OMP_NUM_THREADS := 1
test-torch: ## the library's tests with another torch (TORCH=2.6.0; TORCH=newest)
	$(PYTHON) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/python -m pip install --quiet $(if $(filter newest,$(TORCH)),--upgrade torch,torch==$(TORCH)) $(TORCH_TEST)
	build/torch-$(TORCH)/bin/python -m pytest -q -p no:cacheprovider -m "not gpu and not slow" tests/pathcond

test-gpu: env ## tests that need a GPU (skipped where there is none)
	$(PY) -m pytest $(PYTEST_FLAGS) -m gpu

# The Slurm executor may be in build/slurm: in the environment it would slow every start of Snakemake.
test-slurm: export PYTHONPATH := $(CURDIR)/build/slurm
test-slurm: export OMP_NUM_THREADS := 1
test-slurm: env ## the tiny preset on a Slurm of its own (skipped without one)
	$(PY) -m pytest -m slurm tests/slurm $(SLURM_FLAGS)

test-faults: export OMP_NUM_THREADS := 1
test-faults: env ## kill jobs, fill disks, damage files; results must be the same
	$(PY) -m pytest $(PYTEST_FLAGS) -m faults tests/faults

test-registry: export PYTHONPATH := build/registry
test-registry: export OMP_NUM_THREADS := 1
test-registry: env build/registry/.installed ## exports resolved by quantization libraries, checks of their lists
	$(PY) -m pytest $(PYTEST_FLAGS) -m registry tests/registry

chaos: env ## kill at random and compare results (N=20 rounds, SEED=)
	$(PY) -m tests.faults.chaos --rounds $(or $(N),20) $(if $(SEED),--seed $(SEED))

lint: env ## check style, vocabulary and types
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line lint-types lint-style

lint-style:
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m snakefmt --check $(RULES)
	$(PY) tools/vocabulary.py

lint-types:
	$(PY) -m pyright

format: env ## apply the style
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)
	$(PY) -m snakefmt $(RULES)

zoo: env ## rescale the model zoo, print its table (TABLE=file MINUTES=)
	$(PY) -m tests.zoo $(if $(TABLE),--table $(TABLE)) $(if $(MINUTES),--minutes $(MINUTES))

transformers: env ## rescale tiny transformers, write their page (REAL=meta|cpu|cuda for published sizes, CAUSAL=1, ONLY=)
	$(PY) -m tests.transformers_zoo $(if $(CAUSAL),--causal) $(if $(REAL),--real $(REAL)) $(if $(ONLY),--only $(ONLY))

# Quantization libraries are installed outside of the environment; they use its torch.
build/registry/.installed: requirements/registry.txt | env
	rm -rf build/registry
	$(PY) -m pip install --quiet --no-deps --target build/registry -r requirements/registry.txt
	@touch $@

mappings: export PYTHONPATH := build/registry:src
mappings: export OMP_NUM_THREADS := 1
mappings: env build/registry/.installed ## check the mappings of quantization libraries, write their page
	$(PY) -W ignore tools/mappings.py --check

bench: env ## time the rescaling and the training engine
	$(PY) benchmarks/rescale.py $(BENCH_FLAGS)
	$(PY) benchmarks/train.py

clean: ## remove the environment, caches and build outputs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -rf src/*.egg-info
