# Two commands do all the set-up on a fresh Debian 12 or 13 machine: make demo, make test.
# The distribution's own, where it is new enough and can make a .venv: it is built with profiles (PGO), and a command starts
# in 0.8 of the time that one of pyenv takes.
PYTHON ?= $(shell for python in /usr/bin/python3 python3; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$python && break; \
	done || echo python3)
ENV ?= hello
VENV := .venv
BIN := $(VENV)/bin
REGISTRY ?=
PORT ?= 5000
SCENARIO ?=
ENVS ?=
EXCLUSIVE ?=
FUZZ_SECONDS ?= 60
CYCLES ?= 1000
# That of the .venv that is there, if it works: it is kept, whatever PYTHON is by now.
PYTHON_VERSION = $(shell python=$(PYTHON); $(BIN)/python -c 'import pip' 2>/dev/null && python=$(BIN)/python; \
	$$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# A Python newer than any we locked for takes the newest lock.
REQUIREMENTS = $(or $(wildcard requirements/dev-$(PYTHON_VERSION).txt),$(lastword $(sort $(wildcard requirements/dev-*.txt))))

.DEFAULT_GOAL := help
.PHONY: help setup check test test-fast compat locks locks-check images breadth repro fuzz soak golden demo registry registry-stop bench requirements clean

help: ## list targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(VENV)/.ready: $(wildcard requirements/dev-*.txt) pyproject.toml
	@PYTHON=$(PYTHON) tools/install-system-packages setup
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(if $(wildcard $(VENV)/pyvenv.cfg),--clear) $(VENV)
	@echo "installing the pinned Python tools into $(VENV): about a minute"
	$(BIN)/pip install --quiet --require-hashes -r $(REQUIREMENTS)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Compiled as pip compiles what it copies: an editable install is not, and under PYTHONDONTWRITEBYTECODE each start would.
# Who may only read this folder does without.
setup: $(VENV)/.ready ## make .venv with the pinned tools and the envbuilder command
	@$(BIN)/python -m compileall -qq envbuilder || :

check: setup ## ruff format --check, ruff check, mypy --strict, architecture test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py

test-fast: setup ## unit + contract + property + golden: under a minute
	$(BIN)/pytest -q -m "not slow and not network" tests/unit tests/contract tests/property tests/golden tests/test_architecture.py tests/test_docs.py

test: setup check ## everything but compat; every tool is required
	@tools/install-system-packages lock run test
	ENVBUILDER_REQUIRE=all $(BIN)/pytest -q --ignore=tests/compat

compat: setup ## other people's tools read what we write, and we read theirs
	@tools/install-system-packages test compat
	@tools/install-go-tools
	ENVBUILDER_REQUIRE=all $(BIN)/pytest -q tests/compat

# Environments whose base is Debian packages; the others stand on a system that is made elsewhere.
BUILT = $(notdir $(patsubst %/,%,$(dir $(shell grep -Lx 'system = .*' images/*/env.toml))))
ENVIRONMENTS = $(notdir $(patsubst %/,%,$(dir $(wildcard images/*/env.toml))))

locks: setup ## images/*/env.toml to lockfiles/, each for all platforms that it declares
	@tools/install-system-packages fetch lock
	$(BIN)/envbuilder lock --all-platforms $(ENVIRONMENTS)

locks-check: setup ## fail when any lock is stale (offline)
	$(BIN)/envbuilder lock --frozen --all-platforms $(ENVIRONMENTS)

images: setup ## build every image into the store
	@tools/install-system-packages fetch
	$(BIN)/envbuilder build $(BUILT)
	@tools/trace-starts $(BUILT)

breadth: setup ## build and start the stacks of tests/breadth: vLLM, Ray + XGBoost, JAX, NeMo-like (15 GB; ENVS= for some)
	@tools/install-system-packages fetch run
	$(BIN)/python tools/breadth.py $(ENVS)

repro: setup ## build every image, or ENV="hello ai", twice: other directory, file order, mtimes, umask, uid, TZ, locale, one CPU
	@tools/install-system-packages fetch
	tools/repro $(if $(filter file,$(origin ENV)),$(BUILT),$(ENV))

fuzz: setup ## damaged wheels, debs, tars and zstd frames for FUZZ_SECONDS (60); crashes into .cache/fuzz
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS)

soak: setup ## CYCLES (1000) mounts and unmounts; fails on a leaked mount, descriptor, process, file or megabyte
	nice -n 19 $(BIN)/python tools/soak.py --cycles $(CYCLES)

golden: setup ## rewrite golden files; review the diff by hand
	ENVBUILDER_GOLDEN=write $(BIN)/pytest -q tests/golden

demo: setup ## the main job end to end; ENV=ai for the big one, REGISTRY=host:port to push
	@tools/install-system-packages fetch lock run
	$(BIN)/python tools/demo.py $(ENV) $(if $(REGISTRY),--registry $(REGISTRY))

registry: ## start Debian's docker-registry on localhost:PORT (5000; data below .cache/registry)
	@tools/install-system-packages registry
	@tools/registry start $(PORT)

registry-stop: ## stop it
	@tools/registry stop $(PORT)

bench: setup ## scenarios of bench/ (SCENARIO=, ENV=, EXCLUSIVE=1 to drop caches); a line each into bench/results/
	@tools/install-system-packages fetch lock run test compat bench
	@tools/install-go-tools
	$(BIN)/python bench/run.py $(SCENARIO) --env $(ENV) $(if $(EXCLUSIVE),--exclusive)

requirements: ## hash-lock the development tools for PYTHON (pip-tools)
	tools/compile-requirements $(PYTHON) --upgrade

clean: ## remove what make made here (not the store)
	rm -rf $(VENV) .cache out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find envbuilder tests tools bench -name __pycache__ -prune -exec rm -rf {} +
