"""Warnings for arguments that are valid but probably not meant that way."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = ["MaskWarning", "ShapeWarning", "warn"]


class MaskWarning(UserWarning):
    """A mask is valid, but was probably meant the other way round."""


class ShapeWarning(UserWarning):
    """Shapes are valid, but the axes were probably meant in another order."""


def warn(category: type[Warning], message: str, *, outside: tuple[str, ...] = ("pyattn",)) -> None:
    """Warn at the caller's line, the first outside pyattn, or outside of other packages, too."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in outside:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
