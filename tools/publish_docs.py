"""Adds build/docs to a site with the pages of every release: `make docs PYATTN_SITE=1 && tools/publish_docs.py SITE`.

Each version has a folder. versions.html lists them, the newest first, and the site's first page leads to the newest.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LIST = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>pyattn: versions</title>
<body style="max-width: 40em; margin: 2em auto; font-family: sans-serif">
<h1>Versions of these pages</h1>
<ul>
{}
</ul>
"""
FIRST = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}/index.html">
<title>pyattn</title>
<a href="{0}/index.html">pyattn {0}</a>
"""


def is_release(name: str) -> bool:
    """Tell whether a name is a version made of numbers alone."""
    return name.replace(".", "").isdigit()


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, by which they are put in order."""
    return [int(part) for part in version.split(".")]


def main(site: Path, pages: Path) -> None:
    """Add the pages, and write both lists anew."""
    version = runpy.run_path(str(ROOT / "pyattn" / "_version.py"))["__version__"]
    if not is_release(version):
        sys.exit(f"version {version} is not made of numbers alone; the site takes releases, such as 1.2.0")
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(pages, site / version)
    folders = [path.parent.name for path in site.glob("*/index.html")]
    versions = sorted(filter(is_release, folders), key=numbers, reverse=True)
    lines = (f'<li><a href="{name}/index.html">{name}</a></li>' for name in versions)
    (site / "versions.html").write_text(LIST.format("\n".join(lines)), encoding="utf-8")
    (site / "index.html").write_text(FIRST.format(versions[0]), encoding="utf-8")
    (site / ".nojekyll").touch()  # else folders that begin with an underscore are left out


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), ROOT / "build" / "docs")
