"""Mistakes that no formula can predict, and that are read off a side's numbers: dropout, rounded results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pyattn.comparing.formula import Array, Formula, compute
from pyattn.comparing.mistakes.mistake import Mistake

__all__ = ["in_results", "unsteady"]

MOST_DECIMALS = 8


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
