"""The options of `generate`, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np

from pyattn._util.arguments import as_count, as_finite, as_flag

__all__ = ["EarlyStopping", "Options", "TokenIds", "as_token_ids"]

TokenIds: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None
EarlyStopping: TypeAlias = "bool | Literal['never']"

MOST_LENGTH_PENALTY = 50
"""Of either sign: a million tokens to that power are still a float."""


@dataclass(frozen=True)
class Options:
    """How tokens are chosen: the arguments of `generate` by their names, end symbols as a tuple.

    Parameters
    ----------
    max_new_tokens : int
        As for `generate`, as all others.
    eos_token_ids : tuple of int
        End symbols.
    min_new_tokens : int
        Default: 0.
    do_sample : bool
        Default: False.
    num_beams : int
        Default: 1.
    num_return_sequences : int
        Default: 1.
    temperature : float
        Default: 1.0.
    top_k : int, optional
        Default: None.
    top_p : float, optional
        Default: None.
    repetition_penalty : float
        Default: 1.0.
    length_penalty : float
        Default: 1.0.
    early_stopping : bool or 'never'
        Default: False.
    """

    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    min_new_tokens: int = 0
    do_sample: bool = False
    num_beams: int = 1
    num_return_sequences: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @classmethod
    def read(cls, *, eos_token_id: TokenIds, **given: Any) -> Options:
        """Read and check what the caller gave: the other options by their names.

        Parameters
        ----------
        eos_token_id : int, sequence of int or None
            End symbols.

        Returns
        -------
        Options

        Raises
        ------
        TypeError
            An option is of another type.
        ValueError
            One is out of range, or has no effect beside the others.
        """
        counts: dict[str, int] = {"max_new_tokens": 1, "min_new_tokens": 0, "num_beams": 1, "num_return_sequences": 1}
        read: dict[str, Any] = {name: as_count(given[name], name, least=least) for name, least in counts.items()}
        read["do_sample"] = as_flag(given["do_sample"], "do_sample")
        for name in ("temperature", "repetition_penalty"):
            read[name] = as_finite(given[name], name, above=0)
        read["length_penalty"] = as_finite(given["length_penalty"], "length_penalty")
        if abs(read["length_penalty"]) > MOST_LENGTH_PENALTY:
            most = MOST_LENGTH_PENALTY
            raise ValueError(f"length_penalty is {given['length_penalty']}, expected -{most} to {most}")
        top_k, top_p, stopping = given["top_k"], given["top_p"], given["early_stopping"]
        read["top_k"] = None if top_k is None else as_count(top_k, "top_k", least=1)
        read["top_p"] = None if top_p is None else as_finite(top_p, "top_p", above=0)
        if top_p is not None and read["top_p"] > 1:
            raise ValueError(f"top_p is {top_p}, expected a probability above 0, up to 1")
        never = isinstance(stopping, str) and stopping == "never"
        if not never and not isinstance(stopping, (bool, np.bool_)):
            raise ValueError(f"early_stopping is {stopping!r}, expected True, False or 'never'")
        read["early_stopping"] = "never" if never else bool(stopping)
        options = cls(eos_token_ids=as_token_ids(eos_token_id, "eos_token_id"), **read)
        options._check_together()
        return options

    def _check_together(self) -> None:
        """Refuse what contradicts, or would have no effect: that is mostly a mistake."""
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens is {self.min_new_tokens}, and max_new_tokens {self.max_new_tokens}")
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample is True and num_beams {self.num_beams}: beams are not sampled; leave out one")
        for name in ("temperature", "top_k", "top_p"):
            if not self.do_sample and getattr(self, name) != getattr(Options, name):
                raise ValueError(f"{name} is {getattr(self, name)} without do_sample=True: it warps what is sampled")
        for name in ("length_penalty", "early_stopping"):
            if self.num_beams == 1 and getattr(self, name) != getattr(Options, name):
                raise ValueError(f"{name} is {getattr(self, name)!r} with num_beams=1: it ranks beams")
        several = self.num_return_sequences
        if not self.do_sample and several > self.num_beams:
            raise ValueError(
                f"num_return_sequences is {several} and num_beams {self.num_beams}: expected no more than there are "
                "beams, or do_sample=True"
            )


def as_token_ids(x: TokenIds, name: str) -> tuple[int, ...]:
    """Read one token id, several or none.

    Parameters
    ----------
    x : int, sequence of int or None
        Of 0 or more.
    name : str
        What messages call it.

    Returns
    -------
    tuple of int

    Raises
    ------
    TypeError
        There are no ints.
    ValueError
        One is negative.
    """
    if x is None:
        return ()
    if isinstance(x, (list, tuple, np.ndarray)) and np.ndim(x) == 1:
        return tuple(as_count(one, f"{name}[{n}]", least=0) for n, one in enumerate(x))
    return (as_count(x, name, least=0),)  # type: ignore[arg-type]
