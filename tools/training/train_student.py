"""Trains the tiny model of pyattn.models.examples with PyTorch, some seconds, and writes its weights into the package.

python tools/training/train_student.py
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch_translator import Translator, arrays_of, train

from pyattn import nn
from pyattn.models import examples

SUBJECTS = {"je suis": "I am", "tu es": "you are", "il est": "he is"}
PROFESSIONS = {
    "étudiant": "a student",
    "artiste": "an artist",
    "ingénieur": "an engineer",
    "médecin": "a doctor",
    "professeur": "a teacher",
}
STEPS, RATE = 500, 1e-2


def sentences():
    """All fifteen, as ids."""
    pairs = list(itertools.product(SUBJECTS, PROFESSIONS))
    source = [f"{subject} {profession}".split() for subject, profession in pairs]
    target = [f"{SUBJECTS[subject]} {PROFESSIONS[profession]} <end>".split() for subject, profession in pairs]
    return ids_of(source, examples._SOURCE_WORDS), ids_of(target, examples._TARGET_WORDS)


def ids_of(lines, words):
    return np.array([[words.index(word) for word in line] for line in lines])


def main():
    torch.manual_seed(0)
    source, target = sentences()
    words = len(examples._SOURCE_WORDS), len(examples._TARGET_WORDS)
    model = Translator(*words, **examples._SIZES, padding_idx=0, max_length=16)
    start, end = (examples._TARGET_WORDS.index(word) for word in ("<s>", "<end>"))
    train(model, itertools.repeat((source, target), STEPS), start, STEPS, RATE)
    right = (model.write(torch.from_numpy(source), start, end, target.shape[1]).numpy() == target).all(axis=1)
    print(f"{right.sum()} of {len(right)} sentences are right")
    nn.save(arrays_of(model), examples._WEIGHTS)
    print(f"{examples._WEIGHTS.name}: {examples._WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
