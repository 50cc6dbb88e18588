# Every command of the project. `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
export SANDFLEET_STATE_DIR ?= $(CURDIR)/.sandfleet

PYTHON_PATHS := libs services tests examples bench

.DEFAULT_GOAL := help
.PHONY: help install native base-layer up down demo test test-all fuzz check fmt soak clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z%<>-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## packages, virtual environment, native binaries: what is missing of them
	@scripts/install.sh

native: ## build launcher, agent and sensor
	@$(MAKE) --silent -C native
	@$(MAKE) --silent -C native/bpf

base-layer: install ## build the Debian base layer unless it exists
	@$(BIN)/python -m sandfleet_node.layers build-base --state $(SANDFLEET_STATE_DIR)

up: install ## start the platform on this machine
	@$(BIN)/sandfleet up

down: ## stop it, with all sandboxes
	@$(BIN)/sandfleet down

demo: install ## grade HumanEval in 328 sandboxes on a platform of its own
	@$(BIN)/python examples/humaneval.py --start-platform

test: base-layer ## all tests; says what was skipped and why
	@$(BIN)/pytest -q

test-all: check test fuzz ## checks, tests, and some fuzzing

fuzz: install ## fuzz the frame parser for a while
	@$(MAKE) --silent -C native fuzz

check: install ## formatters, linters, types, import rule, C warnings
	$(BIN)/ruff format --check $(PYTHON_PATHS)
	$(BIN)/ruff check $(PYTHON_PATHS)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(MAKE) --silent -C native
	$(MAKE) --silent -C native/bpf

fmt: install ## format everything
	$(BIN)/ruff check --fix-only --quiet $(PYTHON_PATHS)
	$(BIN)/ruff format $(PYTHON_PATHS)
	@if command -v clang-format >/dev/null; then $(MAKE) -C native format && $(MAKE) -C native/bpf format; \
	 else echo "clang-format is not installed; C left as it is"; fi

soak: install ## ten minutes of life with a node killed every minute; prints what is left
	@$(BIN)/python bench/soak.py

bench-%: ## make bench-create, -exec, -density, -function, -pause, -qos: with their peers
	@scripts/install.sh --bench
	@$(BIN)/python bench/$*.py

clean: ## remove what was built; keeps the state directory and the virtual environment
	@$(MAKE) --silent -C native clean
	@rm -rf dist build .pytest_cache .ruff_cache .hypothesis
	@find $(PYTHON_PATHS) -name __pycache__ -prune -exec rm -rf {} +
