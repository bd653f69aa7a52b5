"""The two sides of `compare`: modules, functions or expected numbers, each with its formula.

Modules are read through their state_dict and plain attributes, which torch's and pyattn's share.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import numpy as np

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.arguments import as_choice
from pyattn._util.halves import as_float32
from pyattn._util.in_proj import in_projections
from pyattn._util.typing import Score
from pyattn.functional._multihead_masks import read_padding_mask
from pyattn.masks import Mask
from pyattn.masks._lowering import checked_array
from pyattn.testing.bounds import PRECISIONS, Precision, precision_of
from pyattn.testing.calling import is_of, parts_of, read_numbers, signature_of, text_of, to_torch
from pyattn.testing.formula import Affine, Array, Computed, Formula, compute

__all__ = [
    "ATTENTION",
    "FUNCTION",
    "LINEAR",
    "MODULES",
    "SELF_ATTENTION",
    "WEIGHTED",
    "Arguments",
    "Kind",
    "Side",
    "by_own_names",
    "call_side",
    "call_with_tensors",
    "kind_of",
    "owner_of",
    "read_arrays",
    "side_of",
]

Arguments = Mapping[str, Any]

RESULTS = ("output", "weights", "lse")
"""The results of a call, in the order of torch's MultiheadAttention; those left out at the end were not asked for."""

ARRAYS = ("attn_mask", "key_padding_mask", "key_lengths", "query_lengths", "score_weight", "keep_mask")
"""Arguments that are arrays even if given as lists; a window of two ends may be a list, but is not an array."""

ATTENTION = ("query", "key", "value")
WEIGHTED_INPUTS = ("x", "w_query", "w_key", "w_value")


class Kind(NamedTuple):
    """A kind of module, or of function."""

    name: str
    inputs: tuple[str, ...]
    """Inputs in order; all but the first are optional if they are also in `arguments`."""
    arguments: tuple[str, ...]
    """Supported arguments, which change the numbers or the number of results."""
    fits: Callable[[Any, Set[str]], bool]
    """(target, names of its parameters) -> whether the target is of this kind."""
    read: Callable[[Any, list[Array], Arguments, Mapping[str, Array]], Formula]
    """(target, inputs, arguments, parameters) -> the formula that it computes."""


def kind_of(target: Any) -> Kind | None:
    """Find the kind of a module or function; None if it is unknown."""
    if hasattr(target, "state_dict"):
        names = target.state_dict().keys()
        return next((kind for kind in MODULES if kind.fits(target, names)), None)
    if not callable(target):
        return None
    return WEIGHTED if WEIGHTED.fits(target, set()) else FUNCTION


def _options(arguments: Arguments, *names: str) -> dict[str, Any]:
    """Select the options of these names that are not None; a window given as a list becomes a tuple."""
    given = {name: arguments[name] for name in names if arguments.get(name) is not None}
    window = given.get("window")
    return given | {"window": tuple(window)} if isinstance(window, list) else given


# Functions

_MASKING = ("attn_mask", "is_causal", "window", "key_lengths", "empty_rows")
_OTHERS = ("align", "query_lengths", "enable_gqa", "layout", "need_weights", "need_lse", "num_threads")
_DROPOUT = ("dropout_p", "keep_mask")


def _read_function(_: Any, inputs: list[Array], arguments: Arguments, __: Mapping[str, Array]) -> Formula:
    """Read the arguments of `pyattn.attention`."""
    same = ("is_causal", "align", "window", "key_lengths", "query_lengths", "enable_gqa", "layout", "empty_rows")
    given = _options(arguments, *same, "scale", "score_weight", "attn_mask")
    query, key, value = inputs
    drop, keep = None, arguments.get("keep_mask")
    if keep is not None:
        p = float(arguments.get("dropout_p") or 0.0)
        drop = np.asarray(keep, np.float64) / (1 - p) if p < 1 else np.zeros(np.shape(keep))
    return Formula(query, key, value, score_function=arguments.get("score") or "dot", drop=drop, **given)


FUNCTION = Kind(
    "function",
    ATTENTION,
    (*_MASKING, "scale", "score", "score_weight", *_OTHERS, *_DROPOUT),
    lambda *_: True,
    _read_function,
)


def _read_weighted(_: Any, inputs: list[Array], arguments: Arguments, __: Mapping[str, Array]) -> Formula:
    """Read the arguments of `pyattn.self_attention` as a module's parameters and options."""
    x, *weights = inputs
    bias = arguments.get("bias")
    names = (*WEIGHTED_INPUTS[1:], "b_query", "b_key", "b_value")
    given = zip(names, (*weights, *(bias if bias is not None else (None,) * 3)), strict=True)
    parameters = {name: _as_float64(x, name) for name, x in given if x is not None}
    module = SimpleNamespace(convention=arguments.get("convention"), scale=arguments.get("scale"))
    return _read_self_attention(module, [x], arguments, parameters)


WEIGHTED = Kind(
    "function of x and weights",
    WEIGHTED_INPUTS,
    (*_MASKING, "context", "bias", "convention", "scale", "align", "need_weights", "num_threads"),
    lambda function, _: signature_of(function).positional[:4] == WEIGHTED_INPUTS,
    _read_weighted,
)


# Modules


def _is_multi_head(module: Any, names: Set[str]) -> bool:
    return (
        hasattr(module, "num_heads")
        and getattr(module, "rotary", None) is None  # the formula lacks rotations
        and "out_proj.weight" in names
        and bool({"in_proj_weight", "q_proj_weight"} & names)
    )


def _read_multi_head(
    module: Any, inputs: list[Array], arguments: Arguments, parameters: Mapping[str, Array]
) -> Formula:
    """Read the arguments of MultiheadAttention, whose masks have True = blocked."""
    query, key, value = inputs
    heads = int(module.num_heads)
    length_first = query.ndim == 3 and not module.batch_first
    if length_first:
        query, key, value = (x.swapaxes(0, 1) for x in inputs)
    into_query, into_key, into_value = (Affine(*projection) for projection in in_projections(parameters))
    mask, padding = (_attendable(arguments.get(name)) for name in ("attn_mask", "key_padding_mask"))
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(*query.shape[:-2], heads, *mask.shape[-2:])
    extras = []
    if "bias_k" in parameters:
        extras.append((parameters["bias_k"].ravel(), parameters["bias_v"].ravel()))
    if getattr(module, "add_zero_attn", False):
        extras.append((np.zeros(len(into_key.weight)), np.zeros(len(into_value.weight))))
    return Formula(
        query,
        key,
        value,
        (into_query, into_key, into_value),
        Affine(parameters["out_proj.weight"], parameters.get("out_proj.bias")),
        heads,
        int(getattr(module, "num_kv_heads", heads)),
        tuple(extras),
        scale=getattr(module, "scale", None),
        attn_mask=mask,
        padding=None if padding is None else padding[..., np.newaxis, np.newaxis, :],
        blocked=True,
        average=bool(arguments.get("need_weights", True) and arguments.get("average_attn_weights", True)),
        length_first=length_first,
        **_options(arguments, "is_causal", "window", "key_lengths", "empty_rows"),
    )


def _attendable(mask: Array | None) -> Array | None:
    """Invert a mask of True = blocked."""
    return ~mask if mask is not None and mask.dtype == np.bool_ else mask


def _read_self_attention(
    module: Any, inputs: list[Array], arguments: Arguments, parameters: Mapping[str, Array]
) -> Formula:
    """Read the arguments of SelfAttention: masks as for attention, and a single head without an axis."""
    x, *context = inputs
    given = arguments.get("context")
    other = context[0] if context else x if given is None else given
    weights = [parameters[name] for name in WEIGHTED_INPUTS[1:]]
    column = getattr(module, "convention", None) == "column"
    if column:
        x, other = x.mT, other.mT
    else:
        weights = [weight.T for weight in weights]
    query, key, value = map(Affine, weights, [parameters.get(name) for name in ("b_query", "b_key", "b_value")])
    mask = arguments.get("attn_mask")
    return Formula(
        x,
        other,
        other,
        (query, key, value),
        scale=module.scale,
        attn_mask=mask[..., np.newaxis, :, :] if mask is not None and mask.ndim > 2 else mask,
        average=True,
        convention="column" if column else "row",
        **_options(arguments, "is_causal", "align", "window", "key_lengths", "empty_rows"),
    )


def _read_linear(_: Any, inputs: list[Array], __: Arguments, parameters: Mapping[str, Array]) -> Formula:
    return Formula(inputs[0], out=Affine(parameters["weight"], parameters.get("bias")))


MULTI_HEAD = Kind(
    "MultiheadAttention",
    ATTENTION,
    (*_MASKING, "key_padding_mask", "need_weights", "average_attn_weights"),
    _is_multi_head,
    _read_multi_head,
)
SELF_ATTENTION = Kind(
    "SelfAttention",
    ("x", "context"),
    (*_MASKING, "context", "align", "need_weights"),
    lambda _, names: names >= {"w_query", "w_key", "w_value"},
    _read_self_attention,
)
LINEAR = Kind(
    "Linear",
    ("input",),
    (),
    lambda module, names: hasattr(module, "in_features") and "weight" in names and names <= {"weight", "bias"},
    _read_linear,
)
MODULES = (MULTI_HEAD, SELF_ATTENTION, LINEAR)


def _as_float64(x: Any, name: str) -> Array:
    return read_numbers(x, name).astype(np.float64)


# Sides


@dataclass(frozen=True, eq=False)
class Side:
    """A module, a function or expected numbers; arguments bound by functools.partial are in `arguments`."""

    name: str
    """'ours' or 'theirs'."""
    target: Any
    kind: Kind | None
    """None for an unknown module, and for expected numbers."""
    arguments: Arguments = field(default_factory=dict)
    """Arguments for this side alone, which override those for both sides."""
    tensors: bool = False
    """Whether it takes torch's tensors."""
    backward: Callable[..., Any] | None = None
    """The user's own function of grad_output and the inputs that returns gradients."""

    def of(self, target: Callable[..., Any]) -> Side:
        """Return the side with another function, such as its backward."""
        return replace(self, target=target)

    @property
    def is_module(self) -> bool:
        """Whether its parameters can be read."""
        return self.kind is not None and hasattr(self.target, "state_dict")

    @property
    def known(self) -> Kind:
        """The kind; the side must have one."""
        assert self.kind is not None
        return self.kind

    @property
    def kind_name(self) -> str:
        """Name of the kind for messages."""
        return f"a {self.known.name}" if self.kind is WEIGHTED or self.is_module else "attention alone"

    def compute(self, inputs: list[Array], arguments: Arguments) -> tuple[Formula, Computed]:
        """Compute the formula with the side's own parameters and options, in float64."""
        kind, arguments = self.known, self.lower_masks(inputs, {**arguments, **self.arguments})
        _check_score(arguments)
        for name in arguments:
            if name not in kind.arguments:
                known = ", ".join(kind.arguments) or "none"
                raise TypeError(
                    f"the formula of {self.kind_name} does not know the argument {name}; it knows {known}. For an "
                    "argument of one side alone, wrap that side in a function"
                )
        try:
            state = self.target.state_dict() if hasattr(self.target, "state_dict") else {}
            formula = kind.read(
                self.target, inputs, arguments, {name: _as_float64(x, name) for name, x in state.items()}
            )
            return formula, compute(formula)
        except (IndexError, ValueError) as error:
            given = dict(zip(kind.inputs, inputs, strict=False)) | arguments
            shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items() if isinstance(x, np.ndarray))
            fits = "; pass query (..., L, head_dim), key (..., S, head_dim), value (..., S, v_dim)"
            fits += " and masks that broadcast to (..., L, S)"
            message = f"the formula of {self.kind_name} cannot be computed with {shapes}"
            raise ValueError(message + fits if kind is FUNCTION else message) from error

    def read_inputs(self, inputs: tuple[Any, ...]) -> list[Array]:
        """Read the inputs of both sides; a single array is used as query, key and value."""
        names = self.known.inputs
        fewest = 1 if names[-1] in self.known.arguments else len(names)
        if names == ATTENTION and len(inputs) == 1:
            inputs = inputs * 3
        if not fewest <= len(inputs) <= len(names):
            number = f"{fewest} or {len(names)}" if fewest < len(names) else f"{fewest}"
            number += ", or 1 for all" if names == ATTENTION else ""
            hint = "pass everything else by name"
            if self.kind is FUNCTION and len(inputs) == len(WEIGHTED_INPUTS):
                hint += f". A function of x and weights must call its arguments {', '.join(WEIGHTED_INPUTS)}"
            raise TypeError(f"{len(inputs)} inputs are given, expected {number}: {', '.join(names)}; {hint}")
        read: dict[int, Array] = {}  # one array for one input
        return [
            read.setdefault(id(x), as_float32(_core.as_real(x, name))) for name, x in zip(names, inputs, strict=False)
        ]

    def dropout(self, arguments: Arguments) -> str | None:
        """Describe how dropout is enabled for the side; None if it is not."""
        p = getattr(self.target, "dropout", 0)
        p = getattr(p, "p", p)  # of a layer
        if getattr(self.target, "training", False) and isinstance(p, float) and p > 0:
            return f"being in training mode with dropout={p:g}"
        p = {**arguments, **self.arguments}.get("dropout_p", 0)
        return f"called with dropout_p={p:g}" if p else None

    def call(self, inputs: list[Array], arguments: Arguments) -> dict[str, Array]:
        """Call the side and return its results in float64: output, and weights and lse if they are returned."""
        returned, axes = self.target, inputs[0].ndim
        if callable(self.target):
            given = {**arguments, **self.arguments}
            if not is_of(self.target, "pyattn"):
                given = self.lower_masks(inputs, given)
            if not self.is_module and len(inputs) == len(ATTENTION):
                inputs, given = by_own_names(self.target, inputs, given, self.name)
            try:
                returned = call_side(self.target, inputs, given, self.tensors)
            except Exception as error:
                self.tell(error, inputs, given)
                raise
        parts = parts_of(returned, axes, f"the result of {self.name}")
        if not 0 < len(parts) <= len(RESULTS) or parts[0] is None:
            what = "None" if parts and parts[0] is None else f"a {type(returned).__name__} of {len(parts)}"
            raise TypeError(f"{self.name} gives {what}, expected the output, or (output, weights, lse)")
        found = zip(RESULTS, parts, strict=False)
        return {name: _as_float64(x, f"the {name} of {self.name}") for name, x in found if x is not None}

    def tell(self, error: Exception, inputs: list[Array], given: Arguments) -> None:
        """Raise TypeError if the side does not take such a call, with the fix; else add the side to the exception."""
        who = f"{self.name}, {self.title()},"
        try:
            signature = inspect.signature(getattr(self.target, "forward", self.target))
        except (TypeError, ValueError):  # written in C
            signature = None
        refusal = None if signature is None else _refusal(signature, inputs, given)
        if signature is None or refusal is None:
            if hasattr(error, "add_note"):  # since Python 3.11
                error.add_note(f"raised by {who} called by compare")
            return
        own = text_of(error) if is_of(self.target, "pyattn") else refusal
        hint = "" if is_of(self.target, "pyattn") else self._hint(signature, inputs, given)
        raise TypeError(f"{who} does not take this call: {own}{hint}") from error

    def _hint(self, signature: inspect.Signature, inputs: list[Array], given: Arguments) -> str:
        """Say how to compare a side that lacks an argument, or takes other inputs."""
        other = "theirs" if self.name == "ours" else "ours"
        lacking = [name for name in given if _refusal(signature, inputs, {name: given[name]}) is not None]
        if lacking and _refusal(signature, inputs, {}) is None:
            bound = ", ".join(f"{name}={'...' if hasattr(x, 'shape') else repr(x)}" for name, x in given.items())
            alone = f"give {' and '.join(lacking)} to {other} alone: functools.partial({other}, {bound})"
            return f"; if it masks by itself, {alone}" if {*lacking} <= {*_MASKING} else f"; {alone}"
        if len(inputs) == len(WEIGHTED_INPUTS):
            if hasattr(self.target, "state_dict"):
                made = "pyattn.nn.SelfAttention.from_arrays(w_query, w_key, w_value)"
                return f"; a module has weights of its own: compare it with {made}, and pass x alone"
            return f"; the inputs are {', '.join(WEIGHTED_INPUTS)}: wrap it in a function of these"
        names = ATTENTION[: len(inputs)] if len(inputs) > 1 else ("x",)
        return f"; wrap it in a function of {', '.join(names)}"

    def lower_masks(self, inputs: list[Array], arguments: Arguments) -> dict[str, Any]:
        """Replace mask objects by arrays: True = blocked for modules as torch.nn's, True = attend for all others."""
        blocked = hasattr(self.target, "state_dict") and self.kind is not SELF_ATTENTION

        def lower(name: str, x: Any) -> Any:
            if not isinstance(x, Mask):
                return x
            return self._block(inputs, name, x) if blocked else np.asarray(x)

        return {name: lower(name, x) for name, x in arguments.items()}

    def _block(self, inputs: list[Array], name: str, mask: Mask) -> Array:
        """Make a mask of a shape that torch takes, (L, S), (N * num_heads, L, S) or, for padding, (N, S)."""
        if name == "key_padding_mask":
            return read_padding_mask(mask, name)
        blocked = mask.blocked()
        if blocked.ndim < 3 or self.kind is not MULTI_HEAD:
            return blocked
        query, key = (x if x.ndim < 3 or self.target.batch_first else x.swapaxes(0, 1) for x in inputs[:2])
        scores = (*query.shape[:-2], int(self.target.num_heads), query.shape[-2], key.shape[-2])
        return np.broadcast_to(~checked_array(mask, scores, True, name), scores).reshape(-1, *scores[-2:])

    def result_type(self, inputs: list[Array]) -> np.dtype[Any]:
        """Return the dtype of a call's results in NumPy: float64 for float64, else float32."""
        wide = self.precision(inputs).name == "float64" or np.result_type(*inputs) == np.float64
        return np.dtype(np.float64 if wide else np.float32)

    def precision(self, inputs: list[Array]) -> Precision:
        """Return the precision of a module's parameters, a function's inputs, or the expected numbers."""
        if hasattr(self.target, "state_dict"):
            dtypes = [getattr(x, "dtype", None) for x in self.target.state_dict().values()]
        elif callable(self.target):
            dtypes = [np.result_type(*inputs)]
        else:
            output = self.target[0] if isinstance(self.target, tuple) else self.target
            dtypes = [getattr(output, "dtype", None)]
        return next(filter(None, map(precision_of, dtypes)), PRECISIONS["float64"])

    def title(self) -> str:
        """Return the public name, such as torch.nn.MultiheadAttention."""
        if not callable(self.target):
            return "expected numbers"
        named = self.target if hasattr(self.target, "__qualname__") else type(self.target)
        name = str(named.__qualname__).rpartition("<locals>.")[2]
        top, *rest = str(named.__module__ or "").split(".")
        package = f"{top}.nn" if "nn" in rest[:-1] else top  # where a user imports it from
        return name if package in ("", "__main__", "builtins") else f"{package}.{name}"


def _refusal(signature: inspect.Signature, inputs: list[Array], given: Arguments) -> str | None:
    """Say why a call does not fit a signature; None if it does."""
    try:
        signature.bind(*inputs, **given)
    except TypeError as error:
        return text_of(error)
    return None


def _check_score(arguments: Arguments) -> None:
    """Check the score function: a user's function may have ignored it."""
    score, weight = arguments.get("score"), arguments.get("score_weight")
    if score is not None:
        as_choice(score, "score", get_args(Score))
    if (score in ("bilinear", "additive")) != (weight is not None):
        needs = "needs a score_weight" if weight is None else "takes no score_weight; 'bilinear' and 'additive' do"
        raise ValueError(f"score={score or 'dot'!r} {needs}")


def side_of(target: Any, name: str, tensors: bool | None) -> Side:
    """Make a side from an argument of `compare`; tensors=None: it takes tensors if it comes from torch."""
    arguments: dict[str, Any] = {}
    if isinstance(target, type):
        raise TypeError(f"{name} is the class {target.__name__}, expected an instance: {target.__name__}(...)")
    backward: Any = None
    if isinstance(target, tuple) and len(target) == 2 and all(map(callable, target)):
        target, backward = target
    while isinstance(target, functools.partial):
        if target.args:
            raise TypeError(f"{name} is a partial with positional arguments; bind them by name")
        arguments, target = {**target.keywords, **arguments}, target.func
    takes_tensors = is_of(target, "torch") if tensors is None else bool(tensors)
    return Side(name, target, kind_of(target), read_arrays(arguments), takes_tensors, backward)


def owner_of(ours: Side, theirs: Side) -> Side:
    """Choose the side whose formula is computed in float64: a module, or else ours; ours if both are modules."""
    if ours.is_module and theirs.is_module and ours.kind is not theirs.kind:
        raise TypeError(f"ours is {ours.kind_name} and theirs {theirs.kind_name}, expected two of a kind")
    if theirs.target is None:
        raise TypeError("theirs is None, expected a module, a function or expected numbers")
    for one, other in ((ours, theirs), (theirs, ours)):
        without = (functional.attention, functional.scaled_dot_product_attention)
        if other.is_module and any(one.target is function for function in without):
            made = "a module of pyattn"
            if is_of(other.target, "torch"):
                made = f"pyattn.interop.torch.from_torch({other.name})"
            has = f"has no weights, but {other.name}, {other.title()}, has: pass {made} as {one.name}"
            raise TypeError(f"{one.name}, {one.title()}, {has}")
    if theirs.is_module and not ours.is_module and callable(ours.target):
        return theirs
    if ours.kind is None:
        kinds = f"{', '.join(kind.name for kind in MODULES)} or a function of query, key and value"
        raise TypeError(f"ours is of type {type(ours.target).__name__}, expected {kinds}")
    return ours


def read_arrays(given: Arguments) -> dict[str, Any]:
    """Make NumPy arrays of all arguments that are arrays; mask objects wait for the side that they are given to."""

    def is_array(x: Any, name: str) -> bool:
        if isinstance(x, Mask):
            return False
        if isinstance(x, list):
            return name in ARRAYS
        return not isinstance(x, np.generic) and (hasattr(x, "__dlpack__") or hasattr(x, "__array__"))

    return {name: _core.as_array(x, name) if is_array(x, name) else x for name, x in given.items()}


# Calls


def by_own_names(
    target: Callable[..., Any], inputs: list[Array], arguments: Arguments, name: str
) -> tuple[list[Array], dict[str, Any]]:
    """Return query, key and value by position, and everything else by the function's own names."""
    own = signature_of(target)
    computes = ("score", "score_weight")  # a function without these arguments computes one score
    given = {own.options.get(ours, ours): x for ours, x in arguments.items() if ours not in computes or own.takes(ours)}
    if own.inputs:
        by_name = dict(zip(own.inputs.values(), inputs, strict=True))
        first = own.positional[: len(inputs)]
        if sorted(first) == sorted(by_name):
            return [by_name[one] for one in first], given
        return [], by_name | given
    if len([one for one in own.positional if one not in own.options.values()]) == 1:
        if any(x is not inputs[0] for x in inputs):
            raise TypeError(f"{name} takes {own.positional[0]} alone, expected one array for query, key and value")
        return inputs[:1], given
    return inputs, given


def call_side(target: Any, inputs: list[Array], arguments: Arguments, tensors: bool) -> Any:
    """Call a side with copies of its inputs, so that it cannot change those of the other side."""
    if tensors:
        return call_with_tensors(target, inputs, arguments)
    made: dict[int, Array] = {}  # the same array gets the same copy

    def own(x: Any) -> Any:
        return made.setdefault(id(x), np.copy(x, order="K")) if isinstance(x, np.ndarray) else x

    try:
        return target(*map(own, inputs), **{name: own(x) for name, x in arguments.items()})
    except Exception as error:
        text = text_of(error)
        meant = "Tensor" in text or "'numpy.ndarray' object has no" in text
        if "torch" in sys.modules and (meant or _takes_tensors(target, inputs, arguments)):
            hint = "if theirs takes tensors, pass tensors=True; ours takes arrays"
            raise TypeError(f"calling it with arrays failed: {text}; {hint}") from error
        raise


def _takes_tensors(target: Any, inputs: list[Array], arguments: Arguments) -> bool:
    """Whether a call with tensors returns a tensor; the error of a call with arrays does not tell."""
    try:
        return "Tensor" in type(call_with_tensors(target, inputs, arguments)).__name__
    except Exception:
        return False


def call_with_tensors(
    target: Any, inputs: list[Array], arguments: Arguments, leaves: dict[int, Any] | None = None
) -> Any:
    """Call with tensors of the module's dtype and device; with gradients if `leaves` is to note the tensors."""
    import torch

    parameters = target.parameters() if isinstance(target, torch.nn.Module) else ()
    like = next((x for x in parameters if x.is_floating_point()), None)
    made: dict[int, Any] = {}  # equal inputs stay one object, which torch checks

    def tensor(array: Array) -> Any:
        if id(array) not in made:
            x = to_torch(np.array(array, order="C"))
            if like is not None:
                x = x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
            if leaves is not None and x.is_floating_point():
                leaves[id(array)] = x.requires_grad_()
            made[id(array)] = x
        return made[id(array)]

    given = {name: tensor(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with torch.set_grad_enabled(leaves is not None):
        return target(*map(tensor, inputs), **given)
