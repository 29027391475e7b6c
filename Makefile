# Everything a user or a developer does, by name. `make` lists the targets.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
CONFIG ?= configs/digits.py
ARGS ?=
WORKERS ?= 4
TESTS ?=
BENCH ?= $(wildcard benchmarks/*.py)
SCRIPTS ?= $(wildcard launch/*.sh launch/*/*.sh)
LOCK_PYTHONS ?= python3.11 python3.12 python3.13

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)
MPI_STAMP := $(VENV)/.installed-mpi
COMPILERS := $(VENV)-compilers

.PHONY: help install install-mpi compilers train test test-slow test-all test-compilers matrix lint format docs bench hooks lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13
	@echo
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS=$(EXTRAS) CONFIG=$(CONFIG) ARGS= WORKERS=$(WORKERS) TESTS= BENCH="

install: $(STAMP)  ## make the local environment, with the versions in requirements.lock

install-mpi: $(MPI_STAMP)  ## add mpi4jax, compiled against the MPI whose mpicc is on the PATH

compilers: $(COMPILERS)  ## add the compilers for GPUs and TPUs, beside the environment: 0.8 GB, Linux on x86-64

train: install  ## train: make train CONFIG=configs/digits.py ARGS='epochs=5'
	$(BIN)/python train.py --config $(CONFIG) $(ARGS)

# Tests of processes wait more than they compute: four workers keep two cores busy.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test: install  ## run the tests, or a part: make test TESTS=tests/comm
	$(PYTEST) -m 'not slow' $(ARGS) $(TESTS)

test-all: install  ## run the slow repetitions too: more meshes, seeds and whole runs of what `make test` tests
	$(PYTEST) $(ARGS) $(TESTS)

# By default files of many tests come first.
test-slow: install  ## run the slow repetitions alone: those that begin before SLOW_UNTIL, in an order that SLOW_ORDER draws
	$(PYTEST) -m slow --no-loadscope-reorder $(ARGS) $(TESTS)

# The compilers stand aside, or every process of the other tests would look for a TPU.
test-compilers: compilers  ## compile every strategy for GPUs and TPUs that are not there
	PYTHONPATH=$(abspath $(COMPILERS)) $(BIN)/python -m pytest -n 2 $(ARGS) tests/accelerators

matrix: compilers  ## every strategy on every platform for three models, and what fits: hours
	$(BIN)/python -m benchmarks.matrix --out benchmarks/results/matrix.jsonl --jobs 2
	$(BIN)/python -m benchmarks.fitting --out benchmarks/results/fitting.jsonl
	$(BIN)/python -m benchmarks.matrix --out benchmarks/results/matrix.jsonl --fitting benchmarks/results/fitting.jsonl --page docs/results_accelerators.md

lint: install  ## check format, style, types and the direction of imports; change nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@if command -v shellcheck >/dev/null; then \
	  shellcheck .ci/run $(SCRIPTS); \
	else echo "shellcheck is not installed: shell scripts were not checked"; fi

format: install  ## format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install  ## write the documentation site to build/docs; a warning is an error
	@$(BIN)/python -c "import furo, myst_parser" 2>/dev/null || $(BIN)/pip install --quiet -c requirements.lock -e '.[docs]'
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site docs build/docs
	@echo "build/docs/site/index.html"

bench: install  ## run a benchmark: make bench BENCH=benchmarks/data_rate.py; without BENCH all, for hours, some as root
	@for script in $(BENCH); do echo "== $$script"; $(BIN)/python $$script $(ARGS) || exit 1; done

hooks: install  ## check every commit before it is made
	$(BIN)/pre-commit install

lock:  ## write requirements.lock anew, with the newest versions
	$(PYTHON) tools/lock.py $(LOCK_PYTHONS)

clean:  ## remove the environments, the caches and what a build left; keep runs/
	rm -rf .venv* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock | $(BIN)/pip
	@echo "Installing jaxnet[$(EXTRAS)] into $(VENV): a minute or so, 1.3 GB."
	$(BIN)/pip install --quiet --constraint requirements.lock --editable '.[$(EXTRAS)]'
	@touch $@

# With an nvcc on the PATH it would be compiled for CUDA too, unless CUDA_PATH is a directory that holds no CUDA.
$(MPI_STAMP): $(STAMP)
	@command -v mpicc >/dev/null || { \
	  echo "error: no mpicc on the PATH; on Debian and Ubuntu: apt-get install libopenmpi-dev openmpi-bin" >&2; exit 1; }
	$(BIN)/pip install --quiet --constraint requirements.lock 'jaxnet[mpi-build]'
	$(if $(findstring cuda,$(EXTRAS)),,CUDA_PATH=$(abspath $(BIN))) \
	  $(BIN)/pip install --quiet --constraint requirements.lock --no-build-isolation 'jaxnet[mpi]'
	@touch $@

$(COMPILERS): $(STAMP)
	@echo "Installing the compilers for GPUs and TPUs into $@: a minute or so, 0.8 GB."
	rm -rf $@ $@.new
	$(BIN)/pip install --quiet --no-deps --target $@.new $$($(BIN)/python tools/compilers.py)
	mv $@.new $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: no '$(PYTHON)' on the PATH; jaxnet needs Python 3.11, 3.12 or 3.13:" \
	       "make install PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); jaxnet needs Python 3.11, 3.12 or 3.13:" \
	       "make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu:" \
	       "apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
