"""Checks a built site: tools/check_site.py DIR [--search TABLE] [PAGE.md ...]. Exits with 1 where something is wrong.

- A browser loads nothing from elsewhere: scripts, styles, fonts and pictures lie beside the page.
- Every link within the site leads to a file that is there, and its #fragment to an element that is there. So does every
  relative link of the Markdown pages named, such as README.md.
- For every term of TABLE, the site's search finds the term's page among its first results. TABLE is a JSON object of
  lists. Each list maps terms to pages: the index entries that docs/conf.py makes, and what readers type besides.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ELSEWHERE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
FOLLOWED = ("a", "area", "base")  # by a reader
# In styles: url(...) and @import "...".
LOADED_BY_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]*)""", re.IGNORECASE)
FIRST_RESULTS = 5


# What pages load, and where they lead


class Page(HTMLParser):
    """Collects what a page loads from elsewhere, its links within the site, and the elements that links can lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.targets: set[str] = set()
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        named = {name: value or "" for name, value in attrs}
        loads = [named.get(name, "") for name in ("src", "poster", "data")]
        loads += [part.strip().split(" ")[0] for part in named.get("srcset", "").split(",")]
        leads = [named.get(name, "") for name in ("href", "xlink:href")] if named.get("rel") != "canonical" else []
        self.loads += [f"<{tag}> {x}" for x in loads + leads * (tag not in FOLLOWED) if ELSEWHERE.match(x)]
        self.loads += LOADED_BY_STYLES.findall(named.get("style", ""))
        self.links += [x for x in loads + leads if x and not SCHEME.match(x)]
        names = ("id", "name") if tag == "a" else ("id",)  # the name of a <meta> or a field is not a place
        self.targets |= {named[name] for name in names if name in named}

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.loads += LOADED_BY_STYLES.findall(data)


@functools.cache
def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def loads_of(path: Path) -> list[str]:
    if path.suffix == ".html":
        return read_page(path).loads
    return LOADED_BY_STYLES.findall(path.read_text(encoding="utf-8"))


def is_broken(path: Path, link: str) -> bool:
    """Whether a link on a page leads to no file, or to no element of a page."""
    name, _, fragment = link.strip().partition("#")
    target = path.parent / unquote(name.partition("?")[0]) if name else path
    if not target.exists():
        return True
    if not fragment or target.suffix not in (".html", ".md"):
        return False
    return unquote(fragment) not in (read_page(target).targets if target.suffix == ".html" else headings_of(target))


# Markdown that is read in the repository


@functools.cache
def without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings_of(path: Path) -> set[str]:
    """The fragments of a page's headings: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ +(.*?) *$", without_code(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of_markdown(path: Path) -> list[str]:
    text = without_code(path)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"""\b(?:src|srcset|href)=["']([^"'\s]+)""", text)
    return [link for link in links if not SCHEME.match(link)]


# Search: what _static/searchtools.js of Sphinx computes from searchindex.js


def results_of(index: dict[str, Any], query: str) -> list[str]:
    """The pages that the site's search finds, best first."""
    scores: dict[int, float] = {}

    def add(page: int, score: float) -> None:
        scores[page] = max(scores.get(page, 0), score)

    lower = query.lower()
    for title, places in index["alltitles"].items():
        if lower in title.lower() and len(lower) >= len(title) / 2:
            for page, _ in places:
                add(page, round(15 * len(lower) / len(title)) + (index["titles"][page] == title))
    for entry, places in index["indexentries"].items():
        if lower in entry and len(lower) >= len(entry) / 2:
            for page, _, is_main in places:
                add(page, round(100 * len(lower) / len(entry)) if is_main else 0)
    for page, score in [*object_scores(index, lower), *word_scores(index, lower)]:
        add(page, score)
    best_first = sorted(scores, key=lambda page: (-scores[page], index["titles"][page].lower()))
    return [index["docnames"][page] for page in best_first]


def object_scores(index: dict[str, Any], query: str) -> Iterator[tuple[int, int]]:
    """Pages of functions and classes with a word of the query in their name, if they have the other words too."""
    words = set(re.findall(r"\w+", query))
    for prefix, objects in index["objects"].items():
        for page, kind, priority, _, name in objects:
            full = f"{prefix}.{name}".lower()
            text = f"{prefix} {name} {index['objnames'][str(kind)][2]} {index['titles'][page]}".lower()
            for word in words:
                if word in full and all(other in text for other in words - {word}):
                    last = full.rpartition(".")[2]
                    match = 11 if word in (full, last) else 6 if word in last else 0
                    yield page, match + {0: 15, 1: 5, 2: -5}.get(priority, 0)


def word_scores(index: dict[str, Any], query: str) -> Iterator[tuple[int, int]]:
    """Pages with the words of the query in their text or titles."""
    stem = stemmer()
    words = {stem(x) for x in re.findall(r"\w+", query) if not x.isdigit() and x not in index["stopwords"]}
    found = [dict(pages_with_word(index, word)) for word in words]
    enough = {len(words), sum(len(word) > 2 for word in words)}  # short words may be missing
    for page in {page for scores in found for page in scores}:
        scores_of_page = [scores[page] for scores in found if page in scores]
        if len(scores_of_page) in enough:
            yield page, max(scores_of_page)


def pages_with_word(index: dict[str, Any], word: str) -> Iterator[tuple[int, int]]:
    for table, whole, part in (("terms", 5, 2), ("titleterms", 15, 7)):
        terms = index[table]
        matches = [word] if word in terms else [term for term in terms if len(word) > 2 and word in term]
        for term in matches:
            pages = terms[term] if isinstance(terms[term], list) else [terms[term]]
            yield from ((page, whole if term == word else part) for page in pages)


@functools.cache
def stemmer() -> Any:
    """The function that gives the stem of an English word; Sphinx brings it, so only a built site needs it."""
    import snowballstemmer

    return snowballstemmer.stemmer("english").stemWord


def read_index(folder: Path) -> dict[str, Any]:
    """The site's index, and the words that its search ignores."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    language = (folder / "_static" / "language_data.js").read_text(encoding="utf-8")
    stopwords = re.search(r"stopwords = new Set\((\[.*?\])\)", language, re.DOTALL)
    return index | {"stopwords": json.loads(stopwords[1]) if stopwords else []}


def not_found(folder: Path, table: Path) -> list[str]:
    index = read_index(folder)
    lines = []
    lists = json.loads(table.read_text(encoding="utf-8")).values()
    for term, page in (each for terms in lists for each in terms.items()):
        first = results_of(index, term)[:FIRST_RESULTS]
        if page not in first:
            lines.append(f"{table}: a search for {term!r} finds {', '.join(first) or 'nothing'}, not {page}")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--search", type=Path, metavar="TABLE")
    given = parser.parse_intermixed_args(arguments)
    folder = given.folder
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".html", ".css"))
    pages = [path for path in files if path.suffix == ".html"]
    if not pages:
        print(f"{folder} has no pages", file=sys.stderr)
        return 1
    links = [(path, link) for path in pages for link in sorted(set(read_page(path).links))]
    links += [(path, link) for path in given.pages for link in sorted(set(links_of_markdown(path)))]
    wrong = [f"{path}: {load}" for path in files for load in loads_of(path)]
    wrong += [f"{path}: {link} leads nowhere" for path, link in links if is_broken(path, link)]
    wrong += not_found(folder, given.search) if given.search else []
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
    if not wrong:
        print(f"{folder}: {len(files)} pages and styles load nothing from elsewhere; {len(links)} links are whole")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
