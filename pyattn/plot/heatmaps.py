"""Heat maps of attention weights, of one head or of all, of masks and of positional encodings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

import pyattn._core as _core
from pyattn._util.arguments import as_finite
from pyattn._util.halves import as_float32
from pyattn.plot.cell_numbers import write_numbers
from pyattn.plot.fonts import Fonts, shorten
from pyattn.plot.inputs import Array, Tokens, read_matrix, read_title, read_tokens
from pyattn.plot.labels import MAX_TOKEN_WIDTH, colour_axes, label_tokens
from pyattn.plot.theme import PALETTE, Theme, choose_theme, diverging_colormap, figure_theme, label_layout, new_axes

__all__ = ["heads", "heatmap", "mask", "positional"]

_BLOCKED = np.finfo(np.float16).min
"""Float masks made for half precision hide keys with this number: it and all below count as blocked."""


def heatmap(
    weights: npt.ArrayLike,
    queries: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    numbers: bool | None = None,
    colorbar: bool = True,
    vmin: float | None = None,
    vmax: float | None = None,
    center: float | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw the weights or scores of one head as a heat map, with a row per query.

    Parameters
    ----------
    weights : array_like, (L, S)
        The weights of one head, as returned with ``need_weights=True``. Cells that are not finite, such as the
        score of a masked key, have no colour.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys. Long tokens are shortened; of many, every second, fifth, tenth ... is
        written. Default: None, positions; keys default to queries where L equals S.
    ax : Axes, optional
        The axes to draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new
        figure of a fitting size.
    numbers : bool, optional
        Whether to write the numbers into the cells. Numbers that would round to 0.00 are left out, and 0 is "0".
        Default: None, if the cells are large enough to read them.
    colorbar : bool
        Whether to draw a colorbar beside the map. Default: True.
    vmin, vmax : float, optional
        The numbers at the ends of the colours, such as 0 and 1 to compare several maps. Default: None, 0 or a negative
        minimum, and the maximum; with `center`, both ends are equally far from it.
    center : float, optional
        Draw diverging colours: orange below this number, blue above. Default: None, the colours of weights.
    xlabel, ylabel : str, optional
        Names of the axes; "" for none. Default: None, "keys" and "queries".
    title : str, optional
        Title above the picture. Default: None, no title.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the axes' background.

    Returns
    -------
    Axes
        The weights are its only image.

    Raises
    ------
    ValueError
        weights do not have two axes, the number of tokens does not match, or vmin, center and vmax do not ascend.
    TypeError
        weights are not real numbers, tokens are not a sequence, or another argument is of another type.

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
    rows, columns = _read_axis_tokens(array.shape, queries, keys)
    own = ax is None
    ax = new_axes(*_figure_size(rows, columns)) if ax is None else ax
    theme = choose_theme(ax, dark, own=own)
    names = [
        default if name is None else read_title(name, which) or ""
        for name, which, default in ((xlabel, "xlabel", "keys"), (ylabel, "ylabel", "queries"))
    ]
    fonts = Fonts([*rows, *columns, *names, read_title(title) or ""])
    image = _draw_heatmap(ax, array, _chosen_limits(array, vmin, vmax, center), theme)
    if center is not None:
        image.set_cmap(diverging_colormap(theme))
    label_tokens(ax, "y", rows, fonts, theme, name=names[1])
    label_tokens(ax, "x", columns, fonts, theme, name=names[0])
    _apply_theme(ax, theme, fonts, title)
    if colorbar:
        _add_colorbar(ax, image, theme)
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
    """Draw the weights of all heads in a grid, with one colorbar for all.

    Parameters
    ----------
    weights : array_like, (heads, L, S)
        The weights of one batch entry, as returned with ``need_weights=True``.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys, as in `heatmap`. Default: None, their positions; keys are the queries
        where L equals S.
    figure : Figure or SubFigure, optional
        An empty figure to draw on. Default: None, a new one of a fitting size.
    title : str, optional
        Title above the picture. Default: None, no title.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the figure's background.

    Returns
    -------
    Figure or SubFigure
        It has an axes for each head, in order, and one for the colorbar.

    Raises
    ------
    ValueError
        weights do not have three axes, or the number of tokens does not match.
    TypeError
        weights are not real numbers, or tokens are not a sequence.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.random.default_rng(0).standard_normal((4, 6, 8))
    >>> figure = pyattn.plot.heads(pyattn.attention(x, x, x, need_weights=True).weights)
    >>> [ax.get_title() for ax in figure.axes][:4]
    ['head 0', 'head 1', 'head 2', 'head 3']
    """
    array = read_matrix(weights, "weights", "(heads, L, S)", "choose a batch entry, weights[0]")
    rows, columns = _read_axis_tokens(array.shape[1:], queries, keys)
    across = math.ceil(math.sqrt(len(array)))
    down = math.ceil(len(array) / across)
    if figure is None:
        side = 2.2 if across < 5 else 1.6
        figure = Figure(figsize=(side * across + 1.6, side * down + 0.9))
    theme = figure_theme(figure, dark)
    if isinstance(figure, Figure) and figure.get_layout_engine() is None and not figure.axes:
        figure.set_layout_engine(label_layout())
    fonts = Fonts([*rows, *columns, read_title(title) or ""])
    limits = _limits(array, 0.0)
    grid = figure.subplots(down, across, squeeze=False)  # sharing axes takes quadratic time
    for ax, head in zip(grid.flat, range(down * across), strict=True):
        if head >= len(array):
            ax.remove()
            continue
        ax.set_facecolor(theme.background)
        image = _draw_heatmap(ax, array[head], limits, theme)
        label_tokens(ax, "y", rows, fonts, theme, size=7)
        label_tokens(ax, "x", columns, fonts, theme, size=7)
        is_lowest = head + across >= len(array)  # of its column
        ax.tick_params(length=2, labelleft=head % across == 0, labelbottom=is_lowest)
        # Fixed positions of the title and the empty axis labels save matplotlib the time to compute them.
        ax.set_title(f"head {head}", fontsize=9, y=1)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_label_coords(0, 0)
        colour_axes(ax, theme)
    _label_figure(figure, theme, fonts, title)
    _add_colorbar(figure.axes, image, theme)
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
    """Draw a mask: the keys that each query attends to, or the added numbers.

    Parameters
    ----------
    mask : array_like, (L, S)
        The `attn_mask` of `pyattn.attention`: bool, True = attend; or float, added to the scores, where -inf and the
        minimum of float16, float32 or float64 block a key.
    queries, keys : sequence, optional
        Tokens of the L queries and the S keys, as in `heatmap`. Default: None, their positions; keys are the queries
        where L equals S.
    ax : Axes, optional
        The axes to draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new
        figure of a fitting size.
    title : str, optional
        Title above the picture. Default: None, no title.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the axes' background.

    Returns
    -------
    Axes
        It has a legend for the colours of blocked and attended keys.

    Raises
    ------
    ValueError
        The mask does not have two axes, or holds NaN or inf, or the number of tokens does not match.
    TypeError
        The mask holds neither bools nor floats.

    Examples
    --------
    >>> import pyattn
    >>> ax = pyattn.plot.mask(pyattn.masks.causal(3), ["I", "am", "here"])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['attend', 'blocked']
    """
    array = as_float32(_core.as_array(mask, "mask"))
    if array.dtype.kind not in "bf":
        fix = "; pass masks.from_array(mask) if 1 = attend" if array.dtype.kind in "iu" else ""
        raise TypeError(f"mask has dtype {array.dtype}, expected bool (True = attend) or float (added){fix}")
    with np.errstate(over="ignore"):  # a long double may become infinite
        added = np.where(array, 0, -np.inf) if array.dtype.kind == "b" else array.astype(np.float64)
    added = read_matrix(added, "mask", "(L, S)", f"choose one, mask[{', '.join('0' * max(1, added.ndim - 2))}]")
    for i, j in np.argwhere(~(added < np.inf))[:1]:
        raise ValueError(f"mask[{i}, {j}] is {added[i, j]}, which makes all weights of a row NaN; -inf blocks a key")
    rows, columns = _read_axis_tokens(added.shape, queries, keys)
    own = ax is None
    ax = new_axes(*_figure_size(rows, columns)) if ax is None else ax
    theme = choose_theme(ax, dark, own=own)
    fonts = Fonts([*rows, *columns, read_title(title) or ""])
    names = ("attend", "blocked") if array.dtype.kind == "b" else ("attend, nothing is added", "blocked, -inf is added")
    image = _draw_mask(ax, added, names, theme)
    label_tokens(ax, "y", rows, fonts, theme, name="queries")
    label_tokens(ax, "x", columns, fonts, theme, name="keys")
    _apply_theme(ax, theme, fonts, title, above=16)
    if image is not None:
        _add_colorbar(ax, image, theme, "added to the score")
    return ax


def positional(
    encoding: npt.ArrayLike, tokens: Tokens | None = None, ax: Axes | None = None, *, dark: bool | None = None
) -> Axes:
    """Draw a positional encoding as a heat map: orange below 0 and blue above.

    Parameters
    ----------
    encoding : array_like, (length, features)
        The encoding, with a row per position and a column per feature.
    tokens : sequence, optional
        The token at each position. Default: None, numbers from 0.
    ax : Axes, optional
        The axes to draw on; a figure with ``layout="constrained"`` leaves room for the labels. Default: None, a new
        figure.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the axes' background.

    Returns
    -------
    Axes
        The encoding is its only image.

    Raises
    ------
    ValueError
        encoding does not have two axes, or the number of tokens does not match.
    TypeError
        encoding does not hold real numbers, or tokens are not a sequence.

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
    theme = choose_theme(ax, dark, own=own)
    fonts = Fonts(rows)
    largest = np.abs(array[np.isfinite(array)]).max(initial=0) or 1.0
    image = _draw_heatmap(ax, array, _limits(array, -largest, largest), theme)
    image.set_cmap(diverging_colormap(theme))
    features = [str(feature) for feature in range(array.shape[1])]
    label_tokens(ax, "y", rows, fonts, theme, name="positions")
    label_tokens(ax, "x", features, fonts, theme, name="features")
    _apply_theme(ax, theme, fonts, None)
    _add_colorbar(ax, image, theme)
    return ax


def _read_axis_tokens(
    shape: tuple[int, ...], queries: Tokens | None, keys: Tokens | None
) -> tuple[list[str], list[str]]:
    """Read the tokens of the rows and columns; keys default to queries if their numbers are equal."""
    rows = read_tokens(queries, "queries", shape[0], "one for each query, along axis 0")
    if keys is None and queries is not None and shape[0] == shape[1]:
        return rows, rows
    return rows, read_tokens(keys, "keys", shape[1], "one for each key, along axis 1")


def _figure_size(rows: list[str], columns: list[str]) -> tuple[float, float]:
    """Choose a figure size in inches: cells are nearly square, and labels fit."""
    height, width = (min(max(0.42 * len(tokens), 2.4), 7.0) for tokens in (rows, columns))
    beside, below = (0.08 * max(len(shorten(token, MAX_TOKEN_WIDTH)) for token in tokens) for tokens in (rows, columns))
    rotated = below > width / len(columns)
    return width + beside + 1.6, height + (below if rotated else 0.0) + 0.9


def _limits(array: Array, *others: float) -> Normalize:
    """Scale colours from the smallest finite number to the largest; `others` are included."""
    numbers = np.append(array[np.isfinite(array)], others)
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    if max(high, -low) > np.finfo(np.float64).max / 8:  # matplotlib adds ends of the scale, and goes beyond them
        raise ValueError(
            f"numbers from {low:.3g} to {high:.3g} are too large for a scale of colours; divide them first"
        )
    return Normalize(low, high if high > low else low + 1)


def _chosen_limits(array: Array, vmin: float | None, vmax: float | None, center: float | None) -> Normalize:
    """Scale colours between the chosen ends; with `center`, ends that are not chosen are equally far from it."""
    given = {"vmin": vmin, "center": center, "vmax": vmax}
    chosen = {name: as_finite(x, name) for name, x in given.items() if x is not None}
    low, middle, high = (chosen.get(name) for name in ("vmin", "center", "vmax"))
    _limits(array, 0.0, *chosen.values())  # refuses numbers that are too large
    if middle is None:
        found = _limits(array, 0.0)
        first, last = found.vmin if low is None else low, found.vmax if high is None else high
        if last <= first and len(chosen) == 1:  # all numbers lie beyond the chosen end
            first, last = (last - 1, last) if low is None else (first, first + 1)
    else:
        reach = np.abs(array[np.isfinite(array)] - middle).max(initial=0) or 1.0
        first, last = middle - reach if low is None else low, middle + reach if high is None else high
    if np.diff([first, last] if middle is None else [first, middle, last]).min() <= 0:
        listed = ", ".join(f"{name}={x:g}" for name, x in chosen.items())
        raise ValueError(f"{listed}: vmin, center and vmax must ascend")
    # Of equal slopes matplotlib would draw the same colours, and a colorbar with fewer ticks.
    equal = middle is None or math.isclose(last - middle, middle - first)
    return Normalize(first, last) if equal else TwoSlopeNorm(middle, first, last)


def _draw_heatmap(ax: Axes, array: Array, limits: Normalize, theme: Theme) -> AxesImage:
    cells = np.ma.masked_invalid(array)
    return ax.imshow(cells, cmap=colormaps[theme.colormap], norm=limits, aspect="auto", interpolation="nearest")


def _draw_mask(ax: Axes, added: Array, names: tuple[str, str], theme: Theme) -> AxesImage | None:
    """Draw a mask in two colours, or one that adds other numbers than 0 and -inf as a heat map, which is returned."""
    blocked = added <= _BLOCKED
    colours = (PALETTE["scores"], "#3c3c46" if theme.dark else "#d9d9df")
    image = None
    if np.all(blocked | (added == 0)):
        ax.imshow(blocked, cmap=ListedColormap(colours), vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        handles = [Patch(facecolor=colour, label=name) for colour, name in zip(colours, names, strict=True)]
    else:
        visible = np.where(blocked, np.nan, added)
        image = _draw_heatmap(ax, visible, _limits(visible), theme)
        ax.set_facecolor(colours[1])
        handles = [Patch(facecolor=colours[1], label=names[1])] if blocked.any() else []
    if max(added.shape) <= 40:
        for count, line in ((added.shape[0], ax.axhline), (added.shape[1], ax.axvline)):
            for edge in range(1, count):
                line(edge - 0.5, color=theme.background, linewidth=1)
    if handles:
        position: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(handles)}
        ax.legend(
            handles=handles, **position, frameon=False, fontsize=9, labelcolor=theme.foreground, borderaxespad=0.2
        )
    return image


def _apply_theme(ax: Axes, theme: Theme, fonts: Fonts, title: str | None, above: float = 0) -> None:
    colour_axes(ax, theme)
    if title is not None:
        written = fonts.escape(title)
        ax.set_title(written, fontsize=11, fontfamily=fonts.family, color=theme.foreground, pad=6 + above)


def _label_figure(figure: Figure | SubFigure, theme: Theme, fonts: Fonts, title: str | None) -> None:
    """Write the names of the axes and the title once for the whole figure."""
    figure.supxlabel("keys", fontsize=10, color=theme.foreground)
    figure.supylabel("queries", fontsize=10, color=theme.foreground)
    if title is not None:
        figure.suptitle(fonts.escape(title), fontsize=11, fontfamily=fonts.family, color=theme.foreground)


def _add_colorbar(ax: Axes | list[Axes], image: AxesImage, theme: Theme, label: str = "") -> None:
    first = ax if isinstance(ax, Axes) else ax[0]
    colorbar = first.figure.colorbar(image, ax=ax, fraction=0.06, pad=0.03, label=label)
    colorbar.outline.set_edgecolor(theme.muted)
    colorbar.outline.set_linewidth(0.6)
    colorbar.ax.tick_params(color=theme.muted, labelcolor=theme.foreground, labelsize=8)
    colorbar.ax.yaxis.label.set_color(theme.foreground)
