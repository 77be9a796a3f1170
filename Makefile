# One line a verb. What a verb does is in pipeline/, and its options in: .venv/bin/pocketbert VERB --help
RECIPE ?= minilm
TARGET ?=
DEVICE ?= host
PYTHON ?= python3

POCKETBERT := .venv/bin/python -m pipeline
ON_TARGET = $(if $(TARGET),--target $(TARGET))

.PHONY: help ready setup run plan student convert verify benchmark report ship list \
        test test-full check format peers faults clean distclean

help:  ## this list (RECIPE=minilm TARGET=all of them DEVICE=host)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# Cheap when .venv is whole and up to date (a hash and a version check), so every verb asks for it.
ready:
	@$(PYTHON) -I pipeline/bootstrap.py

setup: ready  ## make .venv with everything the verbs need (the verbs do it themselves)
	@.venv/bin/python -V

run: ready  ## everything for one student: make, compress, convert, verify, measure, report
	@$(POCKETBERT) run $(RECIPE) $(ON_TARGET)

plan: ready  ## what run would do, and why, without doing it
	@$(POCKETBERT) plan $(RECIPE) $(ON_TARGET)

student: ready  ## the student's checkpoint only
	@$(POCKETBERT) student $(RECIPE)

convert: ready  ## the converted models
	@$(POCKETBERT) convert $(RECIPE) $(ON_TARGET)

verify: ready  ## parity with fp32 PyTorch
	@$(POCKETBERT) verify $(RECIPE) $(ON_TARGET)

benchmark: ready  ## latency, memory and size on DEVICE
	@$(POCKETBERT) benchmark $(RECIPE) $(ON_TARGET) --device $(DEVICE)

report: ready  ## build/RECIPE/report/
	@$(POCKETBERT) report $(RECIPE)

ship: ready  ## put the verified models into the demo apps
	@$(POCKETBERT) ship $(RECIPE) $(ON_TARGET)

list: ready  ## recipes, targets, schemes, devices
	@$(POCKETBERT) list

test: ready  ## the tests, without the slow cross products
	@.venv/bin/python -m pytest

test-full: ready  ## all the tests
	@.venv/bin/python -m pytest -m ""

check: ready  ## lint, format and types
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

format: ready  ## put the code into the house format
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

peers: run  ## what one would pick instead (onnxruntime, default exports), in one run with ours
	@$(PYTHON) -I pipeline/bootstrap.py --extra peers
	@.venv/bin/python -m benchmarks.peers

faults: ready  ## plant bugs and see that verify catches each, and that clean exports all pass (30 minutes)
	@PYTHONPATH=tests/parity .venv/bin/python -m faults

clean:  ## remove what the pipeline made and the caches; keep .venv
	rm -rf build .mypy_cache .ruff_cache .pytest_cache

distclean: clean  ## remove .venv as well
	rm -rf .venv .venv.lock pocketbert.egg-info
