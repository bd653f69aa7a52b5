"""Small arrays that fit together, and how a call that is refused is told."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


QUERY, KEY, VALUE = zeros(3, 4), zeros(5, 4), zeros(5, 2)
BATCH = (zeros(2, 3, 4), zeros(2, 5, 4), zeros(2, 5, 2))


def refuse(kind, message, *arrays, **arguments):
    """The call raises, and its message begins so. Returns all of the message."""
    with pytest.raises(kind, match=f"^{re.escape(message)}") as caught:
        pyattn.attention(*(arrays or (QUERY, KEY, VALUE)), **arguments)
    return str(caught.value)
