# make train       all set-up, then the main job: a sharded Llama learns real text on four processes
# make test        all set-up, then lint, format, types and tests
#
# make lint        lint, format and types alone
# make test-slow   the long matrices of the tests
# make test-torch VERSION=2.14.1   what leans on torch, on that release, in a set-up of its own
# make oracle      every rule of the checker against what an op denotes; prints lies and needless refusals
# make parity-table  docs/parity.md anew: ten steps on each backend, held against each other bit by bit
# make mutants     faults planted in right programs, and which of them the checker reports
# make bench       every figure that is claimed: the step, the checker, the planner, the import
# make clean       remove the set-up and the caches
PYTHON ?= python3
BIN := .venv/bin

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

VERSION ?= 2.14.1
OTHER := .venv-torch-$(VERSION)
ON_TORCH := tests/backends tests/comm tests/parity tests/train \
	tests/check/test_flex.py tests/check/test_functions.py tests/check/test_intercept.py

.PHONY: train test test-slow test-torch lint oracle parity-table mutants bench setup clean

train: setup
	$(BIN)/meshwright train llama3_debug

test: lint
	$(PYTEST)

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-torch: $(OTHER)/ready
	$(PYTEST:$(BIN)%=$(OTHER)/bin%) $(ON_TORCH)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

oracle: setup
	$(BIN)/python -m tests.oracle

parity-table: setup
	$(BIN)/python -m tests.parity.table

mutants: setup
	$(BIN)/python -m tests.mutants

bench: setup
	$(BIN)/python -m benchmarks.eager_step
	$(BIN)/python -m benchmarks.checker
	$(BIN)/python -m benchmarks.backends
	$(BIN)/python -m benchmarks.planner
	$(BIN)/python -m benchmarks.importing

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "meshwright wants Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peers]'
	@touch $@

.venv-torch-%/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	grep -v '^torch==' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-c .venv-torch-$*/constraints.txt torch==$* -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .venv-torch-* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
