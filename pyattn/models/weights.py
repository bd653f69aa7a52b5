"""Find the tensors of a model in its files, and check their names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn._util.halves import as_stored_dtype
from pyattn._util.messages import short_repr
from pyattn._util.typing import FloatArray
from pyattn.io.safetensors import StoredTensor
from pyattn.models.files import ModelFiles

__all__ = ["HEAD", "Arrays", "Plan", "Shapes", "Weights", "find_weights"]

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Arrays: TypeAlias = Mapping[str, FloatArray]

HEAD = "lm_head.weight"
MAX_LISTED = 20
FLOATS = ("F32", "F64", "F16", "BF16")
OLDER_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # of normalisations in files that TensorFlow wrote


class Plan(NamedTuple):
    """The model that a config.json describes: the shapes of its tensors by name, and a function that builds it."""

    shapes: Shapes
    build: Callable[[Arrays], Any]
    prefix: str
    """Prefix of the names in files of a larger model that contains this one."""
    pooler: tuple[str, ...] = ()
    """Names in `shapes` of the pooler's tensors; a file may lack all of them together."""
    embedding: str = ""
    """Name of a decoder's embedding, which has the shape of `HEAD`."""
    tied: bool = False
    """Whether embedding and head share one weight, unless the file has two that differ."""


class Weights(NamedTuple):
    """A model's arrays, all float64 or none, the names that the files lack, and the names that are not used."""

    arrays: dict[str, FloatArray]
    missing: list[str]
    unexpected: list[str]


def find_weights(files: ModelFiles, plan: Plan, *, strict: bool, dtype: npt.DTypeLike | None) -> Weights:
    """Find the tensors of a plan: views of the files, or converted copies if the dtype differs."""
    wanted = None if dtype is None else as_stored_dtype(dtype)
    names = _names(files, plan)
    if plan.tied:
        _tie(files, plan, names)
    lacking = [name for name in plan.shapes if name not in names and not (name == HEAD and plan.tied)]
    spared = set(plan.pooler) if all(name in lacking for name in plan.pooler) else set()
    spared |= set() if strict else {HEAD}
    problems = [f"{name} is missing" for name in lacking if name not in spared] + _misfits(files, plan, names)
    if problems:
        hint = "; strict=False loads it without a head" if problems == [f"{HEAD} is missing"] else ""
        lines = problems[:MAX_LISTED]
        lines += [f"and {len(problems) - MAX_LISTED} more"] if len(problems) > MAX_LISTED else []
        raise ValueError("\n- ".join([f"{files.source} does not fit {files.config.source}{hint}:", *lines]))

    tensors, used = {name: files.tensors[key] for name, key in names.items()}, set(names.values())
    stored = {tensor.dtype for tensor in tensors.values()}
    if wanted is None and ("F64" in stored or stored >= {"F16", "BF16"}):
        wanted = np.dtype(np.float64 if "F64" in stored else np.float32)
    arrays: dict[str, FloatArray] = {name: tensor.to_array(wanted) for name, tensor in tensors.items()}
    if plan.tied:
        arrays.setdefault(HEAD, arrays[plan.embedding])
    return Weights(arrays, lacking, [key for key in files.tensors if key not in used])


def _names(files: ModelFiles, plan: Plan) -> dict[str, str]:
    """Map the names of a plan to those in the files."""
    names: dict[str, str] = {}
    for key in files.tensors:
        name = key.removeprefix(plan.prefix)
        stem, dot, last = name.rpartition(".")
        name = stem + OLDER_ENDINGS.get(dot + last, dot + last)
        if name in names:
            raise ValueError(f"{files.source} has both {short_repr(names[name])} and {short_repr(key)}, expected one")
        if name in plan.shapes:
            names[name] = key
    return names


def _tie(files: ModelFiles, plan: Plan, names: dict[str, str]) -> None:
    """Use one tied weight for embedding and head; if the file has two that differ, use both, as transformers does."""
    if HEAD not in names:
        return
    names.setdefault(plan.embedding, names[HEAD])
    one, other = (files.tensors[names[name]] for name in (plan.embedding, HEAD))
    if _are_equal(one, other):
        del names[HEAD]


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    return one[:2] == other[:2] and bool(np.array_equal(one.raw, other.raw))


def _misfits(files: ModelFiles, plan: Plan, names: dict[str, str]) -> list[str]:
    """Describe the tensors that have the wrong shape, or a dtype that is not floating-point."""
    misfits = []
    for name, key in names.items():
        tensor = files.tensors[key]
        if tensor.shape != plan.shapes[name]:
            misfits.append(f"{key} has shape {short_repr(tensor.shape)}, expected {plan.shapes[name]}")
        elif tensor.dtype not in FLOATS:
            misfits.append(f"{key} has dtype {tensor.dtype}, expected one of {', '.join(FLOATS)}")
    return misfits
