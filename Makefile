# The front door. `make` lists the words; each needs only Python >= 3.11 and pip.
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
# Without compiled files each process of the tests would compile naiad again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup fmt lint type test test-fast test-long test-frameworks test-airflow test-ray test-unit fuzz attack mutants bench docs image demo demo-keep check clean

help: ## list what can be done
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP) ## make the virtual environment in .venv

$(STAMP): pyproject.toml
	EXTRAS=onnx,demo .ci/venv $(VENV) test lint docs
	@touch $@

fmt: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## style, import rules, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	.ci/words
	$(BIN)/python -m pytest -q tests/docs

type: $(STAMP) ## static types
	$(BIN)/mypy

test: ## what CI runs: style, types, import rules, documentation, every test
	VENV=$(VENV) .ci/run

# The integration tests whose servers start once for a file and whose tests do not wait.
FAST_INTEGRATION := access bad_input_grpc bad_input_http2 settings tritonclient_grpc

test-fast: $(STAMP) ## units, properties, contracts and five files with servers, without the files that take more than 3 s
	$(BIN)/python -m pytest -n 2 --fast --dist loadfile --no-loadscope-reorder tests/unit tests/property tests/contract tests/conformance \
		$(FAST_INTEGRATION:%=tests/integration/test_%.py)

test-long: $(STAMP) ## what CI leaves out: all examples of the properties, whole matrices, and tests of minutes
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --long tests/property tests/conformance tests/contract tests/unit
	$(BIN)/python -m pytest --long $$(grep -l -e long_run -e mark.long tests/integration/*.py)
	PYTEST_ADDOPTS=--long .ci/frameworks $(VENV)-frameworks $$(grep -l long_run tests/frameworks/*.py)

test-frameworks: ## the tests of the framework backends, in an environment of 4 GB of their own
	.ci/frameworks $(VENV)-frameworks

test-airflow: ## the tests of the Airflow provider, in an environment of 600 MB of their own
	.ci/airflow $(VENV)-airflow

test-ray: ## the tests with Ray, which CI leaves out, in an environment of 900 MB of their own
	.ci/ray $(VENV)-ray

test-unit: $(STAMP) ## the tests that need no server
	$(BIN)/python -m pytest tests/unit tests/property tests/contract tests/conformance

fuzz: $(STAMP) ## look for inputs that break something, SECONDS=60 for each target
	$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60)

attack: $(STAMP) ## attack a real server and compare what it costs with limits, ATTACK="--short rapid_reset"
	$(BIN)/python -m attack $(ATTACK)
	$(BIN)/python -m attack --with-keys $(ATTACK)

mutants: $(STAMP) ## break a hundred places, one at a time, and see whether tests fail, MUTANTS="route_cache hpack_cache"
	$(BIN)/python -m mutants $(MUTANTS)

bench: $(STAMP) ## measure, beside the peers that can be installed
	$(BIN)/python -m bench.comparison

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

image: ## build an image with buildah and start it, VARIANT=onnx; needs root and apt install buildah debootstrap crun
	WORK=$(or $(WORK),/var/tmp/naiad-image) deploy/image/build.sh $(or $(VARIANT),core)
	deploy/image/try.sh $(or $(WORK),/var/tmp/naiad-image)/$(or $(VARIANT),core) deploy/image/models

demo: $(VENV)/.demo ## serve real models and send them real inputs
	$(BIN)/naiad demo

demo-keep: $(VENV)/.demo ## the same, and leave the server running
	$(BIN)/naiad demo --keep-running

$(VENV)/.demo: pyproject.toml
	@EXTRAS=demo .ci/venv $(VENV)
	@touch $@

check: test ## another word for test

clean: ## remove what the words above made
	rm -rf $(VENV) $(VENV)-frameworks $(VENV)-airflow $(VENV)-ray site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
