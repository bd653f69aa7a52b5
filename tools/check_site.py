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
FOLLOWED = ("a", "area", "base")  # by a reader
# In styles: url(...) and @import "...".
LOADED_BY_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""", re.IGNORECASE)


class Loads(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        named = {name: value or "" for name, value in attrs}
        loads = [named.get(name, "") for name in ("src", "poster", "data")]
        loads += [part.strip() for part in named.get("srcset", "").split(",")]
        if tag not in FOLLOWED and named.get("rel") != "canonical":
            loads += [named.get(name, "") for name in ("href", "xlink:href")]
        self.found += [f"<{tag}> {load}" for load in loads if ELSEWHERE.match(load)]
        self.found += LOADED_BY_STYLES.findall(named.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.found += LOADED_BY_STYLES.findall(data)


def loads_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".html":
        return LOADED_BY_STYLES.findall(text)
    page = Loads()
    page.feed(text)
    return page.found


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
