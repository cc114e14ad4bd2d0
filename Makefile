# `make serve` and `make test` are all that a fresh machine needs: Python 3.11+, make, a C compiler.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The GPU kernels have to compile under these, too; constraints.txt has the one that torch asks for.
OLDEST_TRITON := $(VENV)/triton-3.6.0
NEWEST_TRITON := $(VENV)/triton-3.9.0
# What the tests compare with: releases of the library whose checkpoints are served.
SRU_RELEASES := $(VENV)/releases
RELEASES := 2.0.0 2.1.4 2.1.7 2.1.9 2.3.5 2.6.0 3.0.0.dev2 3.0.0.dev3 3.0.0.dev5 3.0.0.dev6
ORACLES := $(RELEASES:%=$(SRU_RELEASES)/sru-%)
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard sruserve/kernels/cpu*.[ch])

.PHONY: help serve test lint interpreted bench compare lock clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

serve: $(VENV)/.serve  ## Serve the bundled models on http://127.0.0.1:8000
	$(BIN)/sruserve serve

# For two cores: the interpreter beside the linters, then all others, of which one in three waits.
test: $(VENV)/.test $(OLDEST_TRITON) $(NEWEST_TRITON) $(ORACLES)  ## Run the linters and all tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint interpreted
	OLDEST_TRITON=$(OLDEST_TRITON) NEWEST_TRITON=$(NEWEST_TRITON) SRU_RELEASES=$(SRU_RELEASES) \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile \
		--no-loadscope-reorder

lint: $(VENV)/.test  ## Run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

interpreted: $(VENV)/.test
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=2 \
		--dist=loadfile tests/interpreted tests/gpu/test_engine.py

bench: $(VENV)/.bench  ## Measure against the peers; results go to bench/results/
	$(BIN)/python -m bench.stack
	$(BIN)/python -m bench.serve

REF ?= HEAD
compare: $(VENV)/.test  ## Measure this code beside another commit's: make compare REF=HEAD~1
	$(BIN)/python -m bench.serve.compare $(REF)

lock: | $(VENV)/bin/python  ## Write the hashes of all that the images install
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python deploy/lock.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info sruserve/kernels/_cpu*.so .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@echo 'Making a virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing sruserve and what it needs, torch too: some minutes'
	@$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing what the tests need: some minutes'
	@$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.serve

$(VENV)/triton-%: | $(VENV)/bin/python
	@echo 'Installing triton $* for the tests'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ triton==$*

$(SRU_RELEASES)/sru-%: | $(VENV)/bin/python
	@echo 'Installing sru $* for the tests'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ sru==$*

# sru compiles its CPU kernel, with ninja and a C++ compiler, when it is first imported.
$(VENV)/.bench: $(VENV)/.serve
	@echo 'Installing the peers to measure against: some minutes'
	@$(PIP) --editable '.[bench]'
	@touch $@
