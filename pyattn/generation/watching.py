"""Who looks on while tokens are generated: steps that are kept, the caller's function, and a bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.functional._topk import TopK, top_k
from pyattn.generation.protocol import IntArray, Step
from pyattn.generation.result import GenerationStep

__all__ = ["Continuations", "Watch"]

Callback = Callable[[GenerationStep], bool | None]
BEST = 6  # the likeliest tokens of a row: one may be that which was chosen


class Continuations(NamedTuple):
    """The tokens of a step, and the rows they follow."""

    tokens: IntArray
    parents: IntArray


class Watch:
    """Shows each step to those who want to see it; as a context, it closes the bar.

    Parameters
    ----------
    callback : callable or None
        Takes a `GenerationStep`; True stops.
    keeps : bool
        Steps are kept.
    progress : bool
        With a bar.
    most : int
        How many steps there are at most.
    """

    def __init__(self, callback: Callback | None, keeps: bool, progress: bool, most: int) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(f"callback is of type {type(callback).__name__}, expected a function of a step")
        self._callback = callback
        self.steps: list[GenerationStep] | None = [] if keeps else None
        self._bar = _make_bar(most) if progress else None

    def __enter__(self) -> Watch:
        """Begin to look on."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

    @property
    def looks(self) -> bool:
        """Whether anybody wants to see the steps."""
        return self._callback is not None or self.steps is not None

    def see(
        self,
        number: int,
        step: Step,
        log_probabilities: FloatArray,
        entries: IntArray,
        inputs: Sequence[IntArray],
        chosen: Continuations,
    ) -> bool:
        """Show a step.

        Parameters
        ----------
        number : int
            Counted from 0.
        step : Step
            What the model gave.
        log_probabilities : ndarray, (rows, vocabulary)
            Of its logits.
        entries : ndarray of int, (rows,)
            Which sequence of the batch each row belongs to.
        inputs : sequence of ndarray of int
            All tokens of each row so far.
        chosen : Continuations
            What follows.

        Returns
        -------
        bool
            Whether the caller has seen enough.

        Raises
        ------
        TypeError
            The callback returned neither None nor a bool.
        """
        if self._bar is not None:
            self._bar.update(1)
        if not self.looks:
            return False
        best, places = top_k(log_probabilities, min(BEST, log_probabilities.shape[-1]))
        shares = np.exp(log_probabilities[chosen.parents, chosen.tokens])
        seen = GenerationStep(
            number,
            entries,
            list(inputs),
            *chosen,
            shares,
            TopK(np.exp(best), places),
            step.self_weights,
            step.cross_weights,
        )
        if self.steps is not None:
            self.steps.append(seen)
        answer = None if self._callback is None else self._callback(seen)
        if answer is not None and not isinstance(answer, (bool, np.bool_)):
            raise TypeError(f"callback returned {answer!r}, expected True to stop, False or None")
        return bool(answer)


def _make_bar(most: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        raise ImportError("progress=True needs the package tqdm; install pyattn[progress], or leave it out") from None
    return tqdm(total=most, unit="token")
