"""Mask objects: which query attends to which key.

In a mask object True = attend, in every function and module.

>>> import pyattn
>>> pyattn.masks.causal(4)
causal(4)
  x . . .
  x x . .
  x x x .
  x x x x
>>> pyattn.masks.causal(4).astype(int)
array([[1, 0, 0, 0],
       [1, 1, 0, 0],
       [1, 1, 1, 0],
       [1, 1, 1, 1]])

Every function and module takes mask objects. The meaning of a bare bool array depends on the function: True = attend
in `pyattn.attention`, True = blocked in `pyattn.nn` as in torch.nn. A mask object is never ambiguous.
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.masks._mask import Mask, causal, document, from_array, from_blocked, padding, prefix, window

__all__ = ["Mask", "causal", "document", "from_array", "from_blocked", "padding", "prefix", "window"]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__, hot={*__all__} - {"padding"})
