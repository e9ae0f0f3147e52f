# One command each; `make help` lists them. Everything sets itself up.
# vllm or sglang. Not given: the demo takes vllm, `up` what the configuration says.
ENGINE ?=
ARGS ?=
ONLY ?=
PYTEST_ARGS ?=
PYTHON := .venv/bin/python
PACKAGES := contract services/rollout-proxy services/judge services/teacher services/trainer services/console cli
export HINTLOOP_STARTED_AT := $(shell date +%s)

.PHONY: help
help:  ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo:  ## Watch a real model change from its user's complaints (ENGINE=vllm|sglang, ARGS="--steps 8 …")
	@scripts/prepare.sh vllm $(filter-out vllm,$(ENGINE))
	@.venv/bin/hintloop demo $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

.PHONY: up
up: venv  ## Start the whole local stack (ENGINE=vllm|sglang, ARGS="--config config.toml …")
	@.venv/bin/hintloop up $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

.PHONY: status
status: venv  ## Print the funnel and every drop reason
	@.venv/bin/hintloop status $(ARGS)

.PHONY: test
test: setup-all  ## Run every test except the long series
	@scripts/test.sh "not slow and not gpu" $(PYTEST_ARGS)

.PHONY: test-long
test-long: setup-all  ## Run the long series as well
	@scripts/test.sh "not gpu" $(PYTEST_ARGS)

.PHONY: test-compose
test-compose: venv  ## Test the shipped compose file in a real Docker engine (root on Debian; HINTLOOP_SKIP_COMPOSE=1)
	@scripts/test-compose.sh $(PYTEST_ARGS)

.PHONY: bench
bench: venv  ## Measure against the goals (ONLY=proxy,…); writes .hintloop/bench/<part>.json
	@$(PYTHON) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(ARGS)

.PHONY: lint
lint: venv  ## Check style, types and the bounds between packages
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@.venv/bin/lint-imports
	@$(PYTHON) -m mypy
	@for package in $(PACKAGES); do (cd $$package && $(CURDIR)/.venv/bin/deptry src --ignore DEP002 >/dev/null 2>&1) \
	  || { (cd $$package && $(CURDIR)/.venv/bin/deptry src --ignore DEP002); exit 1; }; done

.PHONY: lint-deploy
lint-deploy: venv  ## Check deploy/: compose, Dockerfiles, alerts, dashboards, the Helm chart
	@$(PYTHON) -m pytest -q tests/unit/deploy $(PYTEST_ARGS)

.PHONY: format
format: venv  ## Format the code
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m ruff check --fix .

.PHONY: console
console:  ## Build the console's page from services/console/web (needs Node; the built page is in the clone)
	@scripts/console.sh

.PHONY: proto
proto: venv  ## Generate the gRPC code anew from scoring.proto
	@$(PYTHON) -m grpc_tools.protoc -Icontract/src --python_out=contract/src --pyi_out=contract/src \
	  --grpc_python_out=contract/src hintloop_contract/scoring/v1/scoring.proto

# The services' environment, the engine's and the model are independent until the model's conversion.
.PHONY: venv setup-all
venv:
	@scripts/setup.sh

setup-all:
	@scripts/prepare.sh vllm sglang clients deploy
	@scripts/browser.sh

.PHONY: clean distclean
clean:  ## Remove what the demo and the tests left behind; what `make up` keeps stays
	@rm -rf .hintloop/demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

distclean: clean  ## Remove everything made here: .hintloop with its checkpoints, .venv, every clone's engines and models
	@rm -rf .hintloop .venv .hintloop-setup.lock "$${XDG_CACHE_HOME:-$$HOME/.cache}/hintloop"
