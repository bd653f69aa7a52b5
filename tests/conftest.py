"""What every test file shares: instruction-set levels, dtypes, the peers, and sections of the closing summary.

Nothing is ever skipped in silence. A level that this machine lacks and tests left out by PYATTN_TEST_PEERS=0 are named
in the summary; a missing torch without that variable fails the tests that need it, and so does a missing JAX with
PYATTN_TEST_JAX=1, as CI has it.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import SANITIZED

from pyattn import _core

ALL_LEVELS = ("scalar", "avx2", "avx512", "neon")
LEVELS = tuple(_core._levels())  # of this machine, best first
FORCED = os.environ.get("PYATTN_ISA")
WITH_PEERS = os.environ.get("PYATTN_TEST_PEERS", "1") != "0"
SHARE = os.environ.get("PYATTN_TEST_SHARE", "1-1/1")  # first-last/of: which files of the suite, dealt out in turn
WITH_JAX = os.environ.get("PYATTN_TEST_JAX", "0") != "0"

SECTIONS = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config):
    config.addinivalue_line("markers", "peers: compares with PyTorch; left out by PYATTN_TEST_PEERS=0")
    config.addinivalue_line("markers", "threads: more than one thread is at work; repeated under ThreadSanitizer")
    config.addinivalue_line("markers", "slow: takes more than some seconds")
    config.stash[SECTIONS] = {}


def pytest_ignore_collect(collection_path):
    """Leave out files that belong to another share."""
    dealt, of = SHARE.split("/")
    first, last = map(int, dealt.split("-"))
    files = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
    if collection_path.name in files and not first - 1 <= files.index(collection_path.name) % int(of) < last:
        return True
    return None  # others decide


def pytest_collection_modifyitems(config, items):
    if WITH_PEERS:
        return
    left_out = [item for item in items if item.get_closest_marker("peers")]
    items[:] = [item for item in items if not item.get_closest_marker("peers")]
    config.hook.pytest_deselected(items=left_out)
    counts = {}
    for item in left_out:
        name = item.nodeid.partition("[")[0]
        counts[name] = counts.get(name, 0) + 1
    config.stash[SECTIONS]["not run: needs PyTorch (PYATTN_TEST_PEERS=0)"] = [
        f"{name}, {count} times" if count > 1 else name for name, count in counts.items()
    ] or ["nothing"]


def pytest_terminal_summary(terminalreporter, config):
    missing = [level for level in ALL_LEVELS if level not in LEVELS]
    terminalreporter.section("instruction-set levels")
    terminalreporter.line(f"tested: {', '.join(LEVELS)}; skipped, not on this machine: {', '.join(missing) or 'none'}")
    for title, lines in config.stash[SECTIONS].items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def summary(pytestconfig) -> dict[str, list[str]]:
    """Sections, title to lines, that are printed when all tests have run."""
    return pytestconfig.stash[SECTIONS]


@pytest.fixture(autouse=True)
def _restore_level():
    yield
    _core._set_isa(FORCED if FORCED in LEVELS else LEVELS[0])


@pytest.fixture(scope="session")
def levels() -> tuple[str, ...]:
    """For tests that go through all of them with one expected result."""
    return LEVELS


@pytest.fixture(params=LEVELS)
def level(request) -> str:
    """The instruction-set level that this test runs at, each of the machine's in turn."""
    _core._set_isa(request.param)
    return request.param


@pytest.fixture(params=["float32", "float64"])
def dtype(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def article() -> dict[str, np.ndarray]:
    """The tensors of the worked example, by name; one input per row, scores not scaled."""
    tensors = json.loads(Path(__file__).with_name("article.json").read_text())
    return {name: np.array(tensor) for name, tensor in tensors.items() if name != "about"}


@pytest.fixture(scope="session")
def torch():
    """PyTorch, for tests marked `peers`."""
    try:
        import torch
    except ImportError as missing:
        pytest.fail(f"{missing}: install the extra pyattn[peers], or set PYATTN_TEST_PEERS=0", pytrace=False)
    return torch


@pytest.fixture(scope="session")
def jax():
    """JAX, for tests marked `peers`."""
    if SANITIZED:
        pytest.skip("JAX and a sanitizer in one process")
    try:
        import jax
    except ImportError as missing:
        if WITH_JAX:
            pytest.fail(f"{missing}: install the extra pyattn[jax], or set PYATTN_TEST_JAX=0", pytrace=False)
        pytest.skip("JAX is not installed: its dot_product_attention is not marked")
    return jax


@pytest.fixture(scope="session")
def transformers(pytestconfig):
    """Hugging Face's transformers, which few have: a line of the summary says when it was missing."""
    names = ("modeling_rope_utils", "models.llama.modeling_llama", "models.gptj.modeling_gptj")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            for name in names:
                importlib.import_module(f"transformers.{name}")
            return importlib.import_module("transformers")
    except ImportError as missing:
        pytestconfig.stash[SECTIONS]["not run: needs transformers"] = [str(missing)]
        pytest.skip(str(missing))
