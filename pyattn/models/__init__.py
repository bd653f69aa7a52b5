"""Load published models from config.json and .safetensors files on disk.

Nothing is downloaded. `pyattn.models.examples` has a tiny model that is part of the package.
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.models import examples
from pyattn.models.bert import Bert, EncoderOutput
from pyattn.models.decoder import CausalOutput
from pyattn.models.gpt2 import GPT2
from pyattn.models.llama import Llama
from pyattn.models.loading import load
from pyattn.models.sentences import SentenceEncoder, find_minilm

__all__ = [
    "GPT2",
    "Bert",
    "CausalOutput",
    "EncoderOutput",
    "Llama",
    "SentenceEncoder",
    "examples",
    "find_minilm",
    "load",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)
