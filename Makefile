# make train   all set-up, then the main job: a sharded Llama learns real text on four processes
# make test    all set-up, then lint, format, types and tests
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-slow lint bench setup clean

train: setup
	$(BIN)/meshwright train llama3_debug

test: lint
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks.eager_step

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "meshwright wants Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peers]'
	@touch $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
