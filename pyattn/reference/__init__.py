"""Reference implementation of every operation in plain NumPy, short and slow.

The code follows the formulas. Tests compare the C core with it; pyattn never falls back on it. `dtype` is the type of
all arithmetic. Inputs must be valid: only the core checks shapes and dtypes.

>>> from pyattn import reference
>>> reference.softmax([0, 0]), reference.scores([[1, 2]], [[3, 4]], scale=1)
(array([0.5, 0.5]), array([[11.]]))
"""

from pyattn.reference.attending import (
    Attended,
    Operands,
    attention,
    merge_states,
    operands,
    visible_pairs,
    weighted_sum,
)
from pyattn.reference.gradients import ScoreGradients, scores_backward, softmax_backward
from pyattn.reference.layers import activate, feed_forward, layer_norm, linear, log_softmax, rms_norm, softmax
from pyattn.reference.scoring import Score, default_scale, scores

__all__ = [
    "Attended",
    "Operands",
    "Score",
    "ScoreGradients",
    "activate",
    "attention",
    "default_scale",
    "feed_forward",
    "layer_norm",
    "linear",
    "log_softmax",
    "merge_states",
    "operands",
    "rms_norm",
    "scores",
    "scores_backward",
    "softmax",
    "softmax_backward",
    "visible_pairs",
    "weighted_sum",
]
