# `make help` says what there is. Everything lives in .venv, which is made on first use; stamps inside it make
# a second run quick, and a changed pyproject.toml or constraints.txt installs again.

PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
SECONDS ?= 60
SEED ?= $(shell date +%s)

VENV := .venv
BIN := $(VENV)/bin
FRESH := build/constraints
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
# What is downloaded, built and installed, build backends included, is what constraints.txt says.
INSTALL := $(PIP) install --constraint constraints.txt --build-constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-long test-clients lint format fuzz bench hostile reference picture constraints clean

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## */  make \1	/p' $(firstword $(MAKEFILE_LIST))

# --- for everybody -----------------------------------------------------------------

demo: $(VENV)/.installed  ## set everything up, stream an answer through the HTTP service, stop it
	$(BIN)/vidette demo --model $(MODEL)

test: $(VENV)/.installed-dev  ## set everything up and run the tests
	$(BIN)/vidette pull smollm2-135m-instruct
	$(BIN)/python tests/halves.py

test-long: $(VENV)/.installed-dev  ## run the tests that take too long for every push
	$(BIN)/vidette pull smollm2-135m-instruct
	$(BIN)/python -m pytest -m long

test-clients: $(VENV)/.installed-dev  ## let clients that others wrote use a real server, all or CLIENTS="openai llm"
	$(BIN)/vidette pull smollm2-135m-instruct
	$(BIN)/python tests/clients/run.py $(CLIENTS)

# --- for developers ----------------------------------------------------------------

lint: $(VENV)/.installed-dev  ## check style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/basedpyright --level error
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-dev  ## format, and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

fuzz: $(VENV)/.installed-dev  ## try to break the protocol in four ways, for SECONDS=60 each
	$(BIN)/vidette fuzz explore --budget $(SECONDS)s
	$(BIN)/vidette fuzz lifecycle --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/vidette fuzz simulate --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/vidette fuzz codec --seconds $(SECONDS) --seed $(SEED) --frames 1000000

bench: $(VENV)/.installed  ## measure the codec and the hand-over against pickle and ZeroMQ
	$(BIN)/vidette bench wire

reference: $(VENV)/.installed  ## draw the generated parts of docs/reference anew
	$(BIN)/python docs/make_reference.py

hostile: $(VENV)/.installed-dev  ## send what ended other servers, and say how long answers took and what memory
	$(BIN)/python -m pytest tests/service/test_hostile.py -m 'long or not long' --quiet --capture=no

picture: $(VENV)/.installed-dev  ## take the picture of the page in docs/images anew
	VIDETTE_PICTURE=docs/images/page.png $(BIN)/python -m pytest tests/service/page/test_browser.py -k picture

# Torch stays: of that, only the release that was tested will do.
constraints:  ## pin everything but torch anew, at its latest release
	$(PYTHON) -m venv --clear $(FRESH)
	grep '^torch==' constraints.txt > $(FRESH)/torch.txt
	$(FRESH)/bin/python -m pip install --quiet --upgrade pip
	$(FRESH)/bin/python -m pip install --quiet -c $(FRESH)/torch.txt editables --editable . --group dev
	sed -n '/^#/p' constraints.txt > $(FRESH)/constraints.txt
	$(FRESH)/bin/python -m pip freeze --all --exclude vidette | sed 's/+.*//' >> $(FRESH)/constraints.txt
	mv $(FRESH)/constraints.txt constraints.txt
	rm -r $(FRESH)

clean:  ## delete .venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find engine protocol fuzz tests -name __pycache__ -prune -exec rm -rf {} +

# --- what the targets above stand on -------------------------------------------------

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Vidette needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.12 ..." % v[:2])'
	@$(PYTHON) -c 'import sys; sys.platform == "linux" or sys.exit("Vidette runs on Linux only for now, and this is %s." % sys.platform)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The pip that comes with Python 3.11 knows neither --group nor --build-constraint.
$(VENV)/.pip: $(VENV)/.created constraints.txt
	$(PIP) install --constraint constraints.txt --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "Installing Vidette and what it needs into $(VENV); torch makes this take a minute or more."
	$(INSTALL) --editable '.[bench,fuzz]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.pip pyproject.toml constraints.txt
	@echo "Installing Vidette, what it needs and what its tests need into $(VENV); this takes a minute or more."
	$(INSTALL) --editable '.[bench,fuzz]' --group dev
	@touch $(VENV)/.installed $@
