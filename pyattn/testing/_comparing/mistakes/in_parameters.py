"""Mistakes in projections, and in what is done with inputs and output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pyattn.testing._comparing.formula import Affine, Array, Formula
from pyattn.testing._comparing.mistakes.mistake import Mistake
from pyattn.testing._comparing.rounding import Precision

__all__ = ["in_parameters", "other_parameters", "unequal_parameters"]

_NAMES = ("query", "key", "value")
_SAME = "make both with the same options, and load the same state_dict into both"


def in_parameters(formula: Formula) -> Iterator[Mistake]:
    """Yield what may be wrong around an attention, the common first.

    Parameters
    ----------
    formula : Formula
        The right one, with projections or a linear layer alone.

    Yields
    ------
    Mistake
    """
    if formula.projections is not None:
        yield from _transposed(formula, formula.projections)
        yield from _without_biases(formula, formula.projections)
        if formula.out is not None:
            yield from _packed(formula, formula.projections)
            yield from _turned(formula)
        for extras in ((), formula.extras[1:], formula.extras[:-1]) if formula.extras else ():
            what, fix = "leaves out keys of add_bias_kv or add_zero_attn", "append them to key and value"
            yield Mistake("extra keys missing", "key", what, fix, formula.but(extras=extras))
    if formula.out is not None:
        yield from _output(formula, formula.out)


def _transposed(f: Formula, projections: tuple[Affine, ...]) -> Iterator[Mistake]:
    for places in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)):
        if any(projections[n].weight.shape[0] != projections[n].weight.shape[1] for n in places):
            continue
        other = _changed(projections, places, lambda one: one._replace(weight=one.weight.T))
        what = f"has the weights of {_list(places)} transposed"
        fix = "weights are (out_features, in_features): x @ weight.T"
        yield Mistake("weights transposed", _NAMES[places[0]], what, fix, f.but(projections=other))


def _without_biases(f: Formula, projections: tuple[Affine, ...]) -> Iterator[Mistake]:
    there = [n for n in range(3) if projections[n].bias is not None]
    for places in ([tuple(there)] if len(there) > 1 else []) + [(n,) for n in there]:
        other = _changed(projections, places, lambda one: one._replace(bias=None))
        what, fix = f"leaves out the bias of {_list(places)}", "add it: x @ weight.T + bias"
        yield Mistake("biases missing", _NAMES[places[0]], what, fix, f.but(projections=other))
    if there and f.out is not None and f.out.bias is not None:
        none = _changed(projections, tuple(there), lambda one: one._replace(bias=None))
        what, fix = "leaves out all biases", "add them: x @ weight.T + bias"
        everything = f.but(projections=none, out=f.out._replace(bias=None))
        yield Mistake("biases missing", "query", what, fix, everything)


def _packed(f: Formula, projections: tuple[Affine, ...]) -> Iterator[Mistake]:
    """Yield in_proj_weight in another order than query, key, value."""
    if len({one.weight.shape for one in projections}) > 1:
        return
    weight = np.concatenate([one.weight for one in projections])
    bias = None if projections[0].bias is None else np.concatenate([one.bias for one in projections])
    size = len(weight) // 3
    for heads, what in ((f.heads, "head by head"), (size, "feature by feature")):
        places = np.arange(3 * size).reshape(heads, 3, size // heads).swapaxes(0, 1).ravel()
        if heads == 1:
            continue
        fix = "its first third is query's, then key's, then value's"
        for order, does in ((places, "reads"), (np.argsort(places), "has")):
            parts = np.split(order, 3)
            one, two, three = (Affine(weight[part], None if bias is None else bias[part]) for part in parts)
            sentence = f"{does} the rows of in_proj_weight {what}, each with its query, key and value"
            yield Mistake("packed by heads", "query", sentence, fix, f.but(projections=(one, two, three)))


def _turned(f: Formula) -> Iterator[Mistake]:
    if f.query.ndim != 3:
        return
    inputs: dict[str, Any] = dict(zip(_NAMES, (x.swapaxes(0, 1) for x in (f.query, f.key, f.value)), strict=True))
    given, read = ("(L, N, E)", "(N, L, E)") if f.turn else ("(N, L, E)", "(L, N, E)")
    what, fix = f"reads inputs as {read}, batch_first={f.turn}", f"here they are {given}, batch_first={not f.turn}"
    yield Mistake("batch_first misread", "query", what, fix, f.but(**inputs, turn=not f.turn))


def _output(f: Formula, out: Affine) -> Iterator[Mistake]:
    of = "" if f.is_linear else " of the output's projection"
    fix = "y = x @ weight.T + bias"
    if out.weight.shape[0] == out.weight.shape[1]:
        if not f.is_linear:
            what = "leaves out the output's projection"
            yield Mistake("output projection missing", "output", what, "multiply with out_proj", f.but(out=None))
        turned = f.but(out=out._replace(weight=out.weight.T))
        yield Mistake("weights transposed", "output", f"has the weight{of} transposed", fix, turned)
    if out.bias is not None:
        alone = f.but(out=out._replace(bias=None))
        yield Mistake("biases missing", "output", f"leaves out the bias{of}", fix, alone)


def _changed(projections: tuple[Affine, ...], places: tuple[int, ...], change: Any) -> Any:
    return tuple(change(one) if n in places else one for n, one in enumerate(projections))


def _list(places: tuple[int, ...]) -> str:
    *most, last = (_NAMES[n] for n in places)
    return f"{', '.join(most)} and {last}" if most else last


def other_parameters(formula: Formula, other: Formula) -> Iterator[Mistake]:
    """Yield the options and parameters of another module, one at a time, then all.

    Parameters
    ----------
    formula : Formula
        Of one module.
    other : Formula
        Of another of its kind.

    Yields
    ------
    Mistake
    """
    fix = _SAME
    for n, name in enumerate(_NAMES if formula.projections and other.projections else ()):
        mixed = _changed(formula.projections, (n,), lambda _, n=n: other.projections[n])  # type: ignore[arg-type,index]
        yield Mistake("other parameters", name, f"has other weights for {name}", fix, formula.but(projections=mixed))
    what = "has other weights for the output"
    yield Mistake("other parameters", "output", what, fix, formula.but(out=other.out))
    what = "has another bias_k or bias_v, or add_zero_attn"
    yield Mistake("other parameters", "key", what, fix, formula.but(extras=other.extras))
    same = {name: getattr(other, name) for name in ("projections", "out", "heads", "kv_heads", "extras")}
    yield Mistake("other parameters", "query", "has other parameters throughout", fix, formula.but(**same))


def unequal_parameters(formula: Formula, other: Formula, precision: Precision) -> Iterator[Mistake]:
    """Yield each parameter of another module that is not this one's, cast from one dtype to the other.

    Results cannot tell: what rounding may explain of them grows with every sum, and a cast rounds once.

    Parameters
    ----------
    formula : Formula
        Of one module.
    other : Formula
        Of another of its kind.
    precision : Precision
        The coarser of the two.

    Yields
    ------
    Mistake
    """
    for stage, name, here, there in _pairs(formula, other):
        if here.shape != there.shape:
            continue  # which the stages show
        error = np.abs(here - there)
        allowed = precision.u * (np.maximum(np.abs(here), np.abs(there)) + precision.tiny)
        if (error > allowed).any():
            place = np.unravel_index(int(np.argmax(error - allowed)), error.shape)
            where = ", ".join(map(str, place))
            what = f"has another {name}: [{where}] is {there[place]:.6g} and not {here[place]:.6g}"
            rounds = f", which a cast to {precision.name} does not explain"
            yield Mistake("other parameters", stage, what + rounds, _SAME, formula)


def _pairs(formula: Formula, other: Formula) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield stage, name and numbers of each parameter; a bias that is not there is 0."""
    layers: list[tuple[str, str, Affine, Affine]] = []
    if formula.projections is not None and other.projections is not None:
        layers += zip(_NAMES, _NAMES, formula.projections, other.projections, strict=True)
    if formula.out is not None and other.out is not None:
        layers.append(
            ("output", "the layer" if formula.is_linear else "the output's projection", formula.out, other.out)
        )
    for stage, layer, here, there in layers:
        yield stage, f"weight of {layer}", here.weight, there.weight
        ours, theirs = (np.zeros(len(one.weight)) if one.bias is None else one.bias for one in (here, there))
        yield stage, f"bias of {layer}", ours, theirs
    for one, two in zip(formula.extras, other.extras, strict=False):
        yield "key", "bias_k", one[0], two[0]
        yield "value", "bias_v", one[1], two[1]
