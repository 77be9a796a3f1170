# Each verb has one rule. Its options are in: .venv/bin/pocketbert VERB --help
RECIPE ?= minilm
TARGET ?=
DEVICE ?= host
PROCESSOR ?= plainest
PYTHON ?= python3
# Trials of compression and ablation side by side.
JOBS ?= 2

POCKETBERT := .venv/bin/python -m pipeline
ON_TARGET = $(if $(TARGET),--target $(TARGET))

.PHONY: help ready setup init run plan compress student convert verify benchmark report ship demo study push recipes list foreign \
        train test test-quick test-numeric test-margins test-durations test-cluster test-devices test-full check docs commands format compat peers compare schemes pruned-speed faults mutations abuse core-check apps-check browser-check android-apk upstream-check core-speed search-speed tokenizer-peers support coverage front-door compatibility compression ablation objectives fronts processors \
        clean distclean

help:  ## this list (RECIPE=minilm TARGET=all of them DEVICE=host)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# Takes a tenth of a second when .venv is up to date, so every verb asks for it.
ready:
	@$(PYTHON) -I pipeline/bootstrap.py

setup: ready  ## make .venv with everything the verbs need (the verbs do it themselves)
	@.venv/bin/python -V

init: ready  ## write a recipe for CHECKPOINT (a folder, or hub:owner/name@commit) to recipe.toml
	@$(POCKETBERT) init $(CHECKPOINT)

run: ready  ## take one student through every stage: train, compress, convert, verify, measure, report
	@$(POCKETBERT) run $(RECIPE) $(ON_TARGET)

plan: ready  ## show what run would make and why; make nothing
	@$(POCKETBERT) plan $(RECIPE) $(ON_TARGET)

train: ready  ## fine-tune the student of a recipe that has [train]; a stopped run continues
	@$(POCKETBERT) train $(RECIPE)

compress: ready  ## make the student smaller as the recipe says: prune, factorise, share, trim, distil
	@$(POCKETBERT) compress $(RECIPE)

student: ready  ## find and check the student's checkpoint, and copy it into build/RECIPE/
	@$(POCKETBERT) student $(RECIPE)

convert: ready  ## convert the student for every target
	@$(POCKETBERT) convert $(RECIPE) $(ON_TARGET)

verify: ready  ## compare each converted model with fp32 PyTorch
	@$(POCKETBERT) verify $(RECIPE) $(ON_TARGET)

benchmark: ready  ## measure latency, memory and size on DEVICE
	@$(POCKETBERT) benchmark $(RECIPE) $(ON_TARGET) --device $(DEVICE)

report: ready  ## write build/RECIPE/report/
	@$(POCKETBERT) report $(RECIPE)

ship: ready  ## copy the verified models into the demo apps
	@$(POCKETBERT) ship $(RECIPE) $(ON_TARGET)

demo: ready  ## make the demo apps' models from ready recipes and ship them (without POCKETBERT_DATA: four of seven); INDEX=TEXT gives their search an index
	@$(POCKETBERT) demo $(if $(INDEX),--index $(INDEX))

study: ready  ## search for the best student under the budget of a study, SPEC=notes.toml
	@$(POCKETBERT) study $(SPEC)

push: ready  ## bundle the verified models with a model card for REPOSITORY; upload it with UPLOAD=1
	@$(POCKETBERT) push $(RECIPE) $(REPOSITORY) $(ON_TARGET) $(if $(UPLOAD),--no-dry-run)

recipes: ready  ## list the ready recipes, what each does and needs
	@$(POCKETBERT) recipes

list: ready  ## list what exists: architectures, tasks, backends, schemes, datasets, devices
	@$(POCKETBERT) list

# One worker a core, as far as memory holds them; tests do not depend on the worker that runs them.
PYTEST := .venv/bin/python -m pytest -n auto --dist worksteal

test: ready  ## the tests, without the slow cross products (8 minutes on two cores)
	@$(PYTEST)

test-quick: ready  ## the tests that need no toolchain (a minute)
	@$(PYTEST) --quick

test-numeric: ready  ## the tests whose verdict is a number, computed as on PROCESSOR: plainest, avx2, avx512 (3 minutes)
	@$(PYTEST) -m "numeric and not full and not cluster and not devices" --processor $(PROCESSOR)

test-margins: ready  ## the tests as on PROCESSOR; each number's distance to its bound, beside earlier runs (15 minutes)
	@# pytest hands over what an assert compared only if it knew so when it compiled the file.
	@find tests -name __pycache__ -prune -exec rm -rf {} +
	@mkdir -p build/margins
	@$(PYTEST) -o enable_assertion_pass_hook=true --processor $(PROCESSOR) --margins=build/margins/$(PROCESSOR).json
	@PYTHONPATH=.:tests .venv/bin/python -m margins build/margins/*.json

test-durations: ready  ## the tests; their CPU seconds kept in tests/durations.json, the dearest in docs/contributing.md
	@$(PYTEST) --keep-durations
	@PYTHONPATH=.:tests .venv/bin/python -m durations

test-cluster: ready  ## the tests of the Ray executor, on a cluster of two processes on this machine
	@$(PYTHON) -I pipeline/bootstrap.py --extra cluster
	@.venv/bin/python -m pytest tests/cluster -m cluster

test-devices: ready  ## the tests with a real adbd and emulated ARM64 processors; needs root and .ci/devices (15 minutes, downloads included)
	@.venv/bin/python -m pytest tests/devices -m devices -n 2 --dist loadfile

test-full: ready  ## all the tests but those of a cluster and of devices (90 minutes on two cores)
	@$(PYTEST) -m "not cluster and not devices"

check: ready  ## lint, format, types, layers of imports, links, records of phones, and the generated part of docs/
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/python -m docs.keys --check
	@.venv/bin/python -m docs.schemas --check
	@.venv/bin/python -m docs.links
	@.venv/bin/python -m benchmarks.device_records --check

docs: ready  ## write the generated parts of docs/: keys of a recipe, architectures, schemas of what apps read
	@.venv/bin/python -m docs.keys
	@.venv/bin/python -m docs.schemas

commands: ready  ## run every documented command with tiny settings (15 minutes)
	@$(PYTHON) -I pipeline/bootstrap.py --extra peers
	@.venv/bin/python -m docs.commands

format: ready  ## format the code
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

compat: ready  ## try the LiteRT files on older runtimes (INSTALL=1 downloads them into build/.compat)
	@$(POCKETBERT) compat $(RECIPE) $(ON_TARGET) $(if $(INSTALL),--install)

peers: ready  ## what one would pick instead (onnxruntime, default exports), in one run with our files of RECIPE
	@$(PYTHON) -I pipeline/bootstrap.py --extra peers
	@.venv/bin/python -m benchmarks.peers $(RECIPE)

foreign: ready  ## files of other tools, right and with a mistake: what verify --against says; writes benchmarks/FOREIGN.md (30 minutes)
	@$(PYTHON) -I pipeline/bootstrap.py --extra peers
	@.venv/bin/python -m benchmarks.foreign

schemes: ready  ## the bundled student in every scheme that rounds, then timed in one run; writes benchmarks/SCHEMES.md (4 hours, resumable; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.schemes && .venv/bin/python -m benchmarks.schemes --times

compatibility: ready  ## which files of a student may share an index; writes benchmarks/COMPATIBILITY.md (two hours, resumable; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.compatibility

pruned-speed: ready  ## measured speed-up of pruned students beside what their multiply-adds promise, in one run
	@.venv/bin/python -m benchmarks.pruned_speed minilm minilm-half

faults: ready  ## plant bugs and see that verify catches each, and that clean exports all pass (hours, resumable)
	@PYTHONPATH=tests:tests/parity .venv/bin/python -m faults

mutations: ready  ## damage files, load and judge each; writes benchmarks/MUTATIONS.md (two hours, resumable)
	@PYTHONPATH=tests:tests/parity .venv/bin/python -m mutations

abuse: ready  ## kill commands, fill disks, give bad inputs and prepared folders; writes benchmarks/ABUSE.md (an hour, resumable)
	@PYTHONPATH=tests .venv/bin/python -m abuse

core-check: ready  ## build and test both apps' cores, and compare every token id (JDK 17 and Maven; Swift 6, or .ci/swift)
	@PYTHONPATH=.:tests .venv/bin/python -m apps.check

apps-check: core-check  ## both apps: screens photographed, view models and answers compared, an APK packed (20 minutes)
	@PYTHONPATH=.:tests .venv/bin/python -m apps.apps_check

browser-check: ready  ## the page of `report --serve`: every token id, three files in a real Chromium (Node.js and Chromium; 10 minutes)
	@PYTHONPATH=.:tests .venv/bin/python -m apps.browser.check

android-apk: ready  ## pack a signed debug APK of what apps-check built; the runtimes come in by Gradle's build alone
	@PYTHONPATH=.:tests .venv/bin/python -m apps.apk

upstream-check: ready  ## compile the Android runners against LiteRT's and ExecuTorch's own sources (SOURCES=folder of check-outs)
	@PYTHONPATH=.:tests .venv/bin/python -m apps.upstream_check $(SOURCES)

core-speed: ready  ## time both cores' tokenizers beside Hugging Face's, in one run
	@PYTHONPATH=.:tests .venv/bin/python -m apps.speed

search-speed: ready  ## time an exact search of 10,000 passages in both cores, in int8 rows beside floats, in one run
	@PYTHONPATH=.:tests .venv/bin/python -m apps.search_speed

tokenizer-peers: ready  ## both cores and the JVM's public tokenizers on every id; writes benchmarks/TOKENIZERS.md (2 minutes)
	@PYTHONPATH=.:tests .venv/bin/python -m apps.tokenizers.peers

compare: ready  ## BERT-base beside its students in every format, as in 2019; writes benchmarks/COMPARISON.md (2 hours, resumable)
	@.venv/bin/python -m benchmarks.compare $(COMPARE)

support: ready  ## every architecture in published sizes through every format; writes benchmarks/SUPPORT.md (an hour)
	@.venv/bin/python -m benchmarks.support

coverage: ready  ## fifty encoders that people use, from folders in the hub's layout to verified files; writes benchmarks/COVERAGE.md (an hour or two)
	@.venv/bin/python -m benchmarks.coverage

front-door: ready  ## what `init` says to folders as the hub has them; writes docs/folders.md (two minutes)
	@.venv/bin/python -m benchmarks.front_door

processors: ready  ## the gates of RECIPE as computed on other processors; writes benchmarks/PROCESSORS.md (half an hour)
	@PYTHONPATH=.:tests .venv/bin/python -m benchmarks.processors $(RECIPE)

compression: ready  ## MiniLM made smaller on public data; writes benchmarks/COMPRESSION.md (12 hours, resumable; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.compression --jobs $(JOBS)

ablation: ready  ## which loss, sharing and embedding size matters; writes benchmarks/ABLATION.md (likewise)
	@.venv/bin/python -m benchmarks.ablation --jobs $(JOBS)

fronts: ready  ## how much smaller and faster than MiniLM students of embeddings, SST-2 and WNUT 2017 can be; writes benchmarks/FRONT.md, TASKS.md (seven hours, resumable; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.fronts

objectives: ready  ## which objective of distillation makes the best embedding; writes benchmarks/OBJECTIVES.md (2 hours; needs POCKETBERT_DATA)
	@.venv/bin/python -m benchmarks.objectives --jobs $(JOBS)

clean:  ## remove what the pipeline made, and the caches; keep .venv
	@# Artifacts are read-only, folders included, which rm alone respects.
	@[ ! -d build ] || chmod -R u+w build
	rm -rf build .mypy_cache .ruff_cache .pytest_cache

distclean: clean  ## remove .venv as well
	rm -rf .venv .venv.lock pocketbert.egg-info
