"""A tiny model that is part of the package.

It translates fifteen sentences, to show decoding step by step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyattn.io as io
from pyattn.nn import Seq2SeqTransformer

__all__ = ["Student", "student"]

_WEIGHTS = Path(__file__).with_name("student.safetensors")
_SOURCE_WORDS: tuple[str, ...] = ("<pad>", "je", "tu", "il", "suis", "es", "est")
_SOURCE_WORDS += ("étudiant", "artiste", "ingénieur", "médecin", "professeur")
_TARGET_WORDS: tuple[str, ...] = ("<pad>", "<s>", "<end>", "I", "you", "he", "am", "are", "is", "a", "an")
_TARGET_WORDS += ("student", "artist", "engineer", "doctor", "teacher")
_SIZES: dict[str, Any] = {
    "d_model": 8,
    "nhead": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dim_feedforward": 16,
}


class Student(NamedTuple):
    """The result of `student`: a model and its words.

    Attributes
    ----------
    model : Seq2SeqTransformer
        In evaluation mode: one encoder and one decoder layer, 2 heads, 8 features, 1,900 parameters in float32.
    source_words : tuple of str
        The words of the source; a word's index is its token id.
    target_words : tuple of str
        The words of the translation, with the start symbol ``<s>`` and the end symbol ``<end>``.
    """

    model: Seq2SeqTransformer
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]


def student() -> Student:
    """Load a tiny model that translates "je suis étudiant" into "I am a student".

    It knows ``je suis``, ``tu es`` and ``il est``, followed by one of five professions. PyTorch trained it on all of
    these fifteen sentences (``tools/training/train_student.py``). It translates nothing else. French has no article
    there: the model must choose "a" or "an" by the noun.

    Returns
    -------
    Student
        A new model, and its words.

    Examples
    --------
    >>> import pyattn
    >>> model, source_words, target_words = pyattn.models.examples.student()
    >>> source = [source_words.index(word) for word in "je suis étudiant".split()]
    >>> start, end = target_words.index("<s>"), target_words.index("<end>")
    >>> generation = pyattn.generate(
    ...     model, source, max_new_tokens=9, start_token_id=start, eos_token_id=end, return_steps=True
    ... )
    >>> for step in generation.row_steps():
    ...     before = " ".join(target_words[token] for token in step.decoder_input)
    ...     print(f"step {step.number + 1}: {before} -> {target_words[step.token]}")
    step 1: <s> -> I
    step 2: <s> I -> am
    step 3: <s> I am -> a
    step 4: <s> I am a -> student
    step 5: <s> I am a student -> <end>
    """
    words = len(_SOURCE_WORDS), len(_TARGET_WORDS)
    model = Seq2SeqTransformer(*words, **_SIZES, padding_idx=0, max_length=16).eval()
    model.load_state_dict(io.load(_WEIGHTS))
    return Student(model, _SOURCE_WORDS, _TARGET_WORDS)
