"""How texts are written: in fonts that have their characters, no longer than there is room for, and not as formulas."""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from collections.abc import Iterable

from matplotlib import rcParams
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findSystemFonts, fontManager, get_font
from matplotlib.font_manager import findfont as find_font

from pyattn._util.warnings import warn

__all__ = ["Lettering", "shorten"]

_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
)
_LIKELY = re.compile(r"CJK|Han Sans|Han Serif|WenQuanYi|Hei\b|Heiti|Song\b|Kai\b|Ming|Gothic|Droid Sans Fallback")
_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "→"})
_BOX = "□"


class Lettering:
    """The fonts for some texts, and how each is written in them.

    Where matplotlib's own font lacks characters of Chinese, Japanese or Korean, one that is installed and has them is
    chosen. What no font has is drawn as a box, and one warning says so.

    Parameters
    ----------
    texts : iterable of str
        All that will be written.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.bold = "bold"  # unless the chosen font has no such letters
        self.family = [name for name in rcParams["font.family"] if isinstance(name, str)]
        characters = {one for text in texts for one in text.translate(_VISIBLE) if one.isprintable()}
        missing = _missing(characters | set("…" + _BOX), self.family)
        wide = {one for one in missing if unicodedata.east_asian_width(one) in "WF"}
        if wide:
            font = _choose_font(frozenset(wide))
            if font is None and _add_new_fonts():
                font = _choose_font(frozenset(wide))
            if font is not None:
                self.bold = "bold" if _is_bold(font) else "normal"
                self.family = [*self.family, font]
                missing = _missing(missing, [font])
        self._boxed = {ord(one): "?" if _BOX in missing else _BOX for one in missing}
        drawn = sorted(missing - {"…", _BOX})
        if drawn:
            some = "".join(drawn[:8]) + ("…" if len(drawn) > 8 else "")
            install = "; on Debian: apt install fonts-noto-cjk" if wide & missing else ""
            warn(UserWarning, f"no installed font has {some}: boxes are drawn instead{install}")

    def write(self, text: str, most: int | None = None) -> str:
        """Give a text as matplotlib is to be handed it: one line, and no dollar that opens a formula.

        Parameters
        ----------
        text : str
            As it was given.
        most : int, optional
            How wide it may be, as for `shorten`. Default: None, as wide as it is.

        Returns
        -------
        str
        """
        line = "".join(one if one.isprintable() else _BOX for one in text.translate(_VISIBLE))
        return shorten(line, most).translate(self._boxed).replace("$", r"\$")

    def width(self, written: str, size: float, weight: str = "normal", family: str | None = None) -> float:
        """Measure a line.

        Parameters
        ----------
        written : str
            As `write` gave it.
        size : float
            Of its letters, in points.
        weight : str
            Of its letters. Default: 'normal'.
        family : str, optional
            A font before the others. Default: None.

        Returns
        -------
        float
            In points.
        """
        families = tuple(self.family if family is None else [family, *self.family])
        return _width(written.replace(r"\$", "$"), families, weight) * size / 100

    def wrap(self, text: str, size: float, room: float, family: str | None = None) -> list[str]:
        """Break a text into lines, between words and beside Chinese characters.

        Parameters
        ----------
        text : str
            As it was given; its own line breaks are kept.
        size : float
            Of its letters, in points.
        room : float
            How wide a line may be, in points.
        family : str, optional
            A font before the others. Default: None.

        Returns
        -------
        list of str
            As `write` gives them.
        """
        lines = []
        for paragraph in text.splitlines():
            line = ""
            for piece in _pieces(paragraph):
                if line and self.width(self.write(line + piece.rstrip()), size, family=family) > room:
                    lines.append(self.write(line.rstrip()))
                    line = ""
                while self.width(self.write(piece.rstrip()), size, family=family) > room and len(piece) > 1:
                    fits = max(1, int(len(piece) * room / self.width(self.write(piece), size, family=family)) - 1)
                    lines.append(self.write(piece[:fits]))
                    piece = piece[fits:]
                line += piece
            lines.append(self.write(line.rstrip()))
        return lines


def shorten(text: str, most: int | None) -> str:
    """Cut a text that is too wide, and end it with an ellipsis.

    Parameters
    ----------
    text : str
        A line.
    most : int or None
        How many letters wide it may be, where a Chinese character is two wide. None: any width.

    Returns
    -------
    str
    """
    widths = [2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text]
    if most is None or sum(widths) <= most:
        return text
    kept, room = 0, most - 1
    while widths[kept] <= room:
        room -= widths[kept]
        kept += 1
    return text[:kept].rstrip() + "…"


def _pieces(paragraph: str) -> list[str]:
    """Words with the space after them, and Chinese characters one by one."""
    return re.findall(r"[⺀-￯]|[^\s⺀-￯]+\s*|\s+", paragraph)


def _missing(characters: set[str], families: list[str]) -> set[str]:
    """Find the characters that none of these families has."""
    return {one for one in characters if not any(_has(name, one) for name in families)}


@functools.lru_cache(maxsize=10_000)
def _has(family: str, character: str) -> bool:
    # Of an installed family any file will do; others, such as 'sans-serif', are looked up.
    path = next((entry.fname for entry in fontManager.ttflist if entry.name == family), None)
    if path is None:
        try:
            path = find_font(FontProperties(family=[family]), fallback_to_default=False)
        except ValueError:  # not installed: matplotlib goes on to the next
            return False
    return bool(get_font(path).get_char_index(ord(character)))


def _choose_font(characters: frozenset[str]) -> str | None:
    """Find the installed font that has most of these characters; of equal ones the first in _FAMILIES."""
    installed = {entry.name for entry in fontManager.ttflist}
    names = [name for name in _FAMILIES if name in installed]
    names += sorted(name for name in installed - set(names) if _LIKELY.search(name))
    covered = {name: sum(_has(name, one) for one in characters) for name in names}
    best = max(names, key=lambda name: covered[name], default=None)
    return best if best is not None and covered[best] else None


@functools.lru_cache(maxsize=1)
def _add_new_fonts() -> bool:
    """Tell matplotlib of fonts that were installed after it listed them: it keeps its list in a file for ever."""
    known = {entry.fname for entry in fontManager.ttflist}
    new = sorted(set(findSystemFonts()) - known)
    for path in new:
        with contextlib.suppress(
            Exception
        ):  # it may be one that matplotlib cannot read: FreeType's errors have no class
            fontManager.addfont(path)
    return bool(new)


def _is_bold(family: str) -> bool:
    """Whether it is installed in bold letters, too."""
    weights = {entry.weight for entry in fontManager.ttflist if entry.name == family}
    return bool(weights & {600, 700, 800, "semibold", "bold", "heavy"})


@functools.lru_cache(maxsize=10_000)
def _width(line: str, families: tuple[str, ...], weight: str) -> float:
    """In letters of 100 points; at that size the rounding to pixels is small."""
    renderer = RendererAgg(1, 1, 72)
    font = FontProperties(family=list(families), weight=weight, size=100)
    return float(renderer.get_text_width_height_descent(line, font, False)[0])
