"""Published models, from files on disk: config.json and .safetensors, without a copy and without a network.

`pyattn.models.examples` has a tiny one that comes with the package.
"""

from pyattn.models import bert, examples, gpt2, llama
from pyattn.models.loading import load
from pyattn.models.sentences import SentenceEncoder, find_minilm

__all__ = ["SentenceEncoder", "bert", "examples", "find_minilm", "gpt2", "llama", "load"]
