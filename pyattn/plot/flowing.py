"""Attention as lines from token to token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb

from pyattn.plot.labels import MOST_LETTERS, label_tokens
from pyattn.plot.lettering import Lettering, shorten
from pyattn.plot.looks import Look, choose_look, new_axes
from pyattn.plot.reading import Array, Tokens, read_matrix, read_title, read_tokens

__all__ = ["flow"]

_WIDEST = 5.0
"""A line of the largest weight, in points."""

_FAINTEST = 1 / 100
"""Lines with less than this part of the largest weight cannot be seen, and are left out."""

_MOST_LINES = 200 * 200
"""More take minutes, and show nothing but their colour."""


def flow(
    weights: npt.ArrayLike,
    tokens: Tokens | None = None,
    keys: Tokens | None = None,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    dark: bool | None = None,
) -> Axes:
    """Draw queries left, keys right, and lines between them as thick and as opaque as the weights are large.

    Parameters
    ----------
    weights : array_like, (L, S)
        Of one head, 0 or more. Lines of less than a hundredth of the largest weight are left out, and so are all but
        the 40,000 strongest.
    tokens : sequence, optional
        Tokens of the L queries, and of the keys unless these have their own. Long ones are cut, and of many every
        second, fifth, tenth ... is written. Default: None, their positions.
    keys : sequence, optional
        Tokens of the S keys. Default: None, `tokens` where L equals S, or else their positions.
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
        That of the queries and the lines; the keys' tokens belong to a second one in the same place.

    Raises
    ------
    ValueError
        weights have not two axes, or some are negative or not finite; tokens do not fit their number.
    TypeError
        weights are not real numbers, or tokens are no sequence.

    Examples
    --------
    Of one query, give its row alone:

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
    ax = new_axes(*_size_for(left, right)) if ax is None else ax
    look = choose_look(ax, dark, own=own)
    lettering = Lettering([*left, *right, read_title(title) or ""])
    ax.add_collection(_lines_of(array, look), autolim=False)
    ax.set(xlim=(0, 1), ylim=(len(left) - 0.5, -0.5))
    other = ax.twinx()
    other.set(ylim=(len(right) - 0.5, -0.5))
    for side, names, name in ((ax, left, "queries"), (other, right, "keys")):
        label_tokens(side, "y", names, lettering, look, name=name)
        side.tick_params(bottom=False, labelbottom=False, length=0)
        for spine in side.spines.values():
            spine.set_visible(False)
    if title is not None:
        ax.set_title(lettering.write(title), fontsize=11, fontfamily=lettering.family, color=look.ink)
    return ax


def _size_for(left: list[str], right: list[str]) -> tuple[float, float]:
    """Inches: the lines' own room, and that of the labels."""
    letters = sum(max(len(shorten(token, MOST_LETTERS)) for token in side) for side in (left, right))
    return 3.4 + 0.1 * letters, min(max(0.26 * max(len(left), len(right)), 1.8), 9.0) + 0.3


def _lines_of(array: Array, look: Look) -> LineCollection:
    """Make a line for each weight that can be seen, the strongest over the others."""
    queries, keys = np.nonzero(array >= max(_FAINTEST * array.max(), np.finfo(np.float64).tiny))
    order = np.argsort(array[queries, keys], kind="stable")[-_MOST_LINES:]
    queries, keys = queries[order], keys[order]
    share = array[queries, keys] / max(array.max(), np.finfo(np.float64).tiny)
    # The keys are spread over the height of the queries.
    ends = (keys + 0.5) * array.shape[0] / array.shape[1] - 0.5
    segments = np.stack([np.stack([np.zeros(len(ends)), queries], -1), np.stack([np.ones(len(ends)), ends], -1)], 1)
    pitch = min(1.0, 40 / max(array.shape))  # of many tokens, thinner lines
    colours = np.column_stack([np.tile(to_rgb(look.line), (len(share), 1)), share])
    return LineCollection(list(segments), linewidths=_WIDEST * pitch * share, colors=colours, capstyle="butt")
