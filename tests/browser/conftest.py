"""Pages in Debian's chromium. `make browser` runs this folder, and pytest only where it is named: pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import driving
import numpy as np
import pytest
from support.helpers import ROOT

import pyattn

CHINESE = ["动物", "没有", "过马路"]


class Page(NamedTuple):
    """A file, and what went into it: x, w_query, w_key and w_value in rows, the scale, and the names of tokens."""

    path: object
    matrices: tuple
    scale: float = 1.0
    tokens: list[str] | None = None
    trace: object = None


@pytest.fixture(scope="session")
def pictures():
    folder = ROOT / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def chromium():
    driver = driving.start()
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium, pictures):
    """Whatever a test does with a page, its console must stay empty and the network untouched."""
    browser = driving.Browser(chromium, pictures)
    yield browser
    assert browser.complaints() == []


@pytest.fixture(scope="session")
def pages(tmp_path_factory, article):
    """Every page by name."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}

    def add(name, matrices, scale=1.0, tokens=None, **options):
        given = [matrix.T for matrix in matrices] if options.get("convention") == "column" else matrices
        trace = pyattn.trace(*given, scale=scale, tokens=tokens, **options)
        made[name] = Page(folder / f"{name}.html", matrices, scale, tokens, trace)
        trace.save_html(made[name].path)

    example = tuple(article[name].astype(float) for name in ("x", "w_query", "w_key", "w_value"))
    add("article", example)
    add("chinese", example, tokens=CHINESE)
    add("column", example, convention="column")
    explained = folder / "explained.html"
    command = [sys.executable, "-m", "pyattn", "explain", "-o", str(explained)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    made["explained"] = Page(explained, example)
    rng = np.random.default_rng(5)
    many = (rng.standard_normal((64, 16)), *rng.standard_normal((3, 16, 16)) / 4)
    add("64-tokens", many, 0.25, [f"{word}{n}" for n, word in enumerate(["猫", "sat", "mat", "太累"] * 16)])
    add("64-causal", many, 0.25, is_causal=True)
    return made
