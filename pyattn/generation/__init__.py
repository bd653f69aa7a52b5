"""Generate text by greedy search, sampling or beam search.

`pyattn.generate` is the main function. It takes a module of `pyattn.nn` or `pyattn.models`, or any object with the
`begin` method of `Decodable`. `CachedDecoding` runs modules with a KV cache, `UncachedDecoding` without one.
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.generation._generate import generate
from pyattn.generation.decoding import CachedDecoding, Decodable, Decoding, UncachedDecoding
from pyattn.generation.result import Generation, GenerationStep, RowStep
from pyattn.generation.sequences import add_special_tokens, pad_sequences, shift_right
from pyattn.nn.transformer.decoding import ModelStep

__all__ = [
    "CachedDecoding",
    "Decodable",
    "Decoding",
    "Generation",
    "GenerationStep",
    "ModelStep",
    "RowStep",
    "UncachedDecoding",
    "add_special_tokens",
    "generate",
    "pad_sequences",
    "shift_right",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)
