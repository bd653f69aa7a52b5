"""``python -m pyattn compare ours.npz theirs.npz``: where the arrays of two files differ, and by how much."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.io as io
from pyattn._util.halves import as_float32
from pyattn._util.names import nearest
from pyattn.testing._compare import compare
from pyattn.testing.bounds import Precision, precision_of
from pyattn.testing.reports import Comparison
from pyattn.testing.sides import FUNCTION

__all__ = ["compare_files"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
INPUTS = ("query", "key", "value")
_MAX_ENTRY = 40  # characters of an entry, such as a text
RESULTS = {"output": ("output", "outputs"), "weights": ("weights",), "lse": ("lse",)}
OTHER_NAMES = {  # of results, in files of other programs
    **dict.fromkeys(("attn_output", "context", "o", "out", "result", "y"), "output"),
    **dict.fromkeys(("attention", "attention_weights", "attn", "attn_weights", "probs"), "weights"),
}


class Difference(NamedTuple):
    """What is found for one name: a line's cells, and whether the arrays agree."""

    name: str
    shape: str
    dtype: str
    error: str
    relative: str
    ulp: str
    equal: bool
    remark: str


def compare_files(files: Sequence[str], ulp: float) -> int:
    """Print how two files differ; return 0 if they do not, 1 if they do, or 2 if one cannot be read."""
    try:
        if len(files) != 2:
            given = "1 file is" if len(files) == 1 else f"{len(files)} files are"
            raise ValueError(f"{given} given; name two: python -m pyattn compare ours.npz theirs.npz")
        ours, theirs = map(_load, files)
        if not ours and not theirs:
            raise ValueError("neither file holds an array")
    except (ImportError, OSError, ValueError) as error:
        sys.stderr.write(f"python -m pyattn compare: {' '.join(str(error).split())}\n")
        return 2
    found = [_differ(name, ours, theirs, ulp) for name in dict.fromkeys((*ours, *theirs))]
    cast = _cast_to_float32(ours, theirs)
    try:
        report, problem = _report(*cast, files), ""
    except (TypeError, ValueError) as error:  # or the arrays have these names by chance
        report, problem = None, " ".join(str(error).split())
    if report is not None:  # inputs of another dtype are the same call
        casts = {name for name in ours if not _same(ours[name], theirs[name]) and _same(*(x[name] for x in cast))}
        found = [one._replace(equal=True, remark="equal in float32") if one.name in casts else one for one in found]
    judged = () if report is None else _results_of(ours).values()
    if report is not None and report.equal:  # the table must not call different what the report calls equal
        found = [one._replace(remark=one.remark.replace("differs", "rounding", 1)) for one in found]
    differ = [one.name for one in found if not one.equal and one.name not in judged]
    equal = not differ and (report is None or report.equal)
    hint = _hint(ours, theirs, problem) if report is None and differ else ""
    sys.stdout.write("\n".join([*_lines(files, found, differ, report, ulp), *([hint] if hint else [])]) + "\n")
    return 0 if equal else 1


def _load(file: str) -> Arrays:
    """Read a file with its numbers in this machine's byte order; the error names it."""
    if not file.endswith((".npz", ".safetensors")):
        raise ValueError(f"{file} has an unknown ending: it must be .npz or .safetensors")
    return {name: x.astype(x.dtype.newbyteorder("="), copy=False) for name, x in io.load(file).items()}


# Attention: both files hold the same inputs, and each holds results


def _report(ours: Arrays, theirs: Arrays, files: Sequence[str]) -> Comparison | None:
    """Compare the results of attention with the formula; None if the files do not hold the same call."""
    names = _results_of(ours)
    if "output" not in names or names != _results_of(theirs) or not {*INPUTS} <= ours.keys():
        return None
    known = {*INPUTS, *names.values()}
    options = {name: x for name, x in ours.items() if name not in known}
    given = [*INPUTS, *options]
    if not all(name in theirs and _same(ours[name], theirs[name]) for name in given) or theirs.keys() != ours.keys():
        return None
    if not options.keys() <= {*FUNCTION.arguments}:
        return None
    scalars: dict[str, Any] = {name: x.item() if x.ndim == 0 else x for name, x in options.items()}
    one, other = (_returning(arrays, names, file) for arrays, file in zip((ours, theirs), files, strict=True))
    return compare(one, other, *(ours[name] for name in INPUTS), **scalars)


def _cast_to_float32(ours: Arrays, theirs: Arrays) -> tuple[Arrays, Arrays]:
    """Cast arrays that one file holds in float64, the other in float32: implementations often differ in this."""
    results: tuple[dict[str, Array], dict[str, Array]] = ({**ours}, {**theirs})
    for name in ours.keys() & theirs.keys():
        if {ours[name].dtype, theirs[name].dtype} == {np.dtype(np.float32), np.dtype(np.float64)}:
            for result in results:
                result[name] = result[name].astype(np.float32)
    return results


def _hint(ours: Arrays, theirs: Arrays, problem: str) -> str:
    """Say why files that seem to hold a call of attention were compared name by name only; else return nothing."""
    if problem:
        return f"The outputs are not compared as those of one call of attention: {problem}"
    known = {*INPUTS, *FUNCTION.arguments, *(name for names in RESULTS.values() for name in names)}
    unknown = [name for name in dict.fromkeys((*ours, *theirs)) if name not in known]
    meant = {name: OTHER_NAMES.get(name) or nearest(name, [*INPUTS, *FUNCTION.arguments]) for name in unknown}
    renamed = [{meant.get(name) or name for name in arrays} for arrays in (ours, theirs)]
    if not all({*INPUTS} <= names and names & {*RESULTS["output"]} for names in renamed):
        return ""
    new = [f"{name} as {other}" for name, other in meant.items() if other]
    left = [name for name, other in meant.items() if not other]
    if new or left:
        parts = [f"save {', '.join(new)}"] * bool(new) + [f"leave out {', '.join(left)}"] * bool(left)
        return f"To compare the outputs as one call of attention, and to find the mistake, {' and '.join(parts)}."
    others = [name for name in ours if name in theirs and name in (*INPUTS, *FUNCTION.arguments)]
    other = [name for name in others if not _same(ours[name], theirs[name])]
    if other:
        return (
            f"{', '.join(other)} differ{'s' * (len(other) == 1)}, so the files hold two different calls of attention."
        )
    return ""


def _results_of(arrays: Arrays) -> dict[str, str]:
    """Map output, weights and lse to their names in a file, without those that it lacks."""
    found = {ours: [name for name in names if name in arrays] for ours, names in RESULTS.items()}
    return {ours: names[0] for ours, names in found.items() if names}


def _returning(arrays: Arrays, names: Mapping[str, str], file: str) -> Callable[..., tuple[Any, ...]]:
    """Make a function of query, key and value that returns a file's results, and is called like the file."""
    results = tuple(arrays[names[one]] if one in names else None for one in RESULTS)

    def stored(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, ...]:
        return results

    stored.__module__, stored.__qualname__ = "", file
    return stored


# One name


def _same(one: Array, other: Array) -> bool:
    """Whether two arrays have equal shapes and numbers."""
    return one.shape == other.shape and bool(_equal_places(one, other).all())


def _equal_places(one: Array, other: Array) -> Array:
    """Tell place by place whether two arrays of one shape are equal; NaN equals NaN."""
    try:
        equal = np.asarray(one == other)
    except TypeError:  # structured arrays with other fields
        return np.zeros(one.shape, np.bool_)
    if one.dtype.kind in "fcmM" and other.dtype.kind in "fcmM":
        equal = equal | ((one != one) & (other != other))
    return equal


def _differ(name: str, ours: Arrays, theirs: Arrays, ulp: float) -> Difference:
    """Compare the arrays of a name."""
    if name not in ours or name not in theirs:
        there, only = (ours, "ours") if name in ours else (theirs, "theirs")
        x = there[name]
        return Difference(name, str(x.shape), x.dtype.name, "-", "-", "-", False, f"only {only} has it")
    one, other = ours[name], theirs[name]
    shape = str(one.shape) if one.shape == other.shape else f"{one.shape} and {other.shape}"
    dtype = one.dtype.name if one.dtype == other.dtype else f"{one.dtype.name} and {other.dtype.name}"
    precisions = [precision_of(x.dtype) for x in (one, other)]
    if one.shape != other.shape:
        return Difference(name, shape, dtype, "-", "-", "-", False, "other shapes")
    if None in precisions or _same(one, other):
        same = _equal_places(one, other)
        number = "0" if same.all() else "-"
        where = "" if same.all() else _where(one, other, same, "first", int(np.argmin(same)))
        return Difference(name, shape, dtype, number, number, number, bool(same.all()), where)
    coarser = min((one for one in precisions if one is not None), key=lambda precision: precision.bits)
    return _differ_in_numbers(name, shape, dtype, one, other, coarser, ulp)


def _differ_in_numbers(
    name: str, shape: str, dtype: str, one: Array, other: Array, precision: Precision, ulp: float
) -> Difference:
    """Compare floats of one shape that differ; ULP are those of the array's largest number."""
    left, right = (as_float32(x).astype(np.float64) for x in (one, other))
    same = _equal_places(left, right)
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(same, 0, np.abs(left - right))
    errors[np.isnan(errors)] = np.inf
    worst = int(np.argmax(errors))
    finite = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in (left, right)]
    largest, error = float(max(finite)), float(errors.flat[worst])
    unit = float(np.ldexp(1.0, int(np.frexp(max(largest, precision.tiny))[1]) - precision.bits))
    equal = error / unit <= ulp
    where = "" if equal else _where(one, other, same, "most", worst)
    relative = error / largest if largest else np.inf
    return Difference(name, shape, dtype, f"{error:.2g}", f"{relative:.2g}", f"{error / unit:.2g}", equal, where)


def _where(one: Array, other: Array, same: Array, word: str, n: int) -> str:
    """Say in how many places two arrays differ, and what they hold at the n-th, which is the first or the worst."""
    place = np.unravel_index(n, one.shape)
    entries = f"{_entry(one[place])} and {_entry(other[place])}"
    if not place:
        return f"differs: {entries}"
    index = ", ".join(str(int(k)) for k in place)
    return f"differs in {int((~same).sum())} of {one.size}, {word} at [{index}]: {entries}"


def _entry(x: Any) -> str:
    """Write an entry of an array in one short line."""
    text = ascii(x.item()) if x.dtype.kind in "SUV" else str(x)
    return text if len(text) <= _MAX_ENTRY else f"{text[:_MAX_ENTRY]}..."


# The text

_HEADS = ("name", "shape", "dtype", "max abs error", "relative", "ULP")


def _lines(
    files: Sequence[str], found: Sequence[Difference], differ: Sequence[str], report: Comparison | None, ulp: float
) -> Iterator[str]:
    """Yield the table, the report on attention, and the verdict."""
    yield from (f"ours    {files[0]}", f"theirs  {files[1]}", "")
    rows = [_HEADS, *((_printable(one.name), *one[1:6]) for one in found)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEADS))]
    for row, remark in zip(rows, ("", *(one.remark for one in found)), strict=True):
        cells = [
            cell.ljust(width) if n < 3 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip() + (f"  <- {remark}" if remark else "")
    yield from ("", "relative, ULP: the error over the array's largest number, and over that number's last place.")
    if report is not None:
        yield from ("", "Both files hold one call of attention with the same inputs. Its results, against the formula:")
        yield from ("", *str(report).splitlines()[3:])
    elif not differ:
        number = f"{len(found)} array{'s' * (len(found) != 1)}"
        within = f"agree within {ulp:g} ULP" if ulp else "are the same"
        yield from ("", f"Equal: the numbers of {number} {within}.")
    if differ:
        yield from ("", f"Different: {', '.join(map(_printable, differ))}.")


def _printable(name: str) -> str:
    """Escape a name that would break its line, or that controls a terminal."""
    return name if name.isprintable() else ascii(name)[1:-1]
