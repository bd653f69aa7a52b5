"""Generating tokens with a model: greedy search, sampling, beams, and what a model must offer for it.

`pyattn.generate` does it. It works with any model that has a `begin`, as `Decodable` says, and with modules that are
called with ids, by running all of them at every step (`Recomputing`).
"""

from pyattn.generation.cached import Cached
from pyattn.generation.generating import generate
from pyattn.generation.protocol import Decodable, Decoding, Step
from pyattn.generation.recomputing import Recomputing
from pyattn.generation.result import Generation, GenerationStep, RowStep
from pyattn.generation.sequences import add_special_tokens, pad_sequences, shift_right

__all__ = [
    "Cached",
    "Decodable",
    "Decoding",
    "Generation",
    "GenerationStep",
    "Recomputing",
    "RowStep",
    "Step",
    "add_special_tokens",
    "generate",
    "pad_sequences",
    "shift_right",
]
