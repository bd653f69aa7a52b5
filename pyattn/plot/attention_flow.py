"""Attention weights as lines from queries to keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb

from pyattn.plot.fonts import Fonts, shorten
from pyattn.plot.inputs import Array, Tokens, read_matrix, read_title, read_tokens
from pyattn.plot.labels import MAX_TOKEN_WIDTH, label_tokens
from pyattn.plot.theme import Theme, choose_theme, new_axes

__all__ = ["flow"]

_MAX_LINE_WIDTH = 5.0
"""Width of the line of the largest weight, in points."""

_MIN_SHARE = 1 / 100
"""Weights below this share of the largest weight are left out: their lines would be invisible."""

_MAX_LINES = 200 * 200
"""More lines would take minutes, and merge into one area of colour."""


def flow(
    weights: npt.ArrayLike,
    tokens: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw the weights of one head as lines from queries (left) to keys (right).

    Larger weights have thicker and more opaque lines.

    Parameters
    ----------
    weights : array_like, (L, S)
        The weights of one head, 0 or more. Weights below a hundredth of the largest are left out, and so are all but
        the 40,000 largest.
    tokens : sequence, optional
        Tokens of the L queries, and of the keys unless `keys` is given. Long tokens are shortened; of many, every
        second, fifth, tenth ... is written. Default: None, positions.
    keys : sequence, optional
        Tokens of the S keys. Default: None, `tokens` where L equals S, or else positions.
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
        The axes of the queries and the lines; the keys' tokens are on a twin axes.

    Raises
    ------
    ValueError
        weights do not have two axes, or some are negative or not finite; the number of tokens does not match.
    TypeError
        weights are not real numbers, or tokens are not a sequence.

    Examples
    --------
    To draw one query, pass its row alone:

    >>> import pyattn
    >>> tokens = ["the", "animal", "was", "tired"]
    >>> ax = pyattn.plot.flow([[0.1, 0.7, 0.0, 0.2]], ["it"], keys=tokens)
    >>> len(ax.collections[0].get_segments())
    3
    """
    array = read_matrix(weights, "weights", "(L, S)", "choose a head, weights[0]")
    if not np.all(np.isfinite(array)) or array.min() < 0:
        worst = array[~np.isfinite(array)][0] if not np.all(np.isfinite(array)) else array.min()
        raise ValueError(f"weights holds {worst:g}, expected numbers of 0 or more: weights, not scores")
    left = read_tokens(tokens, "tokens", array.shape[0], "one for each query, along axis 0 of weights")
    same = keys is None and tokens is not None and array.shape[0] == array.shape[1]
    right = left if same else read_tokens(keys, "keys", array.shape[1], "one for each key, along axis 1 of weights")
    own = ax is None
    ax = new_axes(*_figure_size(left, right)) if ax is None else ax
    theme = choose_theme(ax, dark, own=own)
    fonts = Fonts([*left, *right, read_title(title) or ""])
    ax.add_collection(_make_lines(array, theme), autolim=False)
    ax.set(xlim=(0, 1), ylim=(len(left) - 0.5, -0.5))
    other = ax.twinx()
    other.set(ylim=(len(right) - 0.5, -0.5))
    for side, names, name in ((ax, left, "queries"), (other, right, "keys")):
        label_tokens(side, "y", names, fonts, theme, name=name)
        side.tick_params(bottom=False, labelbottom=False, length=0)
        for spine in side.spines.values():
            spine.set_visible(False)
    if title is not None:
        ax.set_title(fonts.escape(title), fontsize=11, fontfamily=fonts.family, color=theme.foreground)
    return ax


def _figure_size(left: list[str], right: list[str]) -> tuple[float, float]:
    """Choose a figure size in inches: the area of the lines, and the labels."""
    letters = sum(max(len(shorten(token, MAX_TOKEN_WIDTH)) for token in side) for side in (left, right))
    return 3.4 + 0.1 * letters, min(max(0.26 * max(len(left), len(right)), 1.8), 9.0) + 0.3


def _make_lines(array: Array, theme: Theme) -> LineCollection:
    """Make a line for each weight that can be seen, the largest on top."""
    queries, keys = np.nonzero(array >= max(_MIN_SHARE * array.max(), np.finfo(np.float64).tiny))
    order = np.argsort(array[queries, keys], kind="stable")[-_MAX_LINES:]
    queries, keys = queries[order], keys[order]
    share = array[queries, keys] / max(array.max(), np.finfo(np.float64).tiny)
    # The keys are spread over the height of the queries.
    ends = (keys + 0.5) * array.shape[0] / array.shape[1] - 0.5
    segments = np.stack([np.stack([np.zeros(len(ends)), queries], -1), np.stack([np.ones(len(ends)), ends], -1)], 1)
    pitch = min(1.0, 40 / max(array.shape))  # many tokens have thinner lines
    colours = np.column_stack([np.tile(to_rgb(theme.line), (len(share), 1)), share])
    return LineCollection(list(segments), linewidths=_MAX_LINE_WIDTH * pitch * share, colors=colours, capstyle="butt")
