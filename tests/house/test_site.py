"""The site of docs/ has every public name and every picture, and tools/check_site.py finds what is wrong with pages.

`make docs` builds it, and takes Sphinx's warnings for errors: broken links, names that are not there, bad markup.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.helpers import ROOT, for_each

PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.rst"))
MODULES = [
    "pyattn",
    "pyattn.cache",
    "pyattn.functional",
    "pyattn.generation",
    "pyattn.interop",
    "pyattn.interop.bertviz",
    "pyattn.interop.dask",
    "pyattn.interop.torch",
    "pyattn.interop.transformers",
    "pyattn.masks",
    "pyattn.models",
    "pyattn.models.examples",
    "pyattn.nn",
    "pyattn.nn.init",
    "pyattn.nn.losses",
    "pyattn.optim",
    "pyattn.plot",
    "pyattn.runtime",
    "pyattn.testing",
    "pyattn.tracing",
]


def names_of(page):
    """Names that the tables of a page list, as Sphinx reads them below a `currentmodule`."""
    listed, module, in_table = [], None, False
    for line in page.read_text().splitlines():
        if found := re.fullmatch(r"\.\. (?:currentmodule|automodule):: (\S+)", line):
            module = found[1]
        elif found := re.fullmatch(r"   ([\w.]+)", line):
            listed += [f"{module}.{found[1]}"] if in_table else []
        in_table = line == ".. autosummary::" or (in_table and (not line or line.startswith("   ")))
    return listed


def resolve(name):
    """The object, by attributes of modules as a user would reach it."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def public_objects():
    """Name to object of every function and class in the `__all__` of a module."""
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            found = resolve(f"{module}.{name}")
            if callable(found):
                yield found


LISTED = [name for page in PAGES for name in names_of(page)]


@for_each("found", public_objects())
def test_every_public_name_is_in_the_reference(found):
    where = "belongs in a table of docs/reference/api/*.rst, once"
    assert [resolve(name) for name in LISTED].count(found) == 1, f"{found.__name__} {where}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_makes_a_page_for_each_name(page):
    lines = page.read_text().splitlines()
    options = [lines[n + 1 : n + 3] for n, line in enumerate(lines) if line == ".. autosummary::"]
    assert all(found == ["   :toctree: generated", "   :nosignatures:"] for found in options)


def test_pages_that_name_related_pages_are_there():
    """Sphinx checks the related names, but not the names that they belong to."""
    related = json.loads((ROOT / "docs" / "reference" / "api" / "see_also.json").read_text())
    assert set(related) <= set(LISTED)


def test_functions_in_c_name_their_source():
    """The others have a link to their source, which viewcode makes."""
    in_c = json.loads((ROOT / "docs" / "reference" / "api" / "in_c.json").read_text())
    assert set(in_c) == {name for name in LISTED if inspect.isbuiltin(resolve(name))}
    assert all((ROOT / path).is_file() for path in in_c.values())


def test_every_public_module_is_looked_at():
    """A module whose names are public is one that a user reaches as an attribute."""
    pyattn = importlib.import_module("pyattn")
    assert {f"pyattn.{name}" for name in pyattn.__all__ if inspect.ismodule(getattr(pyattn, name))} <= set(MODULES)


def test_names_that_docstrings_lead_to_are_there():
    """Sphinx knows which of these it can link; what does not exist it takes for an argument's name."""
    sources = [*(ROOT / "pyattn").rglob("*.py"), *(ROOT / "csrc" / "python").glob("doc_*.h")]
    names = {name for path in sources for name in re.findall(r"(?<!`)`(pyattn\.[\w.]+)`(?!`)", path.read_text())}
    assert len(names) > 10
    for name in sorted(names):
        first, *rest = name.split(".")
        found = importlib.import_module(first)
        for attribute in rest:
            found = getattr(found, attribute, None)
        assert found is not None, name


PICTURES = sorted(path.name for path in (ROOT / "docs" / "pictures").iterdir())
LIGHT = [name for name in PICTURES if not Path(name).stem.endswith("-dark")]


def test_every_picture_is_shown_by_a_page():
    """In docs/conf.py a picture for dark pages, NAME-dark.png, takes the place of NAME.png."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), *ROOT.glob("README*.md")]
    shown = {name for page in pages for name in re.findall(r"pictures/([\w.-]+)", page.read_text(encoding="utf-8"))}
    assert len(LIGHT) > 10
    assert set(LIGHT) <= shown


def test_every_picture_has_a_dark_twin():
    """A page of HTML follows its reader's scheme."""
    twins = [f"{Path(name).stem}-dark{Path(name).suffix}" for name in LIGHT if not name.endswith(".html")]
    assert sorted(set(PICTURES) - set(LIGHT)) == sorted(twins)


# What pages load

FETCHING = {
    "script": '<script src="https://example.org/a.js"></script>',
    "any protocol": '<script src="//example.org/a.js"></script>',
    "style sheet": '<link rel="stylesheet" href="https://example.org/a.css">',
    "picture": '<img src="http://example.org/a.png">',
    "picture of a set": '<img srcset="b.png 1x, https://example.org/a.png 2x">',
    "picture in a drawing": '<svg><image href="https://example.org/a.png"/></svg>',
    "style attribute": '<p style="background: url(https://example.org/a.png)">',
    "style element": '<style>@import "https://example.org/a.css";</style>',
}


CHECK = runpy.run_path(str(ROOT / "tools" / "check_site.py"))


def check_site(folder, page, style="", others=()):
    """Exit status and complaints about a site of one page and one style sheet."""
    (folder / "page.html").write_text(page)
    (folder / "page.css").write_text(style)
    with contextlib.redirect_stderr(io.StringIO()) as complaints:
        status = CHECK["main"]([str(folder), *map(str, others)])
    return SimpleNamespace(returncode=status, stderr=complaints.getvalue())


@pytest.mark.parametrize("page", FETCHING.values(), ids=FETCHING)
def test_a_page_that_loads_from_elsewhere_fails(page, tmp_path):
    done = check_site(tmp_path, page)
    assert done.returncode == 1
    assert "example.org/a." in done.stderr


def test_a_font_from_elsewhere_fails(tmp_path):
    done = check_site(tmp_path, "<p>text</p>", "@font-face { src: url('https://example.org/a.woff2'); }")
    assert done.returncode == 1
    assert "page.css: https://example.org/a.woff2" in done.stderr


def test_links_may_lead_elsewhere(tmp_path):
    page = '<a href="https://example.org">there</a> <script src="here.js"></script> <img src="data:image/png;base64,">'
    (tmp_path / "here.js").touch()
    assert check_site(tmp_path, page, "p { background: url(here.png); }").returncode == 0


def test_text_may_speak_of_styles(tmp_path):
    assert check_site(tmp_path, "<p>A style says url(https://example.org/a.png).</p>").returncode == 0


def test_a_folder_without_pages_fails(tmp_path):
    command = [sys.executable, ROOT / "tools" / "check_site.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "has no pages" in done.stderr


# Where pages lead


@pytest.mark.parametrize("link", ["other.html", "#there", "page.html#there", "folder/page.html", "page.html?x=1#there"])
def test_a_link_that_leads_nowhere_fails(link, tmp_path):
    done = check_site(tmp_path, f'<p id="here"><a href="{link}">there</a></p>')
    assert done.returncode == 1
    assert f"page.html: {link} leads nowhere" in done.stderr


@pytest.mark.parametrize(
    "link", ["#", "#here", "page.html", "page.css?v=1", "page.html#%68ere", "mailto:a@example.org"]
)
def test_a_link_that_leads_somewhere_passes(link, tmp_path):
    assert check_site(tmp_path, f'<p id="here"><a href="{link}">there</a></p>').returncode == 0


@pytest.mark.parametrize(("target", "status"), [('<a name="there">', 0), ('<input name="there">', 1)])
def test_the_name_of_an_anchor_alone_is_a_place(target, status, tmp_path):
    assert check_site(tmp_path, f'{target}<a href="#there">there</a>').returncode == status


def test_a_picture_that_is_not_there_fails(tmp_path):
    assert "page.html: a.png leads nowhere" in check_site(tmp_path, '<img src="a.png">').stderr


def test_links_of_markdown_are_checked_outside_code(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("# Speed, `measured`\n[a](#speed-measured) [b](#spee)\n```\n[c](gone.md)\n```\n[d](lost.md)\n")
    done = check_site(tmp_path, "<p>text</p>", others=[readme])
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "#spee leads nowhere",
        "lost.md leads nowhere",
    ]


# Search

INDEX = {
    "docnames": ["explanation/faq", "how-to/install", "reference/api"],
    "titles": ["Questions", "Install and troubleshoot", "attention"],
    "alltitles": {"Questions": [[0, None]], "GPU?": [[0, "gpu"]], "Install and troubleshoot": [[1, None]]},
    "indexentries": {"pip": [[1, "pip", True]]},
    "objects": {"pyattn": [[2, 0, 1, "", "attention"]]},
    "objnames": {"0": ["py", "function", "Python function"]},
    "terms": {"pip": [0, 1, 2], "mask": [0, 2], "causal": 2},
    "titleterms": {"question": 0, "instal": 1},
    "stopwords": ["my"],
}


@pytest.mark.parametrize(
    ("query", "pages"),
    [
        ("GPU", [0]),
        ("pip", [1, 2, 0]),
        ("causal mask", [2]),
        ("attention", [2]),
        ("installing", [1]),
        ("my mask", [2, 0]),
        ("nothing", []),
    ],
)
def test_search_finds_what_the_site_finds(query, pages):
    pytest.importorskip("snowballstemmer")
    assert CHECK["results_of"](INDEX, query) == [INDEX["docnames"][page] for page in pages]


def test_a_term_that_does_not_find_its_page_fails(tmp_path):
    pytest.importorskip("snowballstemmer")
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(INDEX)})")
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "language_data.js").write_text('const stopwords = new Set(["a", "an"]);')
    table = tmp_path / "search.json"
    lists = {"index entries": {"pip": "how-to/install"}, "typed": {"GPU": "how-to/install", "causal": "reference/api"}}
    table.write_text(json.dumps(lists))
    done = check_site(tmp_path, "<p>text</p>", others=["--search", table])
    assert done.returncode == 1
    assert done.stderr == f"{table}: a search for 'GPU' finds explanation/faq, not how-to/install\n"
