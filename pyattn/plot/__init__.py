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

import importlib
from typing import TYPE_CHECKING

__all__ = ["StepsAnimation", "animate", "flow", "heads", "heatmap", "mask", "positional", "steps"]

# Imported on first use, as each file imports matplotlib: `import pyattn.plot` works without it.
_FILES = {"heads": "maps", "heatmap": "maps", "mask": "maps", "positional": "maps", "flow": "flowing"}
_FILES |= {"animate": "moving", "steps": "pages", "StepsAnimation": "playing"}

if TYPE_CHECKING:
    from pyattn.plot.flowing import flow
    from pyattn.plot.maps import heads, heatmap, mask, positional
    from pyattn.plot.moving import animate
    from pyattn.plot.pages import steps
    from pyattn.plot.playing import StepsAnimation
else:

    def __getattr__(name):
        if name not in _FILES:
            raise AttributeError(f"module 'pyattn.plot' has no attribute {name!r}")
        try:
            found = getattr(importlib.import_module(f"pyattn.plot.{_FILES[name]}"), name)
        except ModuleNotFoundError as missing:
            raise ImportError(f"pyattn.plot.{name} draws with matplotlib: pip install 'pyattn[plot]'") from missing
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*__all__, *globals()})
