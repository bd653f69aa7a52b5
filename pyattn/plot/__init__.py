"""Plot attention with matplotlib.

There are pictures of weights, masks, positions and the eight steps, and animations of the steps and of decoding.

Each function draws on the axes or figure that it is given, or else on a new figure of a fitting size, and returns it.
Neither pyplot's state nor matplotlib's settings change. A notebook shows new axes that are the last line of a cell;
``.figure.savefig(...)`` saves them.

>>> import numpy as np, pyattn
>>> x = np.eye(3)
>>> weights = pyattn.attention(x, x, x, need_weights=True).weights
>>> axes = pyattn.plot.heatmap(weights, ["I", "am", "here"])
>>> axes.figure.savefig("weights.png")  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING

from pyattn._util.names import publish, unknown_name

__all__ = ["FlowAxes", "StepsAnimation", "animate", "flow", "heads", "heatmap", "mask", "positional", "steps"]

# Files that import matplotlib are imported on first use, so that `import pyattn.plot` works without it.
_FILES = {"heads": "heatmaps", "heatmap": "heatmaps", "mask": "heatmaps", "positional": "heatmaps"}
_FILES |= {"FlowAxes": "attention_flow", "flow": "attention_flow", "animate": "animation", "steps": "steps_page"}
_FILES |= {"StepsAnimation": "steps_animation"}

if TYPE_CHECKING:
    from pyattn.plot.animation import animate
    from pyattn.plot.attention_flow import FlowAxes, flow
    from pyattn.plot.heatmaps import heads, heatmap, mask, positional
    from pyattn.plot.steps_animation import StepsAnimation
    from pyattn.plot.steps_page import steps
else:

    def __getattr__(name):
        if name not in _FILES:
            raise unknown_name("pyattn.plot", name, __all__)
        try:
            found = getattr(importlib.import_module(f"pyattn.plot.{_FILES[name]}"), name)
        except ModuleNotFoundError as missing:
            raise ImportError(f"pyattn.plot.{name} draws with matplotlib: pip install matplotlib") from missing
        globals()[name] = publish(found, __name__)
        return globals()[name]

    def __dir__():
        return sorted(__all__)
