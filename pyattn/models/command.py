"""`python -m pyattn embed`: print how similar sentences are."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from pyattn.models.sentences import SentenceEncoder

__all__ = ["embed"]


def embed(sentences: Sequence[str], path: str | None) -> int:
    """Print the cosine similarity of each pair of sentences; return 0, or 2 after printing an error."""
    try:
        if len(sentences) < 2:
            raise ValueError("one sentence has none to compare with: pass two or more")
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
