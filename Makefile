# One command each; `make help` lists them. Everything sets itself up.
ENGINE ?= vllm
ARGS ?=
PYTEST_ARGS ?=
PYTHON := .venv/bin/python
PACKAGES := contract services/rollout-proxy services/judge services/teacher services/trainer cli
export HINTLOOP_STARTED_AT := $(shell date +%s)

.PHONY: help
help:  ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: setup-$(ENGINE)  ## Watch a real model change from its user's complaints (ENGINE=vllm|sglang, ARGS="--steps 8 …")
	@.venv/bin/hintloop demo --engine $(ENGINE) $(ARGS)

.PHONY: up
up: setup-$(ENGINE)  ## Start the whole local stack (ARGS="--config config.toml …")
	@.venv/bin/hintloop up --engine $(ENGINE) $(ARGS)

.PHONY: status
status: venv  ## Print the funnel and every drop reason
	@.venv/bin/hintloop status $(ARGS)

.PHONY: test
test: setup-all  ## Run every test except the long series
	@$(PYTHON) -m pytest -m "not slow and not gpu" $(PYTEST_ARGS)

.PHONY: test-long
test-long: setup-all  ## Run the long series as well
	@$(PYTHON) -m pytest -m "not gpu" $(PYTEST_ARGS)

.PHONY: lint
lint: venv  ## Check style, types and the bounds between packages
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@.venv/bin/lint-imports
	@$(PYTHON) -m mypy
	@for package in $(PACKAGES); do (cd $$package && $(CURDIR)/.venv/bin/deptry src --ignore DEP002 >/dev/null 2>&1) \
	  || { (cd $$package && $(CURDIR)/.venv/bin/deptry src --ignore DEP002); exit 1; }; done

.PHONY: format
format: venv  ## Format the code
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .

# The services' environment, the engine's and the model are independent until the model's conversion.
.PHONY: venv setup-vllm setup-sglang setup-all
venv:
	@scripts/setup.sh

setup-vllm:
	@scripts/prepare.sh vllm

setup-sglang:
	@scripts/prepare.sh vllm sglang

setup-all:
	@scripts/prepare.sh vllm sglang

.PHONY: clean distclean
clean:  ## Remove what runs left behind in this clone
	@rm -rf .hintloop .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean  ## Remove the environments and converted models too
	@rm -rf .venv "$${XDG_CACHE_HOME:-$$HOME/.cache}/hintloop"
