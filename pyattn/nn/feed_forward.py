"""The feed-forward part of a Transformer's layer, and its activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.arguments import as_choice, as_count, as_flag, as_probability
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray
from pyattn.functional._activations import gelu, silu
from pyattn.nn.gradients import drop, recorded, running
from pyattn.nn.inputs import as_input, check_dtype
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["Activation", "FeedForward", "activate", "as_activation", "core_activation", "feed"]

Name: TypeAlias = Literal["relu", "gelu", "gelu_tanh", "silu"]
Activation: TypeAlias = Name | Callable[[FloatArray], FloatArray]


def _relu(x: FloatArray) -> FloatArray:
    return np.maximum(x, 0)


_FUNCTIONS: dict[Name, Callable[[FloatArray], FloatArray]] = {
    "relu": _relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(gelu, approximate="tanh"),
    "silu": silu,
}


class FeedForward(Module):
    """A Transformer's feed-forward part, ``linear2(act(linear1(x)))``, or gated.

    Vaswani et al. 2017, section 3.3. With a gate, Shazeer 2020 (SwiGLU with silu, GEGLU with gelu):
    ``linear2(act(gate(x)) * linear1(x))``. The core computes it in one call, unless dropout is active or the activation
    is the caller's own function.

    Parameters
    ----------
    embed_dim : int
        Size of the last axis of an input.
    dim_feedforward : int
        Size of the hidden layer.
    dropout : float
        Probability that a hidden value becomes 0, in training only. Default: 0.0.
    activation : {'relu', 'gelu', 'gelu_tanh', 'silu'} or callable
        A callable takes an array and returns another of its shape and dtype. `functional.gelu` and `functional.silu`
        are recognised and run in the core. Default: 'relu'.
    gated : bool
        With a gate. Default: False.
    bias : bool
        Linear layers have biases. Default: True.
    out_dim : int, optional
        Size of the last axis of an output. Default: embed_dim.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    linear1 : Linear
        embed_dim to dim_feedforward.
    linear2 : Linear
        dim_feedforward to out_dim.
    gate : Linear or None
        embed_dim to dim_feedforward; the activation is applied to its output.

    Raises
    ------
    TypeError
        An argument other than activation has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A size is below 1, dropout is not a probability, activation is neither callable nor a known name, or rng is
        negative.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> from pyattn import nn
    >>> feed_forward = nn.FeedForward(4, 16, activation=pyattn.functional.silu, gated=True, rng=0)
    >>> feed_forward(np.ones((2, 3, 4), np.float32)).shape
    (2, 3, 4)
    """

    linear1: Linear
    linear2: Linear
    gate: Linear | None

    def __init__(
        self,
        embed_dim: SupportsIndex,
        dim_feedforward: SupportsIndex,
        dropout: SupportsFloat = 0.0,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        out_dim: SupportsIndex | None = None,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        size = as_count(embed_dim, "embed_dim", least=1)
        hidden = as_count(dim_feedforward, "dim_feedforward", least=1)
        out = as_count(out_dim, "out_dim", least=1, default=size)
        self.dropout = as_probability(dropout, "dropout")
        self.activation = as_activation(activation)
        generator = as_generator(rng)
        self.linear1 = Linear(size, hidden, bias, dtype=dtype, rng=generator)
        self.linear2 = Linear(hidden, out, bias, dtype=dtype, rng=generator)
        self.gate = Linear(size, hidden, bias, dtype=dtype, rng=generator) if as_flag(gated, "gated") else None

    @recorded
    def forward(self, x: npt.ArrayLike, *, rng: RNG = None) -> FloatArray:
        """Compute ``linear2(act(linear1(x)))``.

        Parameters
        ----------
        x : array_like, (..., embed_dim)
            Of the weights' dtype; float32 mixes with float16 or bfloat16.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ndarray, (..., out_dim)
            Of the same dtype.

        Raises
        ------
        TypeError
            The dtype of x, or of activation's output, does not mix with the weights'.
        ValueError
            x's last axis has another size, or activation returns another shape.
        """
        weight = self.linear1.weight
        rows = as_input(x, "x", weight.dtype)
        if rows.shape[-1:] != weight.shape[-1:]:
            raise ValueError(f"x has shape {rows.shape}, expected (..., {weight.shape[-1]}): embed_dim is last")
        dropout = self.dropout if self.training else 0.0
        y = feed(rows, self.linear1, self.linear2, self.gate, self.activation, dropout, rng)
        return check_dtype(y, self, weight.dtype)

    def extra_repr(self) -> str:
        """Return the options that the repr of the parts does not show.

        Returns
        -------
        str
            Of one line.
        """
        name = core_activation(self.activation) or self.activation
        return f"activation={name}, dropout={self.dropout}"


def as_activation(activation: Activation) -> Activation:
    """Read an activation."""
    if callable(activation):
        return activation
    name: Name = as_choice(activation, "activation", get_args(Name), other="a callable")
    return name


def core_activation(activation: Activation) -> Name | None:
    """Return the core's name of an activation that it fuses into a product, else None."""
    if isinstance(activation, str):
        return activation
    for name, function in _FUNCTIONS.items():  # by identity: a callable may not be hashable
        if activation is function:
            return name
    if isinstance(activation, functools.partial) and activation.func is gelu and not activation.args:
        forms: dict[Any, Name] = {"none": "gelu", "tanh": "gelu_tanh"}
        if activation.keywords.keys() <= {"approximate"}:
            return forms.get(activation.keywords.get("approximate", "none"))
    return None


def feed(
    x: FloatArray,
    linear1: Module,
    linear2: Module,
    gate: Module | None,
    activation: Activation,
    dropout: float,
    rng: RNG,
) -> FloatArray:
    """Compute ``linear2(dropped(act(linear1(x))))``, or ``linear2(dropped(act(gate(x)) * linear1(x)))``."""
    name = core_activation(activation)
    if (
        name is not None
        and not running().records
        and dropout == 0
        and type(linear1) is Linear
        and type(linear2) is Linear
        and (gate is None or type(gate) is Linear)
    ):
        return functional.feed_forward(
            x,
            linear1.weight,
            linear1.bias,
            linear2.weight,
            linear2.bias,
            activation=name,
            gate_weight=None if gate is None else gate.weight,
            gate_bias=None if gate is None else gate.bias,
        )
    hidden: FloatArray = linear1(x)
    hidden = activate(activation, hidden) if gate is None else activate(activation, gate(x), hidden)
    result: FloatArray = linear2(drop(hidden, dropout, rng))
    return result


def activate(activation: Activation, x: FloatArray, factor: FloatArray | None = None) -> FloatArray:
    """Compute ``act(x)``, or ``act(x) * factor``."""
    run, name = running(), core_activation(activation)
    if run.records and name is None:
        raise NotImplementedError(
            f"activation is {activation!r}, a function whose derivative is unknown here; gradients need one of "
            f"{', '.join(map(repr, get_args(Name)))}"
        )
    y = _apply(activation, x) if name is None else _core.activate(np.ascontiguousarray(x), name)
    y = y if factor is None else y * factor

    def backward(grad: FloatArray) -> tuple[FloatArray, ...]:
        found = _core.activate_backward(np.ascontiguousarray(grad), x, name, factor)
        return found if isinstance(found, tuple) else (found,)

    return run.step(y, (x, factor), backward)


def _apply(activation: Activation, x: FloatArray) -> FloatArray:
    function: Any = _FUNCTIONS[activation] if isinstance(activation, str) else activation
    y = as_input(function(x), "activation(x)", x.dtype)
    if y.shape != x.shape:
        raise ValueError(f"activation(x) has shape {y.shape}, expected {x.shape} as x")
    return y
