"""A function of the user's, called with NumPy's arrays as it wants them: its axes, its library, its arguments."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn.testing._comparing.calling import is_several
from pyattn.testing.cases import Case, store
from pyattn.testing.signatures import name_of, read_signature

__all__ = ["Answer", "Callee", "Layout", "Library", "RefusedError"]

Array = npt.NDArray[Any]
Layout = Literal["bhsd", "bshd"]
Library = Literal["numpy", "torch", "jax"]


class RefusedError(Exception):
    """The function takes no such arrays, raised an exception, or returned no array; the message says which."""


class Answer(NamedTuple):
    """What a call gave."""

    output: Array
    from_tuple: bool  # its first item
    changed: tuple[str, ...]  # arguments that the function wrote to


class Callee:
    """A function and how it is called.

    Parameters
    ----------
    function : callable
        Of query, key and value, and perhaps of more.
    scale : float, optional
        What is passed where the function has to be told one. Default: ``1 / sqrt(head_dim)``.
    layout : {"bhsd", "bshd"}, optional
        Of arrays with heads; with "bshd" there are no others. Default: None, "bshd" for JAX's functions.
    library : {"numpy", "torch", "jax"}, optional
        Whose arrays it takes. Default: None, by its module, or else the first that it raises no exception for.

    Attributes
    ----------
    name : str
        Of the function.
    refusals : dict of int to str
        Why it does not take arrays of 2, 3 or 4 axes; "" where it does.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scale: float | None = None,
        layout: Layout | None = None,
        library: Library | None = None,
    ) -> None:
        self.name = name_of(function)
        self.refusals: dict[int, str] = {}
        self._function, self._signature, self._scale = function, read_signature(function), scale
        own = _library_of(function)
        self._layout: Layout = layout or ("bshd" if own == "jax" else "bhsd")
        self._needs_mask_array = False
        foreign: tuple[Library, ...] = ("torch", "jax")
        candidates: list[Library] = [library or own]
        if library is None and own == "numpy":
            candidates += [name for name in foreign if name in sys.modules]
        if not any(map(self._takes_arrays_of, candidates)):
            self._takes_arrays_of(candidates[0])  # for its own refusals

    def takes(self, name: str) -> bool:
        """Tell whether the function has an argument.

        Parameters
        ----------
        name : str
            Our name of it.

        Returns
        -------
        bool
        """
        options = self._signature.options
        return name in options or (name == "attn_bias" and "attn_mask" in options)

    def describe(self, case: Case) -> str:
        """Write a call as its source would be.

        Parameters
        ----------
        case : Case
            As `present` made it.

        Returns
        -------
        str
            Such as ``attention(query, key, value, mask=mask)``.
        """
        signature = self._signature
        inputs = [ours if signature.positional else f"{own}={ours}" for ours, own in signature.inputs.items()]
        options = self._options_of(case).items()
        texts = [f"{name}={name if isinstance(x, np.ndarray) else repr(x)}" for name, x in options]
        return f"{self.name}({', '.join(inputs + texts)})"

    def present(self, case: Case) -> Case:
        """Give a case the axes that the function takes: its layout, and axes of size 1 where it asks for more.

        Parameters
        ----------
        case : Case
            With arrays of 2, 3 or 4 axes.

        Returns
        -------
        Case
            With views of the same arrays.

        Raises
        ------
        RefusedError
            The function takes no arrays of as many axes or more.
        """
        axes = case.query.ndim
        taken = [rank for rank, refusal in self.refusals.items() if rank >= axes and not refusal]
        if not taken and "" in self.refusals.values():
            raise RefusedError(self.refusals[axes])
        # The most axes otherwise: what wants four may return something for three, by reading them as others.
        fallback = 4 if self._layout == "bshd" else axes
        return self._present(case, axes if axes in taken else max(taken, default=fallback))

    def call(self, case: Case) -> Answer:
        """Call the function with copies of a case's arrays.

        Parameters
        ----------
        case : Case
            As `present` made it.

        Returns
        -------
        Answer

        Raises
        ------
        RefusedError
            The function raised an exception, or returned no array.
        """
        inputs = {"query": case.query, "key": case.key, "value": case.value}
        arrays = {ours: store(inputs[ours], case.storage) for ours in self._signature.inputs}
        options = self._options_of(case)
        given = arrays | {own: x for own, x in options.items() if isinstance(x, np.ndarray)}
        before = {name: x.copy() for name, x in given.items()}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            passed = [self._convert(x) for x in arrays.values()]
            options = {own: self._convert(x) if isinstance(x, np.ndarray) else x for own, x in options.items()}
            if not self._signature.positional:
                options |= dict(zip(self._signature.inputs.values(), passed, strict=True))
                passed = []
            try:
                result = self._function(*passed, **options)
            except (Exception, SystemExit) as error:  # a KeyboardInterrupt is the caller's own
                raise RefusedError(self._describe_error(error)) from error
            several = is_several(result, case.query.ndim) and len(result) > 0
            output = _read_result(result[0] if several else result)
        changed = tuple(name for name, x in given.items() if not np.array_equal(x, before[name], equal_nan=True))
        return Answer(output, several, changed)

    def _takes_arrays_of(self, library: Library) -> bool:
        """Try 2, 3 and 4 axes. A mask that has to be passed may be None, or else one that hides nothing."""
        self.library = library
        for needs_array in (False, True) if "attn_mask" in self._signature.required else (False,):
            self._needs_mask_array = needs_array
            self.refusals = {2 + len(batch): self._refusal_of(batch) for batch in ((), (2,), (2, 3))}
            if "" in self.refusals.values():
                return True
        return False

    def _refusal_of(self, batch: tuple[int, ...]) -> str:
        if self._layout == "bshd" and len(batch) < 2:
            return "arrays are (batch, length, heads, dim)"
        x = np.broadcast_to(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4), (*batch, 5, 4))
        try:
            output = self.call(self._present(Case(x, x, x), x.ndim)).output
        except RefusedError as refused:
            return str(refused)
        if "attn_mask" in self._signature.required and not self._needs_mask_array and np.isnan(output).any():
            return "None is no mask"  # but has been read as one
        return ""

    def _present(self, case: Case, rank: int) -> Case:
        arguments = dict(case.arguments)
        mask = arguments.get("attn_mask")
        if mask is not None and mask.ndim == case.query.ndim:
            arguments["attn_mask"] = _expand(mask, rank)
        query, key, value = (_expand(x, rank) for x in (case.query, case.key, case.value))
        if self._layout == "bshd":
            query, key, value = (x.swapaxes(-3, -2) for x in (query, key, value))
            arguments["layout"] = "bshd"
        return Case(query, key, value, arguments, case.storage)

    def _options_of(self, case: Case) -> dict[str, Any]:
        """Name arguments as the function does. What it has none for is left out; what it has to be told, is there."""
        given = dict(case.arguments)
        mask = given.pop("attn_mask", None)
        if mask is not None:
            is_bias = mask.dtype != np.bool_ and "attn_bias" in self._signature.options
            given["attn_bias" if is_bias else "attn_mask"] = mask.copy()
        length = -3 if self._layout == "bshd" else -2
        no_mask = np.ones((case.query.shape[length], case.key.shape[length]), bool) if self._needs_mask_array else None
        head_dim = case.query.shape[-1]
        scale = 1 / np.sqrt(head_dim) if self._scale is None else self._scale
        usual: dict[str, Any] = {"attn_mask": no_mask, "attn_bias": None, "is_causal": False, "align": None}
        usual |= {"scale": float(scale), "enable_gqa": False, "key_lengths": None, "head_dim": head_dim}
        given = {name: usual[name] for name in self._signature.required} | given
        own = self._signature.options
        return {own[name]: option for name, option in given.items() if name in own}

    def _convert(self, x: Array) -> Any:
        """Make an array of the function's library."""
        if self.library == "numpy":
            return x
        library: Any = importlib.import_module("jax.numpy" if self.library == "jax" else "torch")
        if self.library == "torch":  # which has neither negative strides nor read-only tensors
            return library.from_numpy(x if x.flags.writeable and min(x.strides, default=0) >= 0 else x.copy())
        converted = library.asarray(x)
        if converted.dtype != x.dtype:
            raise RefusedError(f"JAX makes {converted.dtype} of {x.dtype} unless jax_enable_x64 is on")
        return converted

    def _describe_error(self, error: BaseException) -> str:
        """Give the exception's first line, and where in the function's file it comes from."""
        text = str(error).strip().partition("\n")[0][:200]
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        file = getattr(getattr(inspect.unwrap(self._function), "__code__", None), "co_filename", None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        return f"{text} ({os.path.basename(str(file))}, line {lines[-1]})" if lines else text


def _expand(x: Array, rank: int) -> Array:
    """Put axes of size 1 before the length."""
    return x[(..., *(np.newaxis,) * (rank - x.ndim), slice(None), slice(None))]


def _library_of(function: Callable[..., Any]) -> Library:
    """Find the library that the function comes from, or its class, as that of a torch.nn.Module."""
    function = getattr(function, "func", function)  # of a partial
    modules = [getattr(function, "__module__", None), *(kind.__module__ for kind in type(function).__mro__)]
    tops = {str(module).partition(".")[0] for module in modules}
    return "torch" if "torch" in tops else "jax" if tops & {"jax", "jaxlib"} else "numpy"


def _read_result(result: Any) -> Array:
    if result is None:
        raise RefusedError("it returned None: is there a return?")
    try:
        output = _core.as_array(result.detach() if hasattr(result, "detach") else result, "the result")
    except (TypeError, ValueError) as error:
        raise RefusedError(str(error)) from error
    if output.dtype.kind not in "biuf":
        raise RefusedError(f"it returned an array of dtype {output.dtype}, expected numbers")
    return output
