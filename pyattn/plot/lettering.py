"""How texts are written: in fonts that have their characters, no longer than there is room for, and not as formulas."""

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

__all__ = ["Lettering", "shorten"]

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


class Lettering:
    """The fonts for some texts, and how each is written in them.

    Matplotlib draws every character in the first font of `family` that has it: those of rcParams come first, then
    installed ones of _FALLBACKS. A character that none of them has becomes a box, and one warning names them all.

    Parameters
    ----------
    texts : iterable of str
        All that will be written.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        characters = {one for text in texts for one in text.translate(_VISIBLE) if one.isprintable()}
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


def _is_wide(character: str) -> bool:
    """Whether it is as wide as high, as Chinese characters are."""
    return unicodedata.east_asian_width(character) in "WF"


def _characters_of(family: str) -> frozenset[str]:
    """Collect the characters that matplotlib can draw in a family: none where it is not installed."""
    try:
        return _characters_in(findfont(FontProperties(family=[family]), fallback_to_default=False))
    except ValueError:
        return frozenset()


@functools.cache
def _characters_in(path: str) -> frozenset[str]:
    return frozenset(map(chr, get_font(path).get_charmap()))


def _find_fallbacks(missing: set[str]) -> list[str]:
    """Choose the fonts of _FALLBACKS that have some of these characters, until none is missing."""
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
    """Tell matplotlib of fonts that were installed after it listed them: it keeps its list in a file for ever."""
    for path in sorted(set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}):
        with contextlib.suppress(Exception):  # FreeType's errors about broken fonts have no class of their own
            fontManager.addfont(path)


def _has_bold(family: str) -> bool:
    """Whether it is installed in bold letters, too."""
    weights = {entry.weight for entry in fontManager.ttflist if entry.name == family}
    return bool(weights & {600, 700, 800, "semibold", "bold", "heavy"})


@functools.lru_cache(maxsize=10_000)
def _width(line: str, families: tuple[str, ...], weight: str) -> float:
    """Measure a line in letters of 100 points; at that size the rounding to pixels is small."""
    renderer = RendererAgg(1, 1, 72)
    font = FontProperties(family=list(families), weight=weight, size=100)
    return float(renderer.get_text_width_height_descent(line, font, False)[0])
