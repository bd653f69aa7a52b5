"""What sentence-transformers publishes beside a model: how tokens are pooled, and how long a sentence may be."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from pyattn.io.config import Config
from pyattn.io.json import read_object, read_value, shown

__all__ = ["Pooling", "SentenceFiles", "read_sentence_files"]

MODES: dict[str, Literal["mean", "cls"]] = {"mean": "mean", "cls": "cls"}
OLDER: dict[str, Literal["mean", "cls"]] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class Pooling(NamedTuple):
    """What makes one vector of many, and whether it is divided by its length."""

    mode: Literal["mean", "cls"]
    normalize: bool


class SentenceFiles(NamedTuple):
    """What the files say; None where they say nothing.

    Attributes
    ----------
    pooling : Pooling or None
        Of modules.json and of the folder that it names.
    max_length : int or None
        Tokens of the longest sentence.
    """

    pooling: Pooling | None
    max_length: int | None


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Read what is there.

    Parameters
    ----------
    folder : Path
        Of a model.

    Returns
    -------
    SentenceFiles
        What it says.

    Raises
    ------
    OSError
        A file cannot be read.
    ValueError
        A file is damaged, or asks for what is not here.
    """
    prompts = folder / "config_sentence_transformers.json"
    if prompts.exists():
        Config(read_object(prompts), str(prompts)).require({"default_prompt_name": ()})
    most = None
    for file in sorted(folder.glob("sentence_*_config.json")):  # sentence_bert_config.json, or of another family
        config = Config(read_object(file), str(file))
        config.require({"do_lower_case": (False,)})
        if config.values.get("max_seq_length") is not None:
            most = config.count("max_seq_length")
    file = folder / "modules.json"
    return SentenceFiles(_pooling_of(folder, _steps_of(file), file) if file.exists() else None, most)


def _steps_of(file: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module, in their order."""
    value = read_value(file)
    steps = []
    for step in value if isinstance(value, list) else [value]:
        kind, place = (step.get(key) if isinstance(step, dict) else None for key in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ValueError(f"{file} holds {shown(step)}, expected a list of objects with type and path")
        steps.append((kind.rpartition(".")[2], place))
    return steps


def _pooling_of(folder: Path, steps: list[tuple[str, str]], file: Path) -> Pooling:
    kinds = [kind for kind, _ in steps]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or steps[0][1]:
        found = " behind ".join(f"{kind} of {place!r}" for kind, place in reversed(steps)) or "nothing"
        raise ValueError(f"{file} has {found}, expected Transformer of '', Pooling and perhaps Normalize")
    place = steps[1][1]
    if Path(place).name != place:  # it could lead anywhere
        raise ValueError(f"{file} has Pooling of {shown(place)}, expected the name of a folder")
    return Pooling(_mode_of(folder / place / "config.json"), len(kinds) == 3)


def _mode_of(file: Path) -> Literal["mean", "cls"]:
    config = Config(read_object(file), str(file))
    if "pooling_mode" in config.values:
        mode: Literal["mean", "cls"] = config.choice("pooling_mode", "", MODES)
        return mode
    flags = [name for name in config.values if name.startswith("pooling_mode_") and config.flag(name, False)]
    if len(flags) != 1 or flags[0] not in OLDER:
        raise ValueError(f"{file} asks for {' and '.join(flags) or 'nothing'}, expected one of {', '.join(OLDER)}")
    return OLDER[flags[0]]
