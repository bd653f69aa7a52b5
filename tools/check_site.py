"""Looks through pages that were built, and fails where one would load anything from elsewhere: tools/check_site.py DIR.

Links that a reader follows may lead anywhere. What a browser fetches by itself, scripts, styles, fonts and pictures,
has to lie beside the page, so that it reads the same without a network.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

ELSEWHERE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
# In styles: url(...) and @import "...".
LOADED_BY_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""", re.IGNORECASE)


class Loads(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        loads = ["src", "srcset", "poster", "data"] + ["href"] * (tag == "link")
        self.found += [f"<{tag}> {named[name]}" for name in loads if ELSEWHERE.match(named.get(name, ""))]


def loads_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = LOADED_BY_STYLES.findall(text)
    if path.suffix == ".html":
        page = Loads()
        page.feed(text)
        found += page.found
    return found


def main(folder: Path) -> int:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".html", ".css"))
    if not any(path.suffix == ".html" for path in files):
        print(f"{folder} has no pages", file=sys.stderr)
        return 1
    found = [f"{path}: {load}" for path in files for load in loads_of(path)]
    print(*found, sep="\n", end="\n" * bool(found), file=sys.stderr)
    if not found:
        print(f"{folder}: {len(files)} pages and styles load nothing from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
