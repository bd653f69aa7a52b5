"""How Sphinx makes the site of these pages: `make docs`, which needs no network; every warning is an error."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import runpy
import shutil
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[1]


def read_json(path):
    return json.loads((ROOT / "docs" / path).read_text(encoding="utf-8"))


INDEX_ENTRIES = read_json("search.json")["index entries"]  # term -> page; the other list is for tools/check_site.py

project = "pyattn"
author = "the pyattn authors"
copyright = author
release = version = runpy.run_path(str(ROOT / "pyattn" / "_version.py"))["__version__"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["pictures", "static", "templates"]
templates_path = ["templates"]
nitpicky = True

# Names in single backticks: a link where they are documented here, else set apart.
default_role = "autolink"
nitpick_ignore_regex = [("py:.*", r"(numpy|torch|matplotlib|json)\..*")]  # other projects' names, where those are there

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "off"  # notebooks show what is saved in them: `make notebooks` runs them

# The button copies what one types: input behind a prompt, or a block without prompts, but never a notebook's output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.output) > div.highlight > pre"

highlight_language = "none"  # for blocks that name no language: formulas and tables
smartquotes = False  # values are in quotes that can be typed

# Docstrings name every type, so signatures need none. templates/autosummary/base.rst lists the members of a class.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# For templates/autosummary: related names and pages, and source files in C; viewcode links to source in Python.
autosummary_context = {name: read_json(f"reference/api/{name}.json") for name in ("see_also", "in_c")}
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"
html_title = f"pyattn {release}"
html_copy_source = False
html_show_sphinx = False
if os.environ.get("PYATTN_SITE"):  # where tools/publish_docs.py will put them
    sidebar = ["brand", "search", "scroll-start", "navigation", "scroll-end"]
    html_sidebars = {"**": ["versions.html", *(f"sidebar/{part}.html" for part in sidebar)]}
html_theme_options = {"footer_icons": [], "light_css_variables": {"code-font-size": "81.25%"}}  # 92 columns


class ShowPictures(SphinxTransform):
    """Show NAME-dark.png in place of NAME.png where the reader's theme is dark, if both files are there."""

    default_priority = 200

    def apply(self):
        page = Path(self.env.doc2path(self.env.docname))
        for light in list(self.document.findall(nodes.image)):
            path = Path(light["uri"])
            name = f"{path.stem}-dark{path.suffix}"
            if "://" in light["uri"] or not (page.parent / path.with_name(name)).is_file():
                continue
            dark = light.copy()  # ids stay with one of them
            dark["uri"], dark["ids"], dark["names"] = str(path.with_name(name)), [], []
            light["classes"] = [*light["classes"], "only-light"]
            dark["classes"] = [*dark["classes"], "only-dark"]
            light.parent.insert(light.parent.index(light) + 1, dark)


class AddSearchTerms(SphinxTransform):
    """Make each term of INDEX_ENTRIES an index entry of its page, because the search ranks those first."""

    default_priority = 800

    def apply(self):
        entries = [entry for node in self.document.findall(addnodes.index) for entry in node["entries"]]
        there = {entry[1].lower() for entry in entries}  # of a glossary
        terms = [x for x, page in INDEX_ENTRIES.items() if page == self.env.docname and x.lower() not in there]
        section = next(self.document.findall(nodes.section), None)
        if terms and section is not None:
            entries = [("single", term, section["ids"][0], "main", None) for term in terms]
            section.insert(1, addnodes.index(entries=entries))


def remove_old_stubs(app, config):
    """Remove the pages of names made by the build before: some names may be gone."""
    shutil.rmtree(Path(app.srcdir) / "reference" / "api" / "generated", ignore_errors=True)


def find_source(app, module, name):
    """Name the module that has the source of a function, which may stand behind a wrapper that checks keywords."""
    found = getattr(importlib.import_module(module), name, None)
    return inspect.unwrap(found).__globals__["__name__"] if inspect.isfunction(found) else None


def forget_compiled_modules(app, env):
    """Keep compiled modules out of viewcode's list of modules: it makes no pages for them."""
    env._viewcode_modules = {name: entry for name, entry in env._viewcode_modules.items() if entry and entry[2]}


def lead_back(app, name, template, context, doctree):
    """Mend links from the source of a function to its page: viewcode takes all names of a file for one module's."""
    if name.startswith("_modules/"):
        context["body"] = re.sub(
            r"(generated/([\w.]+)\.html#)([\w.]+)",
            lambda link: link[0] if link[3].startswith(link[2]) else link[1] + link[2],
            context["body"],
        )


def skip_fields(app, what, name, member, skip, options):
    """Leave out a named tuple's fields, which its docstring has, and what matplotlib adds to a class."""
    is_theirs = (getattr(member, "__module__", None) or "").startswith("matplotlib.")
    return True if is_theirs or type(member).__name__ == "_tuplegetter" else None


def set_table_apart(app, what, name, documented, options, lines):
    """Put the table of mask polarities, with which the docstring of `attention` opens, below its first sentence."""
    if lines and lines[0].startswith("attention: "):
        end = lines.index("", 3)
        lines[:] = [*lines[3:end], "", "::", "", *(f"    {line}" for line in lines[:2]), *lines[end:]]


def end_with_a_line(app, doctree):
    """Cut the empty line that a doctest ends with in a Markdown page."""
    for block in doctree.findall(nodes.literal_block):
        if block.rawsource == block.astext():
            block.rawsource = block.rawsource.rstrip("\n")
            block[:] = [nodes.Text(block.rawsource)]


def setup(app):
    app.add_transform(AddSearchTerms)
    app.add_transform(ShowPictures)
    app.connect("config-inited", remove_old_stubs)
    app.connect("env-updated", forget_compiled_modules)
    app.connect("html-page-context", lead_back)
    app.connect("viewcode-follow-imported", find_source)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", set_table_apart, priority=400)  # before numpydoc's
    app.connect("doctree-read", end_with_a_line)
