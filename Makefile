# `make help` lists the targets. Everything runs in .venv, which `setup` makes; PYTHON is the Python it is made with.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ARGS ?=
# As many test processes as cores, up to eight; OMP_NUM_THREADS keeps each of them to one core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 8
.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch first, since it decides on triton: a CUDA build brings the one it needs. Without one, 3.6.0.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip freeze | grep -i '^triton==' > .venv/triton.txt || echo 'triton==3.6.0' > .venv/triton.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c .venv/triton.txt -e '.[dev,fleet,postgres]'
	@touch $@

.PHONY: setup
setup: $(READY)  ## make .venv with the package (editable) and the development tools

.PHONY: demo
demo: $(READY) build  ## build the five bundles, grade the five solutions, print table and report
	$(BIN)/python bench/demo.py $(ARGS)

.PHONY: test
test: $(READY)  ## run the tests that need neither a GPU nor much time
	$(PYTEST) -m "not gpu and not full" $(ARGS)

.PHONY: test-full
test-full: $(READY)  ## run every test that needs no GPU
	$(PYTEST) -m "not gpu" $(ARGS)

.PHONY: test-gpu
test-gpu: $(READY)  ## run the tests that need a CUDA device, one after the other
	$(BIN)/pytest -m gpu $(ARGS)

.PHONY: test-ecosystem
test-ecosystem: $(READY)  ## run the bundles through real Harbor, Inspect and verifiers (Python 3.12, bubblewrap)
	tests/ecosystem/run $(ARGS)

.PHONY: lint
lint: $(READY)  ## ruff (rules and format) and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

.PHONY: validate
validate: $(READY)  ## check the specs, run their sources, ask for current certificates; warnings as errors
	$(BIN)/taskfactory validate --run --strict --release specs

.PHONY: build
build: $(READY)  ## build the bundles of ./specs into build/
	$(BIN)/taskfactory build

.PHONY: grade
grade: $(READY)  ## grade one submission: make grade TASK=based-forward FILE=solutions/based.py
	$(BIN)/taskfactory grade $(TASK) $(FILE) $(ARGS)

.PHONY: bench
bench: $(READY)  ## time the command itself; --help, validation and 1,000 builds have targets
	$(BIN)/python bench/cli_speed.py $(ARGS)

.PHONY: clean
clean:  ## remove .venv, build/, dist/ and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis && find . -name __pycache__ -prune -exec rm -rf {} +
