"""Pictures of attention with matplotlib: weights, masks, positions, the eight steps and decoding, still and moving.

Each function draws on the axes or figure that it is given, or else on a new figure of a fitting size, and returns what
it drew. Nothing is shown, and neither pyplot's state nor matplotlib's settings change. An axes is saved with
``.figure.savefig(...)``; in a notebook with ``%matplotlib inline``, ``.figure`` as the last line of a cell shows it.

>>> import numpy as np, pyattn
>>> x = np.eye(3)
>>> weights = pyattn.attention(x, x, x, need_weights=True).weights
>>> axes = pyattn.plot.heatmap(weights, ["I", "am", "here"])
>>> axes.figure.savefig("weights.png")  # doctest: +SKIP
"""

try:
    import matplotlib as mpl  # noqa: F401
except ImportError as missing:
    raise ImportError("pyattn.plot draws with matplotlib: pip install 'pyattn[plot]'") from missing

from pyattn.plot.flowing import flow
from pyattn.plot.maps import heads, heatmap, mask, positional
from pyattn.plot.moving import animate
from pyattn.plot.pages import steps
from pyattn.plot.playing import StepsAnimation

__all__ = ["StepsAnimation", "animate", "flow", "heads", "heatmap", "mask", "positional", "steps"]
