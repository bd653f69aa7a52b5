"""Mistakes that no formula can predict, and that are read off a side's numbers: dropout, a factor, rounded results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pyattn.testing._comparing.formula import Array, Formula, compute
from pyattn.testing._comparing.mistakes.mistake import Mistake

__all__ = ["in_results", "is_systematic", "unsteady"]

MOST_DECIMALS = 8
FEWEST = 20
"""Errors that a pattern is seen in."""


def in_results(formula: Formula, rows: Mapping[str, Array]) -> Iterator[Mistake]:
    """Yield what the numbers themselves look like.

    Parameters
    ----------
    formula : Formula
        The right one.
    rows : mapping of str to ndarray
        What a side gives for some stages.

    Yields
    ------
    Mistake
    """
    yield from _dropped(formula, rows)
    yield from _rounded(formula, rows)
    if "output" in rows and np.isfinite(rows["output"]).all():
        yield from _fitted(formula, rows["output"])


def is_systematic(error: Array, right: Array) -> bool:
    """Tell errors with a pattern from those of rounding, which are as often above as below, whatever the number.

    Parameters
    ----------
    error, right : ndarray
        Of one shape, and finite.

    Returns
    -------
    bool
        Most errors have one sign, or they go with the numbers: such as 20 coins would not fall by chance.
    """
    signs = np.sign(error)[error != 0]
    if signs.size < FEWEST:
        return False
    with np.errstate(all="ignore"):
        alike = np.sum(error * right) / np.sqrt(np.square(error).sum() * np.square(right).sum())
    return bool(max(abs(signs.mean()), abs(alike)) > 0.8)


def _fitted(f: Formula, output: Array) -> Iterator[Mistake]:
    """Yield a factor or a summand of the output, of the scores or of the softmax's sum that fits best."""
    computed = compute(f)
    right = computed.stages["output"]
    if right.shape != output.shape or not right.any() or not np.isfinite(right).all():
        return
    factor = float(np.sum(output * right) / np.square(right).sum())
    what = f"multiplies the output by {factor:.6g}" if factor else "gives nothing but zeros"
    fix = "return weights @ value"
    yield Mistake("output multiplied", "output", what, fix, f.but(keep=_at_output(lambda x: factor * x)))
    more = float(np.mean(output - right))
    what = f"adds {more:.3g} to the output"
    yield Mistake("output shifted", "output", what, fix, f.but(keep=_at_output(lambda x: x + more)))
    if f.is_linear:
        return
    scale = _best_scale(f, output)
    what, fix = f"scales the scores by {scale:.6g}", f"multiply them by {f.factor:.6g}"
    if abs(scale) < 1e-4 * abs(f.factor):
        what, fix = "gives all keys the same weight", "weigh the values with the softmax of the scores"
    yield Mistake("scale of another size", "scores", what, fix, f.but(scale=scale))
    if f.projections is not None:
        return
    shares = np.sum(output * right, axis=-1) / np.square(right).sum(axis=-1)  # what each row's weights sum to
    shares = shares.swapaxes(-2, -1) if f.layout == "bshd" else shares
    fix = "divide the exponentials by their sum over the keys alone"
    scores = np.where(computed.visible, computed.stages["scores"], -np.inf)
    for shift, of in ((scores.max(axis=-1, keepdims=True), ", after the maximum is subtracted"), (0.0, "")):
        total = np.exp(scores - shift).sum(axis=-1)
        summand = float(np.median(total * (1 / shares - 1)))
        kept = (total / (total + summand))[..., np.newaxis]
        what = f"adds {summand:.3g} to the sum that the exponentials are divided by{of}"
        added = f.but(normalize=lambda scores, visible, kept=kept: kept * f.steps.normalize(scores, visible))
        yield Mistake("one more in the sum", "weights", what, fix, added)


def _at_output(change: Callable[[Array], Array]) -> Callable[[Array, str], Array]:
    return lambda x, stage: change(x) if stage == "output" else x


def _best_scale(f: Formula, output: Array) -> float:
    """Fit the scale by a few steps of Newton's method, from the right one."""
    scale = f.factor
    for _ in range(4):
        step = 1e-6 * scale
        here, there = (compute(f.but(scale=x)).stages["output"] for x in (scale, scale + step))
        slope = (there - here) / step
        with np.errstate(all="ignore"):
            scale += float(np.sum(slope * (output - here)) / np.square(slope).sum())
    return scale


def _dropped(f: Formula, rows: Mapping[str, Array]) -> Iterator[Mistake]:
    """Weights of 0 where there should be some, the others as many times as large."""
    weights, right = rows.get("weights"), compute(f).weights
    if weights is None or right is None or weights.shape != right.shape:
        return
    kept = weights != 0
    if kept[right > 0].all() or not kept.any():
        return
    factor = float(np.median(weights[kept] / right[kept]))
    dropped = f.but(normalize=lambda scores, visible: np.where(kept, right * factor, 0))
    if abs(factor - 1) < 1e-3:
        what, fix = (
            "drops weights without dividing the others by 1 - p",
            "divide by 1 - p, so that sums stay as they are",
        )
        yield Mistake("dropout not scaled", "weights", what, fix, dropped)
    else:
        what, fix = f"drops weights, with p near {1 - 1 / factor:.2g}", "compare without dropout: eval(), dropout_p=0.0"
        yield Mistake("dropout", "weights", what, fix, dropped)


def _rounded(f: Formula, rows: Mapping[str, Array]) -> Iterator[Mistake]:
    """Numbers of a few decimals, as they are printed."""
    found = {name: rows[name] for name in ("weights", "output") if name in rows}
    if "output" in found:
        found["output"] = f.turned(found["output"])  # turned twice, as it is kept
    decimals = {name: _decimals(x) for name, x in found.items()}
    few = [name for name, n in decimals.items() if n is not None]
    for names in ([few] if len(few) > 1 else []) + [[name] for name in few]:

        def keep(x: Array, stage: str, names: list[str] = names) -> Array:
            if stage not in names or found[stage].shape != x.shape:
                return x
            half = 0.501 * 10.0 ** -(decimals[stage] or 0)
            return np.where(abs(x - found[stage]) <= half, found[stage], x)

        what = f"rounds {' and '.join(names)} to {decimals[names[0]]} decimals"
        yield Mistake("rounded", names[0], what, "keep all digits", f.but(keep=keep))


def _decimals(x: Array) -> int | None:
    """How many decimals all numbers have, but for float32's own rounding."""
    with np.errstate(all="ignore"):
        fits = (n for n in range(MOST_DECIMALS) if (np.abs(x - x.round(n)) <= 2.0**-22 * np.abs(x)).all())
        return next(fits, None)


def unsteady(formula: Formula, dropout: str | None) -> Mistake:
    """Say what gives other numbers in a second call.

    Parameters
    ----------
    formula : Formula
        The right one.
    dropout : str or None
        How the side is told to drop weights, if it is.

    Returns
    -------
    Mistake
    """
    if dropout is None:
        what = "gives other numbers when it is called again, as dropout does"
        fix = "call eval() first, or take out what is random"
        return Mistake("random", "output", what, fix, formula)
    return Mistake(
        "dropout", "weights", f"drops weights, {dropout}", "call eval() first, or pass dropout_p=0.0", formula
    )
