"""What every test file shares: instruction-set levels, dtypes, the peers, and sections of the closing summary.

Nothing is ever skipped in silence. A level that this machine lacks, tests left out by PYATTN_TEST_PEERS=0, and what
sanitizers are spared, whole files and parts of others, are named in the summary; a missing torch without that variable
fails the tests that need it, and so do a missing JAX with PYATTN_TEST_JAX=1, and missing transformers or MiniLM with
PYATTN_TEST_MODELS=1 (make test MODELS=1), as CI has them.
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

from pyattn import _core, models

ALL_LEVELS = ("scalar", "avx2", "avx512", "neon")
LEVELS = tuple(_core._levels())  # of this machine, best first
FORCED = os.environ.get("PYATTN_ISA")
WITH_PEERS = os.environ.get("PYATTN_TEST_PEERS", "1") != "0"
SHARE = os.environ.get("PYATTN_TEST_SHARE", "1/1")  # which part, and of how many: files are dealt out in turn
WITH_JAX = os.environ.get("PYATTN_TEST_JAX", "0") != "0"
WITH_MODELS = os.environ.get("PYATTN_TEST_MODELS", "0") != "0"

SECTIONS = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config):
    config.addinivalue_line("markers", "peers: compares with PyTorch; left out by PYATTN_TEST_PEERS=0")
    config.addinivalue_line("markers", "threads: more than one thread is at work; repeated under ThreadSanitizer")
    config.addinivalue_line("markers", "slow: takes more than some seconds")
    config.stash[SECTIONS] = {}


def pytest_ignore_collect(collection_path):
    """Leave out files that belong to another share."""
    share, of = map(int, SHARE.split("/"))
    files = sorted(path.name for path in Path(__file__).parent.glob("test_*.py"))
    if collection_path.name in files and files.index(collection_path.name) % of != share - 1:
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


def spared(config):
    """Yield a line for each file that is left out, and for each place where the others do less under a sanitizer."""
    yield from sorted(f"{Path(path).name}: all of it" for path in config.getoption("ignore") or [])
    for path in sorted(set(Path(__file__).parent.glob("*.py")) - {Path(__file__)}):
        yield from (f"{path.name}: {line.strip()}" for line in path.read_text().splitlines() if "if SANITIZED" in line)


def pytest_terminal_summary(terminalreporter, config):
    if SANITIZED:
        config.stash[SECTIONS]["not run, or less of it, under a sanitizer"] = list(spared(config))
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


@pytest.fixture(autouse=True)
def _torch_draws_the_same_numbers(request):
    """A test that holds draws of PyTorch's against others would fail now and then."""
    if "torch" in request.fixturenames:
        request.getfixturevalue("torch").manual_seed(0)


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


def without_models(config, missing):
    """Skip, and say so in the summary, or fail where PYATTN_TEST_MODELS says that all of it is there."""
    if WITH_MODELS:
        pytest.fail(
            f"{missing}: install the extras transformers and models, or set PYATTN_TEST_MODELS=0", pytrace=False
        )
    config.stash[SECTIONS].setdefault("not run: needs the extras transformers and models", []).append(str(missing))
    pytest.skip(str(missing))


@pytest.fixture(scope="session")
def transformers(pytestconfig):
    """Hugging Face's transformers, for tests marked `peers`; few have them."""
    if SANITIZED:
        pytest.skip("transformers and a sanitizer in one process")
    names = ("modeling_rope_utils", "models.llama.modeling_llama", "models.gptj.modeling_gptj")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            for name in names:
                importlib.import_module(f"transformers.{name}")
            return importlib.import_module("transformers")
    except ImportError as missing:
        without_models(pytestconfig, missing)


@pytest.fixture(scope="session")
def minilm(pytestconfig):
    """The folder of all-MiniLM-L6-v2, with the package tokenizers to read it."""
    try:
        importlib.import_module("tokenizers")
        return models.find_minilm()
    except ImportError as missing:
        without_models(pytestconfig, missing)
