"""config.json of a published model: each value of the type and within the limits that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyattn.io.json import shown
from pyattn.nn.feed_forward import Activation

__all__ = ["MOST_LAYERS", "Config"]

MOST_SIZE = 10**8  # of a vocabulary or a layer; and sizes of shapes that fit into an int64 when multiplied
MOST_LAYERS = 10_000

# Names of activations in config.json, and what layers here call them: there are five ways to write gelu's tanh form.
ACTIVATIONS: dict[str, Activation | Callable[..., Any]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": np.tanh,
}


class Config:
    """What a config.json says. Values of names that nobody asks for are not looked at.

    Parameters
    ----------
    values : mapping of str to object
        As the file has them.
    source : str
        What messages call the file.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = dict(values)
        self.source = source

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST_SIZE) -> int:
        """Read a size.

        Parameters
        ----------
        name : str
            The key.
        default : int, optional
            Where there is none. Default: None, it is needed.
        least : int
            The smallest that is allowed. Default: 1.
        most : int
            The largest that is allowed. Default: `MOST_SIZE`.

        Returns
        -------
        int
            The size.

        Raises
        ------
        ValueError
            It is something else.
        """
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"an int from {least} to {most}")
        return value

    def number(self, name: str, default: float) -> float:
        """Read a number of 0 or more.

        Parameters
        ----------
        name : str
            The key.
        default : float
            Where there is none.

        Returns
        -------
        float
            The number.

        Raises
        ------
        ValueError
            It is something else.
        """
        value = self.values.get(name, default)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.wrong(name, "a finite number of 0 or more")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Read what is true or false.

        Parameters
        ----------
        name : str
            The key.
        default : bool
            Where there is none.

        Returns
        -------
        bool
            The flag.

        Raises
        ------
        ValueError
            It is something else.
        """
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, default: str, choices: Mapping[str, Any]) -> Any:
        """Read one of several names.

        Parameters
        ----------
        name : str
            The key.
        default : str
            Where there is none.
        choices : mapping of str to object
            What each name stands for.

        Returns
        -------
        object
            What the name stands for.

        Raises
        ------
        ValueError
            It is no such name.
        """
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"one of {', '.join(map(repr, choices))}")
        return choices[value]

    def activation(self, name: str, default: str) -> Any:
        """Read the name of an activation.

        Parameters
        ----------
        name : str
            The key.
        default : str
            Where there is none.

        Returns
        -------
        str or callable
            As layers of `pyattn.nn` take it.

        Raises
        ------
        ValueError
            It is not known.
        """
        return self.choice(name, default, ACTIVATIONS)

    def require(self, allowed: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse values that would change the result, and that nothing here computes with.

        Parameters
        ----------
        allowed : mapping of str to tuple
            For each key the values that are nothing special. A key that is not there is none, either.

        Raises
        ------
        ValueError
            A key has another value.
        """
        for name, values in allowed.items():
            value = self.values.get(name)
            if value is not None and not any(type(value) is type(one) and value == one for one in values):
                expected = " or ".join(map(repr, values)) or "nothing: leave it out"
                raise self.wrong(name, f"{expected}; pyattn.models does not have what it asks for")

    def wrong(self, name: str, expected: str) -> ValueError:
        """Make the error for a key.

        Parameters
        ----------
        name : str
            The key.
        expected : str
            What could stand there.

        Returns
        -------
        ValueError
            To be raised.
        """
        value = shown(self.values[name]) if name in self.values else "not there"
        return ValueError(f"{self.source}: {name} is {value}, expected {expected}")
