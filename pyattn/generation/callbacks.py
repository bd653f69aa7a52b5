"""Record the steps of `generate`: call the callback, keep the steps, and update the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import pyattn.functional as functional
from pyattn._util.typing import FloatArray, IntArray
from pyattn.generation.result import GenerationStep
from pyattn.nn.transformer.decoding import ModelStep

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["Callback", "StepRecorder"]

Callback: TypeAlias = "Callable[[GenerationStep], bool | None]"

NUM_BEST = 6  # most likely tokens to keep: the chosen one and 5 alternatives


class StepRecorder:
    """Calls the callback, keeps the steps and moves the progress bar; leaving its context closes the bar."""

    def __init__(self, callback: Callback | None, return_steps: bool, progress: bool, max_new_tokens: int) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(f"callback is of type {type(callback).__name__}, expected a function of a GenerationStep")
        self._callback = callback
        self.steps: list[GenerationStep] | None = [] if return_steps else None
        self._bar = _make_bar(max_new_tokens) if progress else None

    def __enter__(self) -> StepRecorder:
        """Return the recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()

    @property
    def needs_steps(self) -> bool:
        """Whether steps are passed to a callback or returned."""
        return self._callback is not None or self.steps is not None

    def record(
        self,
        number: int,
        step: ModelStep,
        log_probs: FloatArray,
        batch_indices: IntArray,
        inputs: Sequence[IntArray],
        tokens: IntArray,
        parents: IntArray,
    ) -> bool:
        """Make a GenerationStep if it is needed, and return whether the callback asks to stop."""
        if self._bar is not None:
            self._bar.update(1)
        if not self.needs_steps:
            return False
        best, best_tokens = functional.topk(log_probs, min(NUM_BEST, log_probs.shape[-1]))
        made = GenerationStep(
            number=number,
            batch_indices=batch_indices,
            decoder_inputs=list(inputs),
            tokens=tokens,
            parents=parents,
            probabilities=np.exp(log_probs[parents, tokens]),
            best=functional.TopK(np.exp(best), best_tokens),
            self_weights=step.self_weights,
            cross_weights=step.cross_weights,
        )
        if self.steps is not None:
            self.steps.append(made)
        answer = None if self._callback is None else self._callback(made)
        if answer is not None and not isinstance(answer, (bool, np.bool_)):
            raise TypeError(f"callback returned {answer!r}, expected True to stop, or False or None to go on")
        return bool(answer)


def _make_bar(total: int) -> tqdm[Any]:
    """Make a tqdm progress bar."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install tqdm, or leave progress out") from None
    return tqdm(total=total, unit="token")
