# One line a verb. What a verb does is in pipeline/, and its options in: .venv/bin/pocketbert VERB --help
RECIPE ?= minilm
TARGET ?=
DEVICE ?= host
PYTHON ?= python3
# Trials of compression and ablation side by side.
JOBS ?= 2

POCKETBERT := .venv/bin/python -m pipeline
ON_TARGET = $(if $(TARGET),--target $(TARGET))

.PHONY: help ready setup init run plan compress student convert verify benchmark report ship push recipes list \
        train test test-quick test-durations test-cluster test-full check docs commands format compat peers pruned-speed faults support compression ablation \
        clean distclean

help:  ## this list (RECIPE=minilm TARGET=all of them DEVICE=host)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

# Cheap when .venv is whole and up to date (a hash and a version check), so every verb asks for it.
ready:
	@$(PYTHON) -I pipeline/bootstrap.py

setup: ready  ## make .venv with everything the verbs need (the verbs do it themselves)
	@.venv/bin/python -V

init: ready  ## a recipe for CHECKPOINT (a folder, or hub:owner/name@commit), written to recipe.toml
	@$(POCKETBERT) init $(CHECKPOINT)

run: ready  ## everything for one student: make, compress, convert, verify, measure, report
	@$(POCKETBERT) run $(RECIPE) $(ON_TARGET)

plan: ready  ## what run would do, and why, without doing it
	@$(POCKETBERT) plan $(RECIPE) $(ON_TARGET)

train: ready  ## fine-tune the student of a recipe that has [train]; a run that was stopped goes on
	@$(POCKETBERT) train $(RECIPE)

compress: ready  ## the student of a recipe that prunes, factorises, shares, trims or distils, before it is laid out
	@$(POCKETBERT) compress $(RECIPE)

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

push: ready  ## the verified models with a model card, as a bundle for REPOSITORY (uploaded with UPLOAD=1)
	@$(POCKETBERT) push $(RECIPE) $(REPOSITORY) $(ON_TARGET) $(if $(UPLOAD),--no-dry-run)

recipes: ready  ## the ready recipes, what each does and needs
	@$(POCKETBERT) recipes

list: ready  ## recipes, targets, schemes, devices
	@$(POCKETBERT) list

# One worker a core, as far as memory holds them; which test runs where makes no difference to any.
PYTEST := .venv/bin/python -m pytest -n auto --dist worksteal

test: ready  ## the tests, without the slow cross products (10 minutes on two cores)
	@$(PYTEST)

test-quick: ready  ## the tests that need no toolchain (a minute)
	@.venv/bin/python -m pytest --quick

test-durations: ready  ## the tests, with each one's wall and CPU seconds kept in build/test-durations.json
	@$(PYTEST) --keep-durations

test-cluster: ready  ## the tests of the Ray executor, on a cluster of two processes on this machine
	@$(PYTHON) -I pipeline/bootstrap.py --extra cluster
	@.venv/bin/python -m pytest -m cluster

test-full: ready  ## all the tests (90 minutes on two cores)
	@$(PYTEST) -m "not cluster"

check: ready  ## lint, format, types, links, and the generated part of docs/
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/python -m docs.keys --check
	@.venv/bin/python -m docs.links

docs: ready  ## write the keys of a recipe into docs/recipes.md
	@.venv/bin/python -m docs.keys

commands: ready  ## run every documented command with tiny settings (15 minutes)
	@.venv/bin/python -m docs.commands

format: ready  ## put the code into the house format
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

compat: ready  ## the LiteRT files on older runtimes (INSTALL=1 downloads those into build/.compat)
	@$(POCKETBERT) compat $(RECIPE) $(ON_TARGET) $(if $(INSTALL),--install)

peers: ready  ## what one would pick instead (onnxruntime, default exports), in one run with our files of RECIPE
	@$(PYTHON) -I pipeline/bootstrap.py --extra peers
	@.venv/bin/python -m benchmarks.peers $(RECIPE)

pruned-speed: ready  ## measured speed-up of pruned students beside what their multiply-adds promise, in one run
	@.venv/bin/python -m benchmarks.pruned_speed minilm minilm-half

faults: ready  ## plant bugs and see that verify catches each, and that clean exports all pass (30 minutes)
	@PYTHONPATH=tests/parity .venv/bin/python -m faults

support: ready  ## every architecture in published sizes through every format; writes benchmarks/SUPPORT.md (an hour)
	@.venv/bin/python -m benchmarks.support

compression: ready  ## MiniLM made smaller on public data; writes benchmarks/COMPRESSION.md (12 hours, resumable; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.compression --jobs $(JOBS)

ablation: ready  ## which loss, sharing and embedding size matters; writes benchmarks/ABLATION.md (likewise)
	@.venv/bin/python -m benchmarks.ablation --jobs $(JOBS)

clean:  ## remove what the pipeline made and the caches; keep .venv
	@# Artifacts are read-only, folders included, which rm alone respects.
	@[ ! -d build ] || chmod -R u+w build
	rm -rf build .mypy_cache .ruff_cache .pytest_cache

distclean: clean  ## remove .venv as well
	rm -rf .venv .venv.lock pocketbert.egg-info
