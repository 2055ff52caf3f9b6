# Entry points. `make demo` and `make test` work from a bare clone: what they lack, they install (see `make help`).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
BASE_PYTHON ?= python3
PYTHON := $(CURDIR)/.venv/bin/python
STAMPS := build/stamps
# Of packages and requirements, `make demo`, `wheel` and `docs` install what they need. All else installs all, which has
# daemons of cluster managers: nobody who only wants a wheel shall get those.
DEMO_PACKAGES := packages.txt
WHEEL_PACKAGES := packages.txt packages-wheel.txt
ALL_PACKAGES := packages.txt packages-wheel.txt packages-test.txt packages-lint.txt
ALL_REQUIREMENTS := requirements.txt requirements-build.txt requirements-test.txt requirements-docs.txt

# What the demo compares: two workers and two servers on 100 Mbit links; no compression, 8-bit gradients, 2-bit gradients.
DEMO = -n 2 -s 2 --arm none --arm int8 --arm 2bit --seeds 3 --bandwidth 100mbit --report report/demo -- \
  $(PYTHON) experiments/fashion_mnist/train.py --network lenet --kv-store dist_sync --num-epochs 2 --limit 7000

CPP_FOLDERS := compress fusion transport kvstore
CPP_FILES = $(shell find $(CPP_FOLDERS) python/src $(addprefix tests/,$(CPP_FOLDERS)) experiments \
  -name '*.h' -o -name '*.cpp' -o -name '*.cu')
PY_FOLDERS := python tests experiments

# One compiler cache for the tests and for the extension, which compile with the same compiler, by the same name, and the
# same flags, and for all clones. (make's own default, g++, has another name than CMake's.)
ifeq ($(origin CXX),default)
  CXX := c++
endif
export CXX
export CCACHE_BASEDIR := $(CURDIR)
# Precompiled headers, too: that of the tests has no __TIME__ in it.
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CMAKE_CUDA_COMPILER_LAUNCHER := ccache

# Tests start thousands of interpreters: each module is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup packages venv build install demo demo-packages demo-venv demo-requirements demo-extension test soak wheel wheel-packages wheel-requirements dist gpu-kit docs docs-requirements sanitize other-torch lint tidy format structure clean

help:  ## this text
	@echo 'gradwire: from a bare clone on Debian 12, as root or with sudo'
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 18
	@echo
	@echo 'The first call installs what is missing and builds; a second one finds it all there. demo, wheel and docs install'
	@echo 'packages.txt and a part of requirements*.txt, into .venv. wheel also installs packages-wheel.txt. All other targets'
	@echo 'install packages*.txt and requirements*.txt, and build the CUDA and MPI parts where nvcc and MPI are found. For'
	@echo 'tests, packages-test.txt has daemons that Debian starts: Slurm, munge, Grid Engine and sshd.'
	@echo
	@echo 'pip chooses the torch with CUDA, a download of gigabytes. The one for CPUs alone takes 200 MB:'
	@echo '  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo'
	@echo
	@echo 'Afterwards: .venv/bin/gradwire --help'

demo: demo-packages demo-venv  ## train a real network at 100 Mbit with and without compression, and compare (4 minutes; the first call builds, too)
	@$(MAKE) -j 2 demo-requirements demo-extension
	@mkdir -p report
	.venv/bin/gradwire ab $(DEMO)
	@echo 'gradwire is in .venv/bin: . .venv/bin/activate'

test: build  ## style, C++ tests and Python tests; ONLY="kvstore tests/python/kv_test.py" or SINCE=HEAD~1 for some
	@$(PYTHON) -m tests.run $(if $(ONLY),--only $(ONLY)) $(if $(SINCE),--since $(SINCE))

soak: build  ## `make test` with ten million fuzzed inputs a decoder, 10 000 rounds under faults, 200 kills, ... (hours)
	@GRADWIRE_FUZZ_ROUNDS=$${GRADWIRE_FUZZ_ROUNDS:-1000000} GRADWIRE_FAULT_ROUNDS=$${GRADWIRE_FAULT_ROUNDS:-10000} \
	 GRADWIRE_RESIDUAL_ROUNDS=$${GRADWIRE_RESIDUAL_ROUNDS:-300} $(PYTHON) -m tests.run --soak

wheel: wheel-requirements  ## dist/gradwire-*.whl, which carries its libraries: it runs where none of packages.txt is installed
	@$(PYTHON) python/make_wheel.py

dist: venv  ## dist/: the packages of a release, checked and tried in empty environments (RELEASING.md)
	@$(PYTHON) python/make_dist.py $(DIST)
	@cd tests && $(PYTHON) -m integration.dist_environments $(TRY)

gpu-kit: build wheel  ## build/gpu-kit/: all that gradwire and experiments/gpu/run.py need on a machine without a package registry
	@$(PYTHON) experiments/gpu/make_kit.py

docs: docs-requirements  ## report/site/: the documentation, for a browser, search included; works offline
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo 'docs: report/site/index.html'

sanitize: packages venv  ## the C++ tests under ASan + UBSan, then under ThreadSanitizer
	@export TSAN_OPTIONS="ignore_noninstrumented_modules=1 suppressions=$(CURDIR)/tests/transport/tsan.supp"; \
	failed=0; \
	for preset in dev tsan; do \
	  [ -f build/$$preset/build.ninja ] || cmake --preset $$preset; \
	  cmake --build --preset $$preset -j $(JOBS); \
	  $(PYTHON) -m tests.run --cpp --tree build/$$preset --jobs $(JOBS) --longest 1500 || failed=1; \
	  $(PYTHON) tests/fuzz.py --replay --tree build/$$preset || failed=1; \
	done; \
	exit $$failed

other-torch: build  ## the tests that concern PyTorch with other releases of it, such as TORCH="2.6.0 2.14.1" (gigabytes each)
	@$(PYTHON) -m tests.other_torch $(TORCH)

lint:  ## formatting, ruff and mypy, without changing a file
	@clang-format --dry-run -Werror $(CPP_FILES)
	@$(PYTHON) -m ruff check $(PY_FOLDERS)
	@$(PYTHON) -m ruff format --check $(PY_FOLDERS)
	@$(PYTHON) -m mypy

tidy: build  ## clang-tidy over the libraries (minutes)
	@find $(CPP_FOLDERS) -name '*.cpp' | xargs -P $(JOBS) -n 1 clang-tidy --quiet -p build/release

format:  ## formats C++ and Python
	@clang-format -i $(CPP_FILES)
	@$(PYTHON) -m ruff format --quiet $(PY_FOLDERS)
	@$(PYTHON) -m ruff check --fix --quiet $(PY_FOLDERS)

structure: venv  ## the rooms of the code: their sizes, and which includes which
	@cd tests && $(PYTHON) -m structure.rooms

clean:  ## removes build/, dist/, report/ and .venv/
	rm -rf build dist report .venv

setup: build  ## installs what is missing and builds, and does no more

packages:
	@$(call install_packages,$(ALL_PACKAGES))

venv: packages
	@$(call make_venv,$(ALL_REQUIREMENTS))
	@$(call install_requirements,$(ALL_REQUIREMENTS))

install: venv
	@$(call install_extension,$(FULL))

# The demo's packages are downloaded while the extension is compiled. Its extension has neither tests nor CUDA nor MPI, except in
# a tree where `make test` has built all that: there it finds everything made.
demo-packages:
	@$(call install_packages,$(DEMO_PACKAGES))

demo-venv: demo-packages
	@$(call make_venv,$(ALL_REQUIREMENTS))

demo-requirements: demo-venv
	@$(call install_requirements,requirements.txt)

demo-extension: demo-venv
	@$(call install_requirements,requirements-build.txt)
	@if grep -qs 'GRADWIRE_TESTS:BOOL=ON' build/release/CMakeCache.txt; then $(call install_extension,$(FULL)); \
	else $(call install_extension,$(LEAN)); fi

wheel-packages:
	@$(call install_packages,$(WHEEL_PACKAGES))

# NCCL's header is for the CUDA parts, which are in a wheel where nvcc is found.
wheel-requirements: wheel-packages demo-venv
	@$(call install_requirements,requirements-build.txt)
	@if command -v nvcc >/dev/null; then \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check "$$(sed -n '/^nvidia-nccl/p' requirements-test.txt)"; \
	fi

# After the extension: two pips at once could install the same package. The site is built without torch, gigabytes where pip
# takes the one with CUDA.
docs-requirements: demo-extension
	@$(call install_requirements,requirements-docs.txt)
	@$(PYTHON) -c 'import numpy, rich, typer' 2>/dev/null || \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check $$(sed 's/#.*//; /^torch/d' requirements.txt)

# $(call install_packages,FILES): what they name and the system lacks.
define install_packages
wanted=$$(sed 's/#.*//' $(1) | xargs); missing=; \
if ! command -v dpkg-query >/dev/null; then \
  echo "packages: this is not Debian; what is needed, under Debian's names: $$wanted"; \
else \
  for p in $$wanted; do \
    [ "$$(dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null || true)" = installed ] || missing+=" $$p"; \
  done; \
fi; \
if [ -n "$$missing" ]; then \
  root=; if [ "$$(id -u)" != 0 ]; then root=sudo; fi; \
  if ! command -v apt-get >/dev/null || { [ -n "$$root" ] && ! command -v sudo >/dev/null; }; then \
    echo "packages: missing:$$missing"; echo "packages: neither root nor sudo with apt-get; install them by hand"; exit 1; \
  fi; \
  echo "packages: installing$$missing"; mkdir -p build; \
  { $$root apt-get update -qq && \
    $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >build/packages.log; } || \
    { tail -n 20 build/packages.log; \
      echo "packages: apt-get could not install:$$missing; install them by hand, then call make again"; exit 1; }; \
fi
endef

# $(call make_venv,FILES): .venv, which remembers what was installed of each file. It is made again where one of them has changed,
# or where the clone has moved (its scripts hold their interpreter's path). A link to another clone's is left alone: to make it
# again would empty that clone's.
INSTALLED := .venv/installed
define make_venv
stale=; [ "$$(cat $(INSTALLED)/clone 2>/dev/null)" = '$(CURDIR)' ] && $(PYTHON) -c '' 2>/dev/null || stale=yes; \
for f in $(1); do if [ -f $(INSTALLED)/$$f ] && ! cmp -s $$f $(INSTALLED)/$$f; then stale=yes; fi; done; \
if [ -n "$$stale" ]; then \
  if [ -L .venv ]; then \
    echo "venv: .venv is a link to $$(readlink .venv), which is not this clone's; remove the link, then call make again"; exit 1; \
  fi; \
  $(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
    { echo 'venv: $(BASE_PYTHON) is older than 3.10; name another: make BASE_PYTHON=/usr/bin/python3 ...'; exit 1; }; \
  $(BASE_PYTHON) -m venv --clear .venv; mkdir $(INSTALLED); echo '$(CURDIR)' > $(INSTALLED)/clone; \
fi
endef

# $(call install_requirements,FILES): together, where one of them is not installed.
define install_requirements
if ! (for f in $(1); do [ -f $(INSTALLED)/$$f ] || exit 1; done); then \
  echo 'venv: installing $(1) into .venv'; \
  $(PYTHON) -m pip install --quiet --disable-pip-version-check $(addprefix -r ,$(1)) && cp $(1) $(INSTALLED)/; \
fi
endef

# $(call install_extension,DEFINITIONS): editable, so that an edited .py file counts at once; C++, a new file or a new name installs
# again. The extension is built in the tree of the tests, with the flags of the preset `release`: nothing is compiled twice.
# What one set of definitions has compiled serves the other: CUDA and the tests add files, and change no other file's flags.
FLAGS = GRADWIRE_TESTS=ON CMAKE_CXX_FLAGS=-Werror CMAKE_CUDA_FLAGS=-Werror=all-warnings CMAKE_CUDA_ARCHITECTURES=90
FULL = $(FLAGS) GRADWIRE_CUDA=AUTO
LEAN = $(subst GRADWIRE_TESTS=ON,GRADWIRE_TESTS=OFF,$(FLAGS)) GRADWIRE_CUDA=OFF
define install_extension
mkdir -p $(STAMPS); \
wanted=$$({ find CMakeLists.txt pyproject.toml $(CPP_FOLDERS) python/src python/CMakeLists.txt -type f -print0 | sort -z | \
  xargs -0 sha256sum; find python/gradwire -name '*.py' | sort; cat requirements-build.txt; echo '$(1) $(CURDIR)'; } | sha256sum); \
if [ "$$wanted" != "$$(cat $(STAMPS)/install 2>/dev/null)" ] || [ ! -x .venv/bin/gradwire ]; then \
  echo 'install: building the extension'; \
  CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    --no-deps $(addprefix --config-settings=,build-dir=build/release build.targets=gradwire_package $(addprefix cmake.define.,$(1))) \
    --editable . && \
  echo "$$wanted" > $(STAMPS)/install; \
fi
endef

# What the extension left out: the tests and the benchmarks in C++.
build: install
	@cmake --build build/release -j $(JOBS)
	@ccache --show-stats | sed 's/^/ccache: /'
