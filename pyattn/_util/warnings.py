"""What pyattn warns of: arguments that are used as documented, and were probably meant otherwise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = ["MaskWarning", "ShapeWarning", "warn"]


class MaskWarning(UserWarning):
    """A mask is used as documented, and was probably meant otherwise."""


class ShapeWarning(UserWarning):
    """Axes are used as documented, and were probably meant in another order."""


def warn(category: type[Warning], message: str) -> None:
    """Warn at the caller's line: the first that is not pyattn's own."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("pyattn."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
