"""Text for matplotlib: choose fonts that have its characters, escape dollar signs, measure, wrap and shorten."""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections.abc import Iterable

from matplotlib import rcParams
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font

from pyattn._util.warnings import warn

__all__ = ["Fonts", "shorten"]

# Fonts with Chinese, Japanese or Korean characters, in the order in which they are tried.
_FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Droid Sans Fallback",
    "Noto Serif CJK SC",
    "AR PL UMing CN",
    "AR PL UKai CN",
    "IPAexGothic",
    "IPAGothic",
    "NanumGothic",
    "Malgun Gothic",
)
_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "→"})
_BOX = "□"


class Fonts:
    """The fonts that a picture needs for its texts; one warning lists the characters that become boxes."""

    def __init__(self, texts: Iterable[str]) -> None:
        characters = {one for text in texts for one in text.translate(_VISIBLE) if one.isprintable()}
        # Matplotlib draws each character in the first font of this list that has it.
        self.family = [name for name in rcParams["font.family"] if isinstance(name, str)]
        missing = (characters | set("…" + _BOX)).difference(*map(_characters_of, self.family))
        fallbacks = _find_fallbacks({one for one in missing if _is_wide(one)})
        missing = missing.difference(*map(_characters_of, fallbacks))
        self.family += fallbacks
        self.bold = "bold" if all(map(_has_bold, fallbacks)) else "normal"  # the weight of titles
        self._boxed = {ord(one): "?" if _BOX in missing else _BOX for one in missing}
        drawn = sorted(missing - {"…", _BOX})
        if drawn:
            some = "".join(drawn[:8]) + ("…" if len(drawn) > 8 else "")
            install = "; on Debian: apt install fonts-noto-cjk" if any(map(_is_wide, drawn)) else ""
            warn(UserWarning, f"no installed font has {some}: boxes are drawn instead{install}")

    def escape(self, text: str, max_width: int | None = None) -> str:
        """Prepare a text for matplotlib: one line, missing characters as boxes, dollar signs escaped."""
        line = "".join(one if one.isprintable() else _BOX for one in text.translate(_VISIBLE))
        return shorten(line, max_width).translate(self._boxed).replace("$", r"\$")

    def width(self, escaped: str, size: float, weight: str = "normal", family: str | None = None) -> float:
        """Measure a line that `escape` returned, in points."""
        families = tuple(self.family if family is None else [family, *self.family])
        return _width(escaped.replace(r"\$", "$"), families, weight) * size / 100

    def wrap(self, text: str, size: float, max_width: float, family: str | None = None) -> list[str]:
        """Break a text into escaped lines, between words and beside Chinese characters."""
        lines = []
        for paragraph in text.splitlines():
            line = ""
            for word in _split_words(paragraph):
                if line and self.width(self.escape(line + word.rstrip()), size, family=family) > max_width:
                    lines.append(self.escape(line.rstrip()))
                    line = ""
                while self.width(self.escape(word.rstrip()), size, family=family) > max_width and len(word) > 1:
                    fits = max(1, int(len(word) * max_width / self.width(self.escape(word), size, family=family)) - 1)
                    lines.append(self.escape(word[:fits]))
                    word = word[fits:]
                line += word
            lines.append(self.escape(line.rstrip()))
        return lines


def shorten(text: str, max_width: int | None) -> str:
    """Cut a text that is too wide, and end it with an ellipsis; a Chinese character is two letters wide."""
    widths = [2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text]
    if max_width is None or sum(widths) <= max_width:
        return text
    kept, remaining = 0, max_width - 1
    while widths[kept] <= remaining:
        remaining -= widths[kept]
        kept += 1
    return text[:kept].rstrip() + "…"


def _split_words(paragraph: str) -> list[str]:
    """Split into words with the space after them; each Chinese character is a word."""
    return re.findall(r"[⺀-￯]|[^\s⺀-￯]+\s*|\s+", paragraph)


def _is_wide(character: str) -> bool:
    """Whether a character takes the width of two letters, as Chinese characters do."""
    return unicodedata.east_asian_width(character) in "WF"


def _characters_of(family: str) -> frozenset[str]:
    """Return the characters that matplotlib can draw in a font family; an empty set if it is not installed."""
    try:
        return _characters_in(findfont(FontProperties(family=[family]), fallback_to_default=False))
    except ValueError:
        return frozenset()


@functools.cache
def _characters_in(path: str) -> frozenset[str]:
    return frozenset(map(chr, get_font(path).get_charmap()))


def _find_fallbacks(missing: set[str]) -> list[str]:
    """Choose fonts of _FALLBACKS, in their order, until every character is covered or no font has it."""
    if missing:
        _add_new_fonts()
    found = []
    for family in _FALLBACKS:
        if missing and (has := missing & _characters_of(family)):
            found.append(family)
            missing = missing - has
    return found


@functools.cache
def _add_new_fonts() -> None:
    """Add fonts that were installed after matplotlib cached its list of fonts, which it never updates."""
    for path in sorted(set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}):
        with contextlib.suppress(Exception):  # FreeType raises plain exceptions for broken fonts
            fontManager.addfont(path)


def _has_bold(family: str) -> bool:
    """Whether a font family is installed in bold, too."""
    weights = {entry.weight for entry in fontManager.ttflist if entry.name == family}
    return bool(weights & {600, 700, 800, "semibold", "bold", "heavy"})


@functools.lru_cache(maxsize=10_000)
def _width(line: str, families: tuple[str, ...], weight: str) -> float:
    """Measure a line at 100 points, where the rounding to whole pixels is small."""
    renderer = RendererAgg(1, 1, 72)
    font = FontProperties(family=list(families), weight=weight, size=100)
    return float(renderer.get_text_width_height_descent(line, font, False)[0])
