"""Attention weights as lines from queries to keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

import pyattn._core as _core
from pyattn._util.arguments import as_index
from pyattn.plot.flow_page import FlowPage, flow_fragment, flow_page
from pyattn.plot.fonts import Fonts, shorten
from pyattn.plot.inputs import Array, Tokens, read_matrix, read_title, read_tokens
from pyattn.plot.labels import MAX_TOKEN_WIDTH, label_tokens
from pyattn.plot.theme import HEAD_COLOURS, ShownAxes, Theme, choose_theme, new_axes

__all__ = ["FlowAxes", "flow"]

_MAX_LINE_WIDTH = 5.0
"""Width of the line of the largest weight, in points."""

_MIN_SHARE = 1 / 100
"""Weights below this share of the largest weight are left out: their lines would be invisible."""

_MAX_LINES = 200 * 200
"""More lines would take minutes, and merge into one area of colour."""

_MAX_PAGE_LINES = 5000
"""Lines of an HTML page, which takes some 100 bytes for each."""

_SPREAD = 0.5
"""Share of a row over which the lines of several heads are spread, so that each head is seen."""


class FlowAxes(ShownAxes):
    """The axes that `flow` makes: a picture, and a page to hover over.

    A notebook shows the page, and `matplotlib.figure.Figure.savefig` writes the picture.

    Examples
    --------
    >>> import pyattn
    >>> ax = pyattn.plot.flow([[0.1, 0.9]], ["it"], keys=["the", "animal"])
    >>> ax.figure.savefig("flow.png")  # doctest: +SKIP
    >>> ax.save_html("flow.html")  # doctest: +SKIP
    """

    _page: FlowPage

    def to_html(self) -> str:
        """Return an HTML page that shows the lines of the token under the mouse.

        Tapping a token shows its lines, too. The tab key moves from token to token, and the buttons show and hide
        heads. The page follows the reader's light or dark scheme unless `flow` was given ``dark``. It shows at most
        the 5,000 largest weights. Without JavaScript it shows all of these lines.

        Returns
        -------
        str
            A page with its styles and scripts embedded: it works offline.

        Examples
        --------
        >>> import pyattn
        >>> page = pyattn.plot.flow([[0.1, 0.9]], ["it"], keys=["the", "animal"]).to_html()
        >>> "animal 0.90" in page
        True
        """
        return flow_page(self._page)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of `to_html` to a file.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import pathlib, pyattn, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pyattn.plot.flow([[0.1, 0.9]]).save_html(pathlib.Path(folder, "flow.html"))
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_html())

    def _repr_html_(self) -> str:
        """Show the page in a notebook."""
        return flow_fragment(self._page)


@overload
def flow(
    weights: npt.ArrayLike,
    tokens: Tokens | None = None,
    keys: Tokens | None = None,
    ax: FlowAxes | None = None,
    *,
    heads: Sequence[SupportsIndex] | None = None,
    title: str | None = None,
    dark: bool | None = None,
) -> FlowAxes: ...
@overload
def flow(
    weights: npt.ArrayLike,
    tokens: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    heads: Sequence[SupportsIndex] | None = None,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes: ...
def flow(
    weights: npt.ArrayLike,
    tokens: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    heads: Sequence[SupportsIndex] | None = None,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw weights as lines from queries (left) to keys (right), a colour per head.

    Larger weights have thicker and more opaque lines. The result's ``to_html()`` is a page where hovering over a token,
    or moving to it with the tab key, shows its lines alone.

    Parameters
    ----------
    weights : array_like, (L, S) or (heads, L, S)
        The weights of one head or of several, 0 or more. Weights below a hundredth of the largest are left out, and so
        are all but the 40,000 largest.
    tokens : sequence, optional
        Tokens of the L queries, and of the keys unless `keys` is given. Long tokens are shortened; of many, every
        second, fifth, tenth ... is written. Default: None, positions.
    keys : sequence, optional
        Tokens of the S keys. Default: None, `tokens` where L equals S, or else positions.
    ax : Axes, optional
        The axes to draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new
        figure of a fitting size.
    heads : sequence of int, optional
        The heads to draw, for weights of several. Default: None, all.
    title : str, optional
        Title above the picture. Default: None, no title.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the axes' background.

    Returns
    -------
    FlowAxes or Axes
        The axes of the queries and the lines, one collection of lines per head; the keys' tokens are on a twin axes.
        New axes are `FlowAxes`, with ``to_html()`` and ``save_html(path)``. `ax` itself is returned if it is given; the
        page of given `FlowAxes` shows the weights drawn last.

    Raises
    ------
    ValueError
        weights do not have two or three axes, or some are negative or not finite; the number of tokens does not match;
        or heads are given for one head.
    TypeError
        weights are not real numbers, tokens are not a sequence, or heads are not integers.
    IndexError
        A head is out of range.

    Examples
    --------
    To draw one query, pass its row alone:

    >>> import pyattn
    >>> tokens = ["the", "animal", "was", "tired"]
    >>> ax = pyattn.plot.flow([[0.1, 0.7, 0.0, 0.2]], ["it"], keys=tokens)
    >>> len(ax.collections[0].get_segments())
    3

    To draw heads 1 and 5 of a layer, each in its colour:

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((8, 4, 16))
    >>> result = pyattn.attention(x, x, x, need_weights=True)
    >>> ax = pyattn.plot.flow(result.weights, tokens, heads=[1, 5])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['head 1', 'head 5']
    """
    array, numbers = _read_heads(weights, heads)
    if not np.all(np.isfinite(array)) or array.min() < 0:
        worst = array[~np.isfinite(array)][0] if not np.all(np.isfinite(array)) else array.min()
        raise ValueError(f"weights holds {worst:g}, expected numbers of 0 or more: weights, not scores")
    count_queries, count_keys = array.shape[1:]
    left = read_tokens(tokens, "tokens", count_queries, "one for each query, along axis -2 of weights")
    same = keys is None and tokens is not None and count_queries == count_keys
    right = left if same else read_tokens(keys, "keys", count_keys, "one for each key, along axis -1 of weights")
    own = ax is None
    ax = new_axes(*_figure_size(left, right, numbers), FlowAxes) if ax is None else ax
    theme = choose_theme(ax, dark, own=own)
    fonts = Fonts([*left, *right, read_title(title) or ""])
    colours = [theme.line] if numbers is None else [HEAD_COLOURS[head % len(HEAD_COLOURS)] for head in numbers]
    for lines in _make_lines(array, colours):
        ax.add_collection(lines, autolim=False)
    ax.set(xlim=(0, 1), ylim=(len(left) - 0.5, -0.5))
    other = ax.twinx()
    other.set(ylim=(len(right) - 0.5, -0.5))
    for side, names, name in ((ax, left, "queries"), (other, right, "keys")):
        label_tokens(side, "y", names, fonts, theme, name=name)
        side.tick_params(bottom=False, labelbottom=False, length=0)
        for spine in side.spines.values():
            spine.set_visible(False)
    if numbers is not None:
        _add_legend(ax, numbers, colours, theme)
    if title is not None:
        above = 6 if numbers is None else 6 + 13 * -(-len(numbers) // _legend_columns(numbers))
        ax.set_title(fonts.escape(title), fontsize=11, fontfamily=fonts.family, color=theme.foreground, pad=above)
    if isinstance(ax, FlowAxes):
        shown = _largest(array, _MAX_PAGE_LINES)
        ax._page = FlowPage(array, shown, left, right, numbers, colours, title, dark)
    return ax


def _read_heads(weights: npt.ArrayLike, heads: Sequence[SupportsIndex] | None) -> tuple[Array, list[int] | None]:
    """Read weights as (heads, L, S) and the number of each head; None for the weights of one head."""
    if getattr(weights, "ndim", None) is None and not hasattr(weights, "weights"):
        weights = _core.as_real(weights, "weights")
    if getattr(weights, "ndim", 2) < 3:
        if heads is not None:
            raise ValueError("heads chooses among weights of shape (heads, L, S); leave it out for one head")
        return read_matrix(weights, "weights", "(L, S)", "")[np.newaxis], None
    array = read_matrix(weights, "weights", "(heads, L, S)", "choose a batch entry, weights[0]")
    if heads is None:
        return array, list(range(len(array)))
    try:
        numbers = [as_index(head, "heads") for head in heads]
    except TypeError:
        raise TypeError(f"heads is {heads!r}, expected a sequence of integers") from None
    for head in numbers:
        if not -len(array) <= head < len(array):
            raise IndexError(f"heads has {head}, but weights has {len(array)} heads, 0 to {len(array) - 1}")
    if not numbers:
        raise ValueError("heads is empty; leave it out to draw all")
    numbers = [head % len(array) for head in numbers]
    return array[numbers], numbers


def _legend_columns(numbers: list[int]) -> int:
    """Return the heads in one line of the legend."""
    return min(len(numbers), 4)


def _figure_size(left: list[str], right: list[str], numbers: list[int] | None) -> tuple[float, float]:
    """Choose a figure size in inches: the area of the lines, the labels and the legend."""
    letters = sum(max(len(shorten(token, MAX_TOKEN_WIDTH)) for token in side) for side in (left, right))
    legend = 0.0 if numbers is None else 0.2 * -(-len(numbers) // _legend_columns(numbers)) + 0.1
    height = min(max(0.26 * max(len(left), len(right)), 1.8), 9.0) + 0.3
    return 3.4 + 0.1 * letters + (0 if numbers is None else 0.4), height + legend


def _add_legend(ax: Axes, numbers: list[int], colours: list[str], theme: Theme) -> None:
    """Write the number and the colour of each head above the lines."""
    handles = [Line2D([], [], color=colour, linewidth=4) for colour in colours]
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": _legend_columns(numbers)}
    style: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": theme.foreground, "handlelength": 1}
    style |= {"columnspacing": 1, "borderaxespad": 0.2, "labelspacing": 0.2, "handletextpad": 0.4}
    ax.legend(handles, [f"head {head}" for head in numbers], **place, **style)


def _largest(array: Array, most: int) -> Array:
    """Return (head, query, key) of the weights that can be seen, at most so many, the largest last."""
    tiny = np.finfo(np.float64).tiny
    places = np.argwhere(array >= max(_MIN_SHARE * array.max(), tiny))
    order = np.argsort(array[tuple(places.T)], kind="stable")[-most:]
    return np.asarray(places[order])


def _make_lines(array: Array, colours: list[str]) -> list[LineCollection]:
    """Make the lines of each head: a line for each weight that can be seen, the largest on top."""
    heads, count_queries, count_keys = array.shape
    places = _largest(array, _MAX_LINES)
    pitch = min(1.0, 40 / max(count_queries, count_keys))  # many tokens have thinner lines
    made = []
    for head, colour in enumerate(colours):
        _, queries, keys = places[places[:, 0] == head].T
        share = array[head, queries, keys] / max(array.max(), np.finfo(np.float64).tiny)
        aside = _SPREAD * (head - (heads - 1) / 2) / heads  # lines of several heads lie beside one another
        # The keys are spread over the height of the queries.
        ends = (keys + 0.5 + aside) * count_queries / count_keys - 0.5
        starts = queries + aside
        segments = np.stack([np.stack([np.zeros(len(ends)), starts], -1), np.stack([np.ones(len(ends)), ends], -1)], 1)
        drawn = np.column_stack([np.tile(to_rgb(colour), (len(share), 1)), share])
        widths = _MAX_LINE_WIDTH * pitch * share / heads**0.25
        made.append(LineCollection(list(segments), linewidths=widths, colors=drawn, capstyle="butt"))
    return made
