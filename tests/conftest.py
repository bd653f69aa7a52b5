"""What every test file shares: instruction-set levels, dtypes, the peers, and sections of the closing summary.

`make test` runs each case at one level, and one case in n of a test marked `sampled(n)`. The test's name seeds the
draw, so every run makes the same one. The other cases are marked `not_drawn`; `make suite-all` runs all cases.

Nothing is skipped in silence. The summary names a level that this machine lacks, the tests left out by
PYATTN_TEST_PEERS=0, those that are slow or not drawn, those whose optional library is missing, and the files and parts
left out under a sanitizer. A missing PyTorch fails the tests that need it unless PYATTN_TEST_PEERS=0; with
PYATTN_TEST_ALL=1 (`make suite-all`) so do a missing JAX, transformers or MiniLM.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.helpers import EVERYTHING, SANITIZED

from pyattn import _core, models

ALL_LEVELS = ("scalar", "avx2", "avx512", "neon")
LEVELS = tuple(_core._levels())  # of this machine, best first
FORCED = os.environ.get("PYATTN_ISA")
WITH_PEERS = os.environ.get("PYATTN_TEST_PEERS", "1") != "0"
OPTIONAL = {"jax", "minilm", "transformers"}  # fixtures of libraries that `make test` does without

SECTIONS = pytest.StashKey[dict[str, list[str]]]()


def pytest_configure(config):
    config.addinivalue_line("markers", "peers: compares with PyTorch; left out by PYATTN_TEST_PEERS=0")
    config.addinivalue_line("markers", "optional: needs JAX, transformers or MiniLM; set on tests that ask for them")
    config.addinivalue_line("markers", "threads: more than one thread is at work; repeated under ThreadSanitizer")
    config.addinivalue_line("markers", "slow: takes more than some seconds; `make suite-all` runs it, `make test` not")
    config.addinivalue_line("markers", "sampled(n): `make test` draws one in n cases")
    config.addinivalue_line("markers", "not_drawn: set on the cases that `make test` leaves out")
    config.stash[SECTIONS] = {}


@pytest.hookimpl(tryfirst=True)  # before -m looks at markers
def pytest_collection_modifyitems(config, items):
    for item in items:
        if not OPTIONAL.isdisjoint(item.fixturenames):
            item.add_marker("optional")
    mark_not_drawn(items)
    if not WITH_PEERS:
        left_out = [item for item in items if item.get_closest_marker("peers")]
        items[:] = [item for item in items if not item.get_closest_marker("peers")]
        config.stash[SECTIONS]["not run: needs PyTorch (PYATTN_TEST_PEERS=0)"] = count_by_file(left_out)
        if left_out:
            config.hook.pytest_deselected(items=left_out)


def mark_not_drawn(items):
    """Mark all levels of a case but one, and all but one in n cases of a test that is marked `sampled(n)`."""
    sampled = defaultdict(list)
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if "level" in item.fixturenames:
            level = item.callspec.params["level"]
            drawn = random.Random(test + case.replace(level, "", 1)).choice(LEVELS)
            if level != (FORCED if FORCED in LEVELS else drawn):
                item.add_marker("not_drawn")
                continue
        marker = item.get_closest_marker("sampled")
        if marker and not item.get_closest_marker("slow"):
            sampled[test, marker.args[0]].append(item)
    for (test, share), cases in sampled.items():
        drawn = random.Random(test).sample(cases, math.ceil(len(cases) / share))
        for item in cases:
            if item not in drawn:
                item.add_marker("not_drawn")


def pytest_deselected(items):
    """List what `make test` leaves out, by the reason that its -m names."""
    config = items[0].config
    reasons = {"slow": "slow", "not_drawn": "not drawn", "optional": "needs JAX, transformers or MiniLM"}
    for marker, reason in reasons.items():
        left_out = [item for item in items if item.get_closest_marker(marker)]
        if left_out and f"not {marker}" in config.getoption("markexpr"):
            config.stash[SECTIONS][f"not run: {reason} (make suite-all)"] = count_by_file(left_out)


def count_by_file(items):
    """Lines such as `test_a.py: 3 tests`."""
    counts = Counter(item.path.name for item in items)
    return [f"{name}: {count} tests" for name, count in counts.items()] or ["nothing"]


def spared(config):
    """Yield a line for each file that is left out, and for each place where the others do less under a sanitizer."""
    yield from sorted(f"{Path(path).name}: all of it" for path in config.getoption("ignore") or [])
    for path in sorted(set(Path(__file__).parent.rglob("*.py")) - {Path(__file__)}):
        yield from (f"{path.name}: {line.strip()}" for line in path.read_text().splitlines() if "if SANITIZED" in line)


# With pytest-xdist tests run in workers, and the summary is printed by the process that started them.


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["sections"] = session.config.stash[SECTIONS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    for title, lines in getattr(node, "workeroutput", {}).get("sections", {}).items():
        known = node.config.stash[SECTIONS].setdefault(title, [])
        known += [line for line in lines if line not in known]


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
    tensors = json.loads((Path(__file__).parent / "support" / "article.json").read_text())
    return {name: np.array(tensor) for name, tensor in tensors.items() if name != "about"}


@pytest.fixture(scope="session")
def torch():
    """PyTorch, for tests marked `peers`."""
    try:
        import torch
    except ImportError as missing:
        pytest.fail(f"{missing}: install the extra pyattn[peers], or set PYATTN_TEST_PEERS=0", pytrace=False)
    torch.set_num_threads(1)  # several would wait for each other, and for those of other workers
    return torch


@pytest.fixture(autouse=True)
def _torch_draws_the_same_numbers(request):
    """A test that holds draws of PyTorch's against others would fail now and then."""
    if "torch" in request.fixturenames:
        request.getfixturevalue("torch").manual_seed(0)


def without_optional(config, missing):
    """Skip, and say so in the summary; in `make suite-all`, fail."""
    if EVERYTHING:
        pytest.fail(f"{missing}: install the extras transformers, models and jax", pytrace=False)
    section = config.stash[SECTIONS].setdefault("not run: needs the extras transformers, models or jax", [])
    if str(missing) not in section:
        section.append(str(missing))
    pytest.skip(str(missing))


@pytest.fixture(scope="session")
def jax(pytestconfig):
    """JAX, for tests marked `peers`."""
    if SANITIZED:
        pytest.skip("JAX and a sanitizer in one process")
    try:
        return importlib.import_module("jax")
    except ImportError as missing:
        without_optional(pytestconfig, missing)


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
        without_optional(pytestconfig, missing)


@pytest.fixture(scope="session")
def minilm(pytestconfig):
    """The folder of all-MiniLM-L6-v2, with the package tokenizers to read it."""
    try:
        importlib.import_module("tokenizers")
        return models.find_minilm()
    except ImportError as missing:
        without_optional(pytestconfig, missing)
