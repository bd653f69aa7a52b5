"""`python -m pyattn embed`: how near sentences are to one another."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from pyattn.models.sentences import SentenceEncoder

__all__ = ["embed"]


def embed(sentences: Sequence[str], path: str | None) -> int:
    """Print the similarity of each pair of sentences: the cosine of the angle between their vectors.

    Parameters
    ----------
    sentences : sequence of str
        Two or more.
    path : str or None
        Folder of a model; None is MiniLM.

    Returns
    -------
    int
        2 where there are fewer sentences, or the model cannot be read, else 0.
    """
    try:
        if len(sentences) < 2:
            raise ValueError(f"got {len(sentences)} sentence, expected two or more")
        encoder = SentenceEncoder.load(path)
        encoder.normalize = True
        vectors = encoder.encode(sentences)
    except (ImportError, OSError, ValueError) as problem:
        print(f"python -m pyattn embed: {problem}", file=sys.stderr)
        return 2
    for one, other in itertools.combinations(range(len(sentences)), 2):
        about = f"  {sentences[one]} | {sentences[other]}" if len(sentences) > 2 else ""
        print(f"{float(vectors[one] @ vectors[other]):.4f}{about}")
    return 0
