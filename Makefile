# A fresh machine with Python 3.11+, make and a C compiler needs only `make serve` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The GPU kernels must also compile under these; constraints.txt has the version that torch requires.
OLDEST_TRITON := $(VENV)/triton-3.6.0
NEWEST_TRITON := $(VENV)/triton-3.9.0
# The releases of `sru` with which the tests compare results.
SRU_RELEASES := $(VENV)/releases
RELEASES := 2.0.0 2.1.4 2.1.7 2.1.9 2.3.5 2.6.0 3.0.0.dev2 3.0.0.dev3 3.0.0.dev5 3.0.0.dev6
ORACLES := $(RELEASES:%=$(SRU_RELEASES)/sru-%)
OLDEST := $(VENV)/oldest
# Set another torch if pip's index has no CPU build of the oldest one.
OLDEST_TORCH ?=
# An operator who sets the port of the gRPC server gets the packages that it needs.
WITH_GRPC := $(if $(filter-out off,$(SRUSERVE_GRPC_PORT)),-grpc)
# The tests start about two hundred processes, and each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard sruserve/kernels/cpu/*.[ch])

.PHONY: help serve test suite checks check explore lint interpreted compiled oldest docs bench gpu-kit compare lock clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

serve: $(VENV)/.serve$(WITH_GRPC)  ## Serve the bundled models on http://127.0.0.1:8000
	$(BIN)/sruserve serve

# For two cores: tests run in four processes, of which one or two usually wait, and the checks take
# what these leave, one after another. Each check prints all that it has to say when it ends.
test: $(VENV)/.test $(OLDEST_TRITON) $(NEWEST_TRITON) $(ORACLES)  ## Run the linters and all tests, and build the documentation: about ten minutes on two cores
	@$(MAKE) --no-print-directory --jobs=2 suite checks

# Tests also call make, which is no part of this one.
suite:
	MAKEFLAGS= OLDEST_TRITON=$(OLDEST_TRITON) NEWEST_TRITON=$(NEWEST_TRITON) \
		SRU_RELEASES=$(SRU_RELEASES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest \
		--numprocesses=4 --dist=loadfile --no-loadscope-reorder

checks:
	@$(MAKE) --no-print-directory --output-sync=target lint interpreted docs

check: $(VENV)/.test lint  ## Run the linters, and the tests of what has changed since main: about three minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile \
		$$($(BIN)/python -m tests.changed)

explore: $(VENV)/.test  ## Draw new cases for the property tests; failing ones become examples
	EXPLORE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile -m hypothesis

lint: $(VENV)/.test  ## Run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# A burst of each family whose steps are not one kernel; the other tests of that file take minutes.
BURSTS := $(foreach family,lstm gru rnn atr srupp,\
	'tests/gpu/test_other_layers.py::test_a_captured_burst_picks_what_its_launches_do[$(family)]')

interpreted: $(VENV)/.test
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/interpreted \
		tests/gpu/test_engine.py $(BURSTS)

compiled: $(VENV)/.test $(OLDEST_TRITON) $(NEWEST_TRITON)  ## Compile the GPU kernels that have changed, and store what the tests check
	OLDEST_TRITON=$(OLDEST_TRITON) NEWEST_TRITON=$(NEWEST_TRITON) OMP_NUM_THREADS=1 \
		$(BIN)/python -m tests.kernels.aot_table

oldest: $(OLDEST)/.done  ## Run the tests that need no GPU on the oldest allowed versions
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest --numprocesses=2 --dist=loadfile \
		-W ignore::DeprecationWarning tests/export tests/kernels tests/model tests/server \
		tests/test_cli.py tests/test_dependencies.py

docs: $(VENV)/.docs  ## Build the documentation as a site in site/, and check its links
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.site

bench: $(VENV)/.bench  ## Measure against the peers; results go to bench/results/
	$(BIN)/python -m bench.cpu
	$(BIN)/python -m bench.onnx
	$(BIN)/python -m bench.papers
	$(BIN)/python -m bench.serve

GPU_PYTHON ?= 3.11
gpu-kit: $(VENV)/.test  ## Pack all that a GPU machine without a network needs: make gpu-kit GPU_PYTHON=3.12
	$(BIN)/python -m bench.gpu.kit --python $(GPU_PYTHON)

REF ?= HEAD
compare: $(VENV)/.test  ## Measure this code against another commit: make compare REF=HEAD~1
	$(BIN)/python -m bench.serve.compare $(REF)

lock: | $(VENV)/bin/python  ## Write the hashes of all packages that the images install
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python deploy/lock.py

clean:  ## Remove all files that the other targets create
	rm -rf $(VENV) build dist site *.egg-info sruserve/kernels/cpu/_kernel*.so .mypy_cache .ruff_cache .pytest_cache
	find sruserve tests bench deploy docs examples -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@echo 'Creating a virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing sruserve and its dependencies, including torch: some minutes'
	@$(PIP) --editable '.[grammars]'
	@touch $@

$(VENV)/.serve-grpc: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing sruserve and its dependencies, including torch and gRPC: some minutes'
	@$(PIP) --editable '.[grammars,grpc]'
	@touch $@ $(VENV)/.serve

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing the dependencies of the tests: some minutes'
	@$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.docs $(VENV)/.serve $(VENV)/.serve-grpc

$(VENV)/.docs: $(SOURCES) | $(VENV)/bin/python
	@echo 'Installing sruserve, and the packages that build its documentation: some minutes'
	@$(PIP) --editable '.[docs]'
	@touch $@

$(OLDEST)/.done: $(SOURCES) deploy/oldest.py
	@echo 'Installing the oldest allowed versions: some minutes'
	@$(PYTHON) -m venv $(OLDEST)
	@$(PYTHON) deploy/oldest.py $(OLDEST_TORCH) > $(OLDEST)/requirements.txt
	@$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement $(OLDEST)/requirements.txt --editable .
	@touch $@

$(VENV)/triton-%: | $(VENV)/bin/python
	@echo 'Installing triton $* for the tests'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ triton==$*

$(SRU_RELEASES)/sru-%: | $(VENV)/bin/python
	@echo 'Installing sru $* for the tests'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ sru==$*

# At its first import, sru compiles its CPU kernel, with ninja and a C++ compiler.
$(VENV)/.bench: $(VENV)/.serve
	@echo 'Installing the peers of the benchmarks: some minutes'
	@$(PIP) --editable '.[bench,onnx]'
	@touch $@
