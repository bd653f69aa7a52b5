"""Matrices as maps of colours: weights of one head and of many, masks, positional encodings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

import pyattn._core as _core
from pyattn.plot.labels import MOST_LETTERS, colour_axes, label_tokens
from pyattn.plot.lettering import Lettering, shorten
from pyattn.plot.looks import PALETTE, Look, choose_look, look_of_figure, new_axes, room_for_labels, two_sided
from pyattn.plot.numbers import write_numbers
from pyattn.plot.reading import Array, Tokens, read_matrix, read_title, read_tokens

__all__ = ["heads", "heatmap", "mask", "positional"]

_BLOCKED = np.finfo(np.float16).min
"""A float mask hides with this or less: masks made for half precision end here."""


def heatmap(
    weights: npt.ArrayLike,
    queries: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    numbers: bool | None = None,
    colorbar: bool = True,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw the weights or scores of one head: a row per query, a column per key, strong colours for large numbers.

    Parameters
    ----------
    weights : array_like, (L, S)
        As `need_weights=True` gives them. Numbers that are not finite, such as the score of a masked key, are left
        empty. The colours run from 0, or the least number if that is negative, to the largest.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys. Long ones are cut, and of many every second, fifth, tenth ... is
        written. Default: None, their positions; keys are the queries where L equals S.
    ax : Axes, optional
        To draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new figure of a
        fitting size.
    numbers : bool, optional
        Whether to write the numbers into the cells. Default: None, where they can be read.
    colorbar : bool
        Whether to draw the scale of colours beside the map. Default: True.
    title : str, optional
        Written above. Default: None, nothing.
    dark : bool, optional
        Default: None, what the colour of the axes' ground asks for.

    Returns
    -------
    Axes
        With the weights as its one image.

    Raises
    ------
    ValueError
        weights have not two axes, or tokens do not fit their number.
    TypeError
        weights are not real numbers, or tokens are no sequence.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(3)
    >>> weights = pyattn.attention(x, x, x, need_weights=True).weights
    >>> ax = pyattn.plot.heatmap(weights, ["I", "am", "here"])
    >>> [text.get_text() for text in ax.texts]
    ['0.47', '0.26', '0.26', '0.26', '0.47', '0.26', '0.26', '0.26', '0.47']

    Beside another picture, in a figure whose layout leaves room for the labels:

    >>> from matplotlib.figure import Figure
    >>> left, right = Figure(layout="constrained").subplots(1, 2)
    >>> pyattn.plot.heatmap(weights, ["I", "am", "here"], ax=left) is left
    True
    """
    array = read_matrix(weights, "weights", "(L, S)", "choose a head, weights[0], or draw all with heads")
    rows, columns = _read_sides(array.shape, queries, keys)
    own = ax is None
    ax = new_axes(*_size_for(rows, columns)) if ax is None else ax
    look = choose_look(ax, dark, own=own)
    lettering = Lettering([*rows, *columns, read_title(title) or ""])
    image = _draw_map(ax, array, _span(array, 0.0), look)
    label_tokens(ax, "y", rows, lettering, look, name="queries")
    label_tokens(ax, "x", columns, lettering, look, name="keys")
    _finish(ax, look, lettering, title)
    if colorbar:
        _add_scale(ax, image, look)
    if numbers is not False:
        write_numbers(image, array, always=numbers is True)
    return ax


def heads(
    weights: npt.ArrayLike,
    queries: Tokens | None = None,
    keys: Tokens | None = None,
    figure: Figure | SubFigure | None = None,
    *,
    title: str | None = None,
    dark: bool | None = None,
) -> Figure | SubFigure:
    """Draw the weights of all heads in a grid, with one scale of colours for all.

    Parameters
    ----------
    weights : array_like, (heads, L, S)
        As `need_weights=True` gives them for one batch entry.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys, as in `heatmap`. Default: None, their positions; keys are the queries
        where L equals S.
    figure : Figure or SubFigure, optional
        An empty one to draw on. Default: None, a new one of a fitting size.
    title : str, optional
        Written above. Default: None, nothing.
    dark : bool, optional
        Default: None, what the colour of the figure's ground asks for.

    Returns
    -------
    Figure or SubFigure
        With an axes for each head, in their order, and one for the scale.

    Raises
    ------
    ValueError
        weights have not three axes, or tokens do not fit their number.
    TypeError
        weights are not real numbers, or tokens are no sequence.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.random.default_rng(0).standard_normal((4, 6, 8))
    >>> figure = pyattn.plot.heads(pyattn.attention(x, x, x, need_weights=True).weights)
    >>> [ax.get_title() for ax in figure.axes][:4]
    ['head 0', 'head 1', 'head 2', 'head 3']
    """
    array = read_matrix(weights, "weights", "(heads, L, S)", "choose a batch entry, weights[0]")
    rows, columns = _read_sides(array.shape[1:], queries, keys)
    across = math.ceil(math.sqrt(len(array)))
    down = math.ceil(len(array) / across)
    if figure is None:
        side = 2.2 if across < 5 else 1.6
        figure = Figure(figsize=(side * across + 1.6, side * down + 0.9))
    look = look_of_figure(figure, dark)
    if isinstance(figure, Figure) and figure.get_layout_engine() is None and not figure.axes:
        figure.set_layout_engine(room_for_labels())
    lettering = Lettering([*rows, *columns, read_title(title) or ""])
    limits = _span(array, 0.0)
    grid = figure.subplots(down, across, squeeze=False)  # shared axes take time that grows with their number squared
    for ax, head in zip(grid.flat, range(down * across), strict=True):
        if head >= len(array):
            ax.remove()
            continue
        ax.set_facecolor(look.ground)
        image = _draw_map(ax, array[head], limits, look)
        label_tokens(ax, "y", rows, lettering, look, size=7)
        label_tokens(ax, "x", columns, lettering, look, size=7)
        under = head + across >= len(array)  # nothing stands under it
        ax.tick_params(length=2, labelleft=head % across == 0, labelbottom=under)
        ax.set_title(f"head {head}", fontsize=9, y=1)  # where it would be put, but not looked for
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_label_coords(0, 0)  # nor this place, of a label that is empty
        colour_axes(ax, look)
    _name_sides(figure, look, lettering, title)
    _add_scale(figure.axes, image, look)
    return figure


def mask(
    mask: npt.ArrayLike,
    queries: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw which keys a mask lets each query attend to, or what it adds to their scores.

    Parameters
    ----------
    mask : array_like, (L, S)
        As `attn_mask` of `pyattn.attention`: bool, True = attend; or float, added to the scores, where -inf and the
        least numbers of the float types block.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys, as in `heatmap`. Default: None, their positions; keys are the queries
        where L equals S.
    ax : Axes, optional
        To draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new figure of a
        fitting size.
    title : str, optional
        Written above. Default: None, nothing.
    dark : bool, optional
        Default: None, what the colour of the axes' ground asks for.

    Returns
    -------
    Axes
        With a legend that says in words what is blocked.

    Raises
    ------
    ValueError
        The mask has not two axes, or holds NaN or inf, or tokens do not fit their number.
    TypeError
        The mask holds integers, or no real numbers.

    Examples
    --------
    >>> import pyattn
    >>> ax = pyattn.plot.mask(pyattn.masks.causal(3), ["I", "am", "here"])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['attend', 'blocked']
    """
    array = _core.as_array(mask, "mask")
    if array.dtype.kind not in "bf":
        fix = "; pass masks.from_array(mask) if 1 = attend" if array.dtype.kind in "iu" else ""
        raise TypeError(f"mask has dtype {array.dtype}, expected bool (True = attend) or float (added){fix}")
    with np.errstate(over="ignore"):  # of a long double, which is infinite then
        added = np.where(array, 0, -np.inf) if array.dtype.kind == "b" else array.astype(np.float64)
    added = read_matrix(added, "mask", "(L, S)", "choose one, mask[0]")
    for i, j in np.argwhere(~(added < np.inf))[:1]:
        raise ValueError(f"mask[{i}, {j}] is {added[i, j]}, which makes all weights of a row NaN; -inf blocks a key")
    rows, columns = _read_sides(added.shape, queries, keys)
    own = ax is None
    ax = new_axes(*_size_for(rows, columns)) if ax is None else ax
    look = choose_look(ax, dark, own=own)
    lettering = Lettering([*rows, *columns, read_title(title) or ""])
    names = ("attend", "blocked") if array.dtype.kind == "b" else ("attend, nothing is added", "blocked, -inf is added")
    image = _draw_mask(ax, added, names, look)
    label_tokens(ax, "y", rows, lettering, look, name="queries")
    label_tokens(ax, "x", columns, lettering, look, name="keys")
    _finish(ax, look, lettering, title, above=16)
    if image is not None:
        _add_scale(ax, image, look, "added to the score")
    return ax


def positional(
    encoding: npt.ArrayLike, tokens: Tokens | None = None, ax: Axes | None = None, *, dark: bool | None = None
) -> Axes:
    """Draw a positional encoding: a row per position, a column per feature, orange below 0 and blue above.

    Parameters
    ----------
    encoding : array_like, (length, features)
        What is added to the inputs.
    tokens : sequence, optional
        The token at each position. Default: None, the positions.
    ax : Axes, optional
        To draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new figure.
    dark : bool, optional
        Default: None, what the colour of the axes' ground asks for.

    Returns
    -------
    Axes
        With the encoding as its one image.

    Raises
    ------
    ValueError
        encoding has not two axes, or tokens do not fit their number.
    TypeError
        encoding does not hold real numbers, or tokens are no sequence.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.plot.positional(pyattn.functional.positional_encoding(50, 32)).get_xlabel()
    'features'
    """
    array = read_matrix(encoding, "encoding", "(length, features)", "choose one, encoding[0]")
    rows = read_tokens(tokens, "tokens", len(array), "one for each position")
    own = ax is None
    ax = new_axes(6.4, 4.4) if ax is None else ax
    look = choose_look(ax, dark, own=own)
    lettering = Lettering(rows)
    most = np.abs(array[np.isfinite(array)]).max(initial=0) or 1.0
    image = _draw_map(ax, array, _span(array, -most, most), look)
    image.set_cmap(two_sided(look))
    features = [str(feature) for feature in range(array.shape[1])]
    label_tokens(ax, "y", rows, lettering, look, name="positions")
    label_tokens(ax, "x", features, lettering, look, name="features")
    _finish(ax, look, lettering, None)
    _add_scale(ax, image, look)
    return ax


def _read_sides(shape: tuple[int, ...], queries: Tokens | None, keys: Tokens | None) -> tuple[list[str], list[str]]:
    """Tokens of the rows and of the columns; of the keys none are needed where they are the queries."""
    rows = read_tokens(queries, "queries", shape[0], "one for each query, along axis 0")
    if keys is None and queries is not None and shape[0] == shape[1]:
        return rows, rows
    return rows, read_tokens(keys, "keys", shape[1], "one for each key, along axis 1")


def _size_for(rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Inches in which cells are nearly square, with room for labels."""
    height, width = (min(max(0.42 * len(tokens), 2.4), 7.0) for tokens in (rows, columns))
    beside, below = (0.08 * max(len(shorten(token, MOST_LETTERS)) for token in tokens) for tokens in (rows, columns))
    lying = below > width / len(columns)
    return width + beside + 1.6, height + (below if lying else 0.0) + 0.9


def _span(array: Array, *others: float) -> Normalize:
    """From the least finite number to the largest, those given among them."""
    numbers = np.append(array[np.isfinite(array)], others)
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    if high / 4 - low / 4 > np.finfo(np.float64).max / 16:
        raise ValueError(
            f"numbers from {low:.3g} to {high:.3g} span too much for a scale of colours; divide them first"
        )
    return Normalize(low, high if high > low else low + 1)


def _draw_map(ax: Axes, array: Array, limits: Normalize, look: Look) -> AxesImage:
    cells = np.ma.masked_invalid(array)
    return ax.imshow(cells, cmap=colormaps[look.scale], norm=limits, aspect="auto", interpolation="nearest")


def _draw_mask(ax: Axes, added: Array, names: tuple[str, str], look: Look) -> AxesImage | None:
    """Two colours with their names; or, of a mask that adds other numbers, these on a scale, which is returned."""
    blocked = added <= _BLOCKED
    colours = (PALETTE["scores"], "#3c3c46" if look.dark else "#d9d9df")
    image = None
    if np.all(blocked | (added == 0)):
        ax.imshow(blocked, cmap=ListedColormap(colours), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        handles = [Patch(facecolor=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    else:
        visible = np.where(blocked, np.nan, added)
        image = _draw_map(ax, visible, _span(visible), look)
        ax.set_facecolor(colours[1])
        handles = [Patch(facecolor=colours[1], label=names[1])] if blocked.any() else []
    if max(added.shape) <= 40:
        for at, line in ((added.shape[0], ax.axhline), (added.shape[1], ax.axvline)):
            for edge in range(1, at):
                line(edge - 0.5, color=look.ground, linewidth=1)
    if handles:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(handles)}
        ax.legend(handles=handles, **place, frameon=False, fontsize=9, labelcolor=look.ink, borderaxespad=0.2)
    return image


def _finish(ax: Axes, look: Look, lettering: Lettering, title: str | None, above: float = 0) -> None:
    colour_axes(ax, look)
    if title is not None:
        written = lettering.write(title)
        ax.set_title(written, fontsize=11, fontfamily=lettering.family, color=look.ink, pad=6 + above)


def _name_sides(figure: Figure | SubFigure, look: Look, lettering: Lettering, title: str | None) -> None:
    """Write beside all axes what a heat map writes beside its own."""
    figure.supxlabel("keys", fontsize=10, color=look.ink)
    figure.supylabel("queries", fontsize=10, color=look.ink)
    if title is not None:
        figure.suptitle(lettering.write(title), fontsize=11, fontfamily=lettering.family, color=look.ink)


def _add_scale(ax: Axes | list[Axes], image: AxesImage, look: Look, label: str = "") -> None:
    one = ax if isinstance(ax, Axes) else ax[0]
    scale = one.figure.colorbar(image, ax=ax, fraction=0.06, pad=0.03, label=label)
    scale.outline.set_edgecolor(look.faint)
    scale.outline.set_linewidth(0.6)
    scale.ax.tick_params(color=look.faint, labelcolor=look.ink, labelsize=8)
    scale.ax.yaxis.label.set_color(look.ink)
