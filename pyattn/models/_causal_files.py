"""The tensors of a published decoder: its own, and the head, which may be the embedding once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn.io.config import Config
from pyattn.io.safetensors import Stored
from pyattn.models._files import ModelFiles
from pyattn.models._parts import Arrays
from pyattn.models._weights import Shapes, fit, without_prefix
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear

__all__ = ["Decoder", "fit_decoder", "require_a_decoder"]

HEAD = "lm_head.weight"

# Keys that ask for another computation, with the values that do not.
USUAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "layer_types": (),
    "quantization_config": (),
    "auto_map": (),  # code of the model's own
}


class Decoder(NamedTuple):
    """What a decoder is made of.

    Attributes
    ----------
    arrays : mapping of str to ndarray
        By published names, without the model's own prefix.
    embedding : Embedding
        Of the tokens.
    head : Linear or None
        With the embedding's own weight where they are tied; None where the files have none.
    missing, unused : list of str
        Names of tensors that are not there, and that are not used.
    """

    arrays: Arrays
    embedding: Embedding
    head: Linear | None
    missing: list[str]
    unused: list[str]


def require_a_decoder(config: Config, more: dict[str, tuple[Any, ...]]) -> None:
    """Refuse configurations of models that compute otherwise.

    Parameters
    ----------
    config : Config
        Of a model.
    more : dict of str to tuple
        Keys of its family, and the values that ask for nothing special.

    Raises
    ------
    ValueError
        It is of another model; the message names the key.
    """
    config.require(USUAL | more)


def fit_decoder(
    files: ModelFiles,
    shapes: Shapes,
    words: str,
    prefix: str,
    *,
    tied: bool,
    strict: bool,
    dtype: npt.DTypeLike | None,
) -> Decoder:
    """Take what a decoder needs.

    Where config.json says that weights are tied, one of the two is enough; where the file has both and they differ,
    each has its own, as transformers has it since version 5.

    Parameters
    ----------
    files : ModelFiles
        Of the model.
    shapes : dict of str to tuple of int
        Names and shapes of all but the head.
    words : str
        The embedding's name among them.
    prefix : str
        What names begin with where a head is in the same file.
    tied : bool
        Head and embedding have one weight.
    strict : bool
        Do not do without a head.
    dtype : dtype, optional
        As for `pyattn.models.load`.

    Returns
    -------
    Decoder
        With views of the files, as `pyattn.models._weights.fit` makes them.
    """
    rename, tensors = without_prefix(prefix), files.tensors
    own = next((tensor for key, tensor in tensors.items() if rename(key) == words), None)
    head = tensors.get(HEAD)
    if tied and own is None and head is not None:
        rename = _calling(HEAD, words, rename)
    apart = not tied or (own is not None and head is not None and not _are_equal(own, head))
    more: Shapes = {HEAD: shapes[words]} if apart else {}
    optional = [HEAD] if apart and not tied else []
    arrays, missing, unused = fit(files, shapes | more, rename, optional=optional, strict=strict, dtype=dtype)
    weight = arrays[words] if not apart else arrays.get(HEAD)
    generator = None if weight is None else Linear.from_arrays(weight)
    return Decoder(arrays, Embedding.from_pretrained(arrays[words]), generator, missing, unused)


def _calling(key: str, name: str, rename: Callable[[str], str]) -> Callable[[str], str]:
    return lambda other: name if other == key else rename(other)


def _are_equal(one: Stored, other: Stored) -> bool:
    return one[:2] == other[:2] and bool(np.array_equal(one.raw, other.raw))
