"""How Sphinx makes the site of these pages: `make docs`, which needs no network; every warning is an error."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]

project = "pyattn"
author = "the pyattn authors"
copyright = author
release = version = runpy.run_path(str(ROOT / "pyattn" / "_version.py"))["__version__"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["pictures", "templates"]
templates_path = ["templates"]
nitpicky = True

# Names in single backticks: a link where they are documented here, else set apart.
default_role = "autolink"
nitpick_ignore_regex = [("py:.*", r"(numpy|torch|matplotlib|json)\..*")]  # other projects' names, where those are there

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "off"  # notebooks show what is saved in them: `make notebooks` runs them

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

highlight_language = "none"  # what says no language: formulas and tables
smartquotes = False  # values are in quotes that can be typed

# Docstrings name every type, so that signatures need none; what a class has is asked for where it is documented.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"pyattn {release}"
html_copy_source = False
html_show_sphinx = False
if os.environ.get("PYATTN_SITE"):  # where tools/publish_docs.py will put them
    sidebar = ["brand", "search", "scroll-start", "navigation", "scroll-end"]
    html_sidebars = {"**": ["versions.html", *(f"sidebar/{part}.html" for part in sidebar)]}
html_theme_options = {"footer_icons": [], "light_css_variables": {"code-font-size": "81.25%"}}  # 92 columns


def skip_fields(app, what, name, member, skip, options):
    """Leave out a named tuple's fields: its docstring has them."""
    return True if type(member).__name__ == "_tuplegetter" else None


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
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", set_table_apart, priority=400)  # before numpydoc's
    app.connect("doctree-read", end_with_a_line)
