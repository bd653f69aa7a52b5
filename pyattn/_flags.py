"""Options that are True or False."""

from __future__ import annotations

import numpy as np

__all__ = ["as_flag"]


def as_flag(x: bool, name: str) -> bool:
    """Read an option that is True or False. Other objects have a truth, too, and that of "no" is True.

    Parameters
    ----------
    x : bool
        Python's or NumPy's.
    name : str
        What messages call it.

    Returns
    -------
    bool
        Python's.

    Raises
    ------
    TypeError
        x is something else.
    """
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} is of type {type(x).__name__}, expected True or False")
    return bool(x)
