# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#
#   PYTHON=  interpreter for the environment (>= 3.11)      VENV=  the environment's folder
#   BUILD=   folder of the C++ tests' build                 ARGS=  more arguments for train, test (pytest) and bench
#   JOBS=    parallel compilations                          CXX=   C++20 compiler
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build/release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ARGS ?=

bin := $(VENV)/bin
sources := $(shell find src include cmake CMakeLists.txt -type f 2>/dev/null)
pip := $(bin)/python -m pip --quiet --disable-pip-version-check
export PIP_ROOT_USER_ACTION := ignore
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# make's own default for CXX says nothing about the user's wish; an explicit one is handed on to CMake.
ifneq ($(origin CXX),default)
export CXX
endif
# cmake and ninja come from the environment when the machine has none.
export PATH := $(abspath $(bin)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help build train test bench lint

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' Makefile

build: $(VENV)/.stamp-engine ## make .venv and compile the engine; .venv/bin/anabranch exists then
	@echo "anabranch: $(bin)/anabranch is ready"

train: build ## train the recipe `default` on real text (ARGS="RECIPE --set a.b=v" for another)
	@$(bin)/anabranch train $(ARGS)

test: build $(VENV)/.stamp-test ## every test: ctest, then pytest
	@scripts/test.sh $(BUILD) $(bin)/python $(ARGS)

bench: build ## measure the engine's kernels and the MoE layer (ARGS="SUITE --json FILE")
	@$(bin)/anabranch bench $(or $(ARGS),layer)

lint: $(VENV)/.stamp-test ## format, lint and structure checks
	@scripts/lint.sh $(bin)

$(VENV)/.stamp-venv:
	@scripts/check_prerequisites.sh $(PYTHON)
	@echo "anabranch: making $(VENV)"
	@$(PYTHON) -m venv $(VENV) >/dev/null || { rm -rf $(VENV); \
	  echo "anabranch: '$(PYTHON) -m venv' failed: install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-packages: pyproject.toml | $(VENV)/.stamp-venv
	@echo "anabranch: installing packages (jax and its companions)"
	@$(bin)/python scripts/requirements.py > $(VENV)/requirements.txt
	@cmake --version 2>/dev/null | awk 'NR == 1 {split($$3, v, "."); found = v[1] > 3 || v[1] == 3 && v[2] >= 22} \
	  END {exit !found}' || echo "cmake>=3.22" >> $(VENV)/requirements.txt
	@ninja --version >/dev/null 2>&1 || echo "ninja" >> $(VENV)/requirements.txt
	@$(pip) install -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.stamp-engine: $(sources) $(VENV)/.stamp-packages
	@scripts/check_prerequisites.sh
	@echo "anabranch: compiling the engine"
	@$(pip) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-packages
	@echo "anabranch: installing test tools"
	@$(bin)/python scripts/requirements.py test > $(VENV)/requirements-test.txt
	@$(pip) install -r $(VENV)/requirements-test.txt
	@touch $@
