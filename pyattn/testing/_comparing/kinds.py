"""What can be compared, and what each computes by its own account: its inputs, arguments and parameters as a `Formula`.

Modules are read through their state_dict and plain attributes, which torch's and pyattn's have under the same names. A
kind is a line in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.in_proj import in_projections
from pyattn.testing._comparing.formula import Affine, Array, Formula
from pyattn.testing.signatures import names_of

__all__ = ["FUNCTION", "WEIGHTED", "Kind", "as_float64", "kind_of", "parameters_of"]


class Kind(NamedTuple):
    """A kind of module, or a function.

    Attributes
    ----------
    name : str
        As messages call it.
    inputs : tuple of str
        Their names, in order; all but the first may be left out where they are in arguments, too.
    arguments : tuple of str
        Those that change the numbers, or what is returned.
    fits : (module, names of its parameters) -> bool
        Whether this is one.
    read : (module, inputs, arguments, parameters) -> Formula
        What it computes.
    """

    name: str
    inputs: tuple[str, ...]
    arguments: tuple[str, ...]
    fits: Callable[[Any, Set[str]], bool]
    read: Callable[[Any, list[Array], Mapping[str, Any], Mapping[str, Array]], Formula]


def kind_of(target: Any) -> Kind | None:
    """Find the kind of a module or function.

    Parameters
    ----------
    target : object
        Anything.

    Returns
    -------
    Kind or None
        None where nothing is known of it.
    """
    if hasattr(target, "state_dict"):
        names = target.state_dict().keys()
        return next((kind for kind in MODULES if kind.fits(target, names)), None)
    if not callable(target):
        return None
    return WEIGHTED if WEIGHTED.fits(target, set()) else FUNCTION


def parameters_of(module: Any) -> dict[str, Array]:
    """Read a module's parameters.

    Parameters
    ----------
    module : object
        With a state_dict, or a function, which has none.

    Returns
    -------
    dict of str to ndarray
        In float64.
    """
    state = module.state_dict() if hasattr(module, "state_dict") else {}
    return {name: as_float64(x, name) for name, x in state.items()}


def as_float64(x: npt.ArrayLike, name: str) -> Array:
    """Read an array or a tensor of any dtype, on any device.

    Parameters
    ----------
    x : array_like
        Of real numbers.
    name : str
        What messages call it.

    Returns
    -------
    ndarray of float64
    """
    tensor: Any = x
    if hasattr(tensor, "detach"):  # bfloat16 is none of NumPy's
        x = tensor.detach().cpu().double()
    array: Array = _core.as_array(x, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


# Functions


def _read_function(_: Any, inputs: list[Array], arguments: Mapping[str, Any], __: Mapping[str, Array]) -> Formula:
    """Take the arguments of `pyattn.attention`."""
    same = ("is_causal", "align", "window", "key_lengths", "query_lengths", "enable_gqa", "layout", "empty_rows")
    given = {name: arguments[name] for name in (*same, "scale", "score_weight") if arguments.get(name) is not None}
    given |= {"attn_mask": arguments.get("attn_mask"), "score_function": arguments.get("score") or "dot"}
    query, key, value = inputs
    return Formula(query, key, value, **_with_tuple(given))


def _with_tuple(given: dict[str, Any]) -> dict[str, Any]:
    """Make a window of two ends a tuple."""
    window = given.get("window")
    return given | {"window": tuple(window)} if isinstance(window, list) else given


_HIDING = ("attn_mask", "is_causal", "window", "key_lengths", "empty_rows")
_ATTENTION = ("align", "query_lengths", "enable_gqa", "layout", "need_weights", "need_lse", "num_threads", "dropout_p")
FUNCTION = Kind(
    "function",
    ("query", "key", "value"),
    (*_HIDING, "scale", "score", "score_weight", *_ATTENTION),
    lambda *_: True,
    _read_function,
)


def _takes_weights(function: Any, _: Set[str]) -> bool:
    return names_of(function).first[:4] == WEIGHTED.inputs


def _read_weighted(_: Any, inputs: list[Array], arguments: Mapping[str, Any], __: Mapping[str, Array]) -> Formula:
    """Take the arguments of `pyattn.self_attention`: a module's parameters and options among the others."""
    x, *weights = inputs
    bias = arguments.get("bias")
    vectors = [None] * 3 if bias is None else bias
    named = zip(("w_query", "w_key", "w_value", "b_query", "b_key", "b_value"), (*weights, *vectors), strict=True)
    parameters = {name: as_float64(x, name) for name, x in named if x is not None}
    module = SimpleNamespace(columns=bool(arguments.get("columns")), scale=arguments.get("scale"))
    return _read_self_attention(module, [x], arguments, parameters)


WEIGHTED = Kind(
    "function of x and weights",
    ("x", "w_query", "w_key", "w_value"),
    (*_HIDING, "context", "bias", "columns", "scale", "align", "need_weights", "num_threads"),
    _takes_weights,
    _read_weighted,
)


# Modules


def _is_multi_head(module: Any, names: Set[str]) -> bool:
    return (
        hasattr(module, "num_heads")
        and getattr(module, "rotary", None) is None  # whose steps the formula lacks
        and "out_proj.weight" in names
        and bool({"in_proj_weight", "q_proj_weight"} & names)
    )


def _read_multi_head(
    module: Any, inputs: list[Array], arguments: Mapping[str, Any], parameters: Mapping[str, Array]
) -> Formula:
    """Take the arguments of MultiheadAttention, whose masks mean the opposite: True = blocked."""
    query, key, value = inputs
    heads, kv_heads = int(module.num_heads), int(getattr(module, "num_kv_heads", module.num_heads))
    turn = query.ndim == 3 and not module.batch_first
    if turn:
        query, key, value = (x.swapaxes(0, 1) for x in inputs)
    into_query, into_key, into_value = (Affine(*projection) for projection in in_projections(parameters))
    projections = into_query, into_key, into_value
    mask, padding = (_attendable(arguments.get(name)) for name in ("attn_mask", "key_padding_mask"))
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(*query.shape[:-2], heads, *mask.shape[-2:])
    same = [name for name in ("window", "key_lengths", "empty_rows") if arguments.get(name) is not None]
    return Formula(
        query,
        key,
        value,
        projections,
        Affine(parameters["out_proj.weight"], parameters.get("out_proj.bias")),
        heads,
        kv_heads,
        _extras(module, parameters, projections),
        attn_mask=mask,
        padding=None if padding is None else padding[..., np.newaxis, np.newaxis, :],
        blocked=True,
        is_causal=bool(arguments.get("is_causal", False)),
        average=bool(arguments.get("need_weights", True) and arguments.get("average_attn_weights", True)),
        turn=turn,
        **_with_tuple({name: arguments[name] for name in same}),
    )


def _extras(
    module: Any, parameters: Mapping[str, Array], projections: tuple[Affine, ...]
) -> tuple[tuple[Array, Array], ...]:
    """Give the keys and values of add_bias_kv and add_zero_attn."""
    found = []
    if "bias_k" in parameters:
        found.append((parameters["bias_k"].ravel(), parameters["bias_v"].ravel()))
    if getattr(module, "add_zero_attn", False):
        found.append((np.zeros(len(projections[1].weight)), np.zeros(len(projections[2].weight))))
    return tuple(found)


def _attendable(mask: Array | None) -> Array | None:
    """Turn True = blocked into True = attend."""
    return ~mask if mask is not None and mask.dtype == np.bool_ else mask


def _is_self_attention(_: Any, names: Set[str]) -> bool:
    return {"w_query", "w_key", "w_value"} <= names


def _read_self_attention(
    module: Any, inputs: list[Array], arguments: Mapping[str, Any], parameters: Mapping[str, Array]
) -> Formula:
    """Take the arguments of SelfAttention, whose masks are those of attention, and which has no axis for its head."""
    x, *context = inputs
    given = arguments.get("context")
    other = context[0] if context else x if given is None else given
    weights = [parameters[name] for name in ("w_query", "w_key", "w_value")]
    if module.columns:
        x, other = x.mT, other.mT
    else:
        weights = [weight.T for weight in weights]
    biases = [parameters.get(name) for name in ("b_query", "b_key", "b_value")]
    query, key, value = map(Affine, weights, biases)
    mask = arguments.get("attn_mask")
    if mask is not None and mask.ndim > 2:
        mask = mask[..., np.newaxis, :, :]
    same = ("is_causal", "align", "window", "key_lengths", "empty_rows")
    return Formula(
        x,
        other,
        other,
        (query, key, value),
        scale=module.scale,
        attn_mask=mask,
        average=True,
        columns=bool(module.columns),
        **_with_tuple({name: arguments[name] for name in same if arguments.get(name) is not None}),
    )


def _is_linear(module: Any, names: Set[str]) -> bool:
    return hasattr(module, "in_features") and "weight" in names and names <= {"weight", "bias"}


def _read_linear(_: Any, inputs: list[Array], __: Mapping[str, Any], parameters: Mapping[str, Array]) -> Formula:
    return Formula(inputs[0], out=Affine(parameters["weight"], parameters.get("bias")))


MODULES = (
    Kind(
        "MultiheadAttention",
        ("query", "key", "value"),
        (*_HIDING, "key_padding_mask", "need_weights", "average_attn_weights"),
        _is_multi_head,
        _read_multi_head,
    ),
    Kind(
        "SelfAttention",
        ("x", "context"),
        (*_HIDING, "context", "align", "need_weights"),
        _is_self_attention,
        _read_self_attention,
    ),
    Kind("Linear", ("input",), (), _is_linear, _read_linear),
)
