# Every target that needs Python first sets up $(VENV); a second run finds it ready.
#   VENV         where the virtual environment lives
#   PYTHON       which Python (3.11 or newer) makes it
#   PIP_ARGS     more arguments for pip install, such as another index for torch
#   PYTEST_ARGS  more arguments for pytest
#   PEERS        where the virtual environment with other libraries lives
#   TORTURE_ARGS more arguments for the campaigns, such as --short

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_ARGS ?=
PYTEST_ARGS ?=
TORTURE_ARGS ?=
PEERS ?= .venv-peers

BIN := $(VENV)/bin
READY := $(VENV)/.shardkeep-ready
CHROMIUM := $(VENV)/.shardkeep-browser
ATHERIS := $(VENV)/.shardkeep-fuzzer

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench bench-quick bench-tools torture torture-peers docs viewer viewer-pictures clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train, kill a worker, resume on other processes, compare the losses (2 minutes)
	$(BIN)/python examples/demo.py

test: $(READY) $(CHROMIUM) ## all tests and the examples in docstrings
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: $(READY) ## style, format, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(PEERS)/.ready ## saves and loads beside other libraries and the raw limit; writes docs/performance.md (45 minutes)
	PYTHONPATH=src:. $(PEERS)/bin/python -m benchmarks
	PYTHONPATH=src:. $(PEERS)/bin/python -m benchmarks.page

bench-quick: $(PEERS)/.ready ## the same with small states and few repetitions (a minute or two)
	PYTHONPATH=src:. $(PEERS)/bin/python -m benchmarks --quick

bench-tools: $(READY) ## state-dict tools, exports and the command line, beside PyTorch's own
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.memory
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.exports
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.objects
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.command_line

torture: $(READY) $(ATHERIS) ## the long campaigns, then property tests with many more examples (hours)
	$(BIN)/python -m torture $(TORTURE_ARGS)
	$(if $(TORTURE_ARGS),,$(BIN)/python -m torture.page)
	SHARDKEEP_TORTURE=1 $(BIN)/python -m pytest tests -m "torture or hypothesis" \
		--hypothesis-profile=torture --timeout 0 $(PYTEST_ARGS)

torture-peers: $(PEERS)/.ready ## what becomes of other libraries' checkpoints; writes docs/reliability.md and README.md
	PYTHONPATH=src:. $(PEERS)/bin/python -m torture.peers $(TORTURE_ARGS)

docs: $(READY) ## build the site into build/site, without a network, and run the examples of its pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)
	@echo "open build/site/index.html"

viewer: ## build the viewer's page anew from viewer/, into the package (needs Node.js)
	# Not `npm ci`: the lock file lacks builds for other systems, which nothing here needs.
	cd viewer && npm install --no-save --no-progress --no-audit --no-fund && npm run build

viewer-pictures: $(READY) $(CHROMIUM) ## the documentation's pictures of the viewer, by a real browser
	$(BIN)/python -m tests.viewer.screenshots docs/images

clean: ## remove caches and build products; keeps $(VENV)
	rm -rf build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples docs -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true

# torch comes first and alone, so that the pinned build is in place before anything asks for one.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "shardkeep needs Python 3.11 or newer: set PYTHON" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt $(PIP_ARGS) torch
	$(BIN)/python -m pip install -q -c constraints.txt $(PIP_ARGS) -e '.[dev]'
	@touch $@

# The viewer is tried in a real browser. Where none can be installed, its tests say so and are skipped.
$(CHROMIUM): $(READY)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null && exit; done; false \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
			&& apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1; } \
		|| echo "no Chromium here: the viewer's tests in a browser are skipped"
	@touch $@

# Where the fuzzer cannot be installed, the campaign changes inputs by itself, and says so.
$(ATHERIS): $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt $(PIP_ARGS) -e '.[torture]' \
		|| echo "no atheris here: inputs are fuzzed without coverage"
	@touch $@

# Other libraries, which the project itself does not need, in an environment of their own.
$(PEERS)/.ready: requirements-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -q $(PIP_ARGS) -r requirements-peers.txt
	@touch $@
