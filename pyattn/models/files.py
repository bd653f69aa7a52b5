"""A published model on disk: a folder with `config.json` and its weights in `.safetensors` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyattn._util.messages import short_repr
from pyattn.io.config import Config
from pyattn.io.json import read_object
from pyattn.io.safetensors import StoredTensor, open_tensors

__all__ = ["ModelFiles", "find_folder", "open_model"]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class ModelFiles(NamedTuple):
    """The files of a model: config.json and the tensors; source is the path of the tensors for messages."""

    config: Config
    tensors: dict[str, StoredTensor]
    source: str


def open_model(path: str | os.PathLike[str]) -> ModelFiles:
    """Read config.json, and open the tensors of a folder or, if path is a .safetensors file, of that file."""
    folder = find_folder(path)
    config = Config(read_object(folder / CONFIG), os.fspath(folder / CONFIG))
    given = Path(path)
    weights = given if given.is_file() and given.suffix == ".safetensors" else folder / WEIGHTS
    if weights.exists():
        return ModelFiles(config, open_tensors(weights), os.fspath(weights))
    if (folder / INDEX).exists():
        return ModelFiles(config, _open_shards(folder / INDEX), os.fspath(folder / INDEX))
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    reason = ""
    if pickles:
        reason = f"; {pickles[0]} is a pickle, which may run code: transformers' save_pretrained writes safetensors"
    raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {INDEX}{reason}")


def find_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a model, given its path or the path of a file in it."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}, expected a str or path of a folder")
    given = Path(path)
    if not given.exists():
        raise FileNotFoundError(
            f"{given} does not exist, expected a folder with {CONFIG} and {WEIGHTS}; pyattn downloads nothing"
        )
    folder = given if given.is_dir() else given.parent
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"{folder} has no {CONFIG}, expected a folder with {CONFIG} and {WEIGHTS}")
    return folder


def _open_shards(index: Path) -> dict[str, StoredTensor]:
    """Open the tensors of the files that an index names; each file must hold exactly the listed tensors."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{index} has no weight_map, an object with a file's name for each tensor")
    tensors: dict[str, StoredTensor] = {}
    for file in dict.fromkeys(places.values()):
        if os.path.basename(file) != file or not file.endswith(".safetensors"):  # it could point to any folder
            raise ValueError(f"{index} names the file {short_repr(file)}, expected a name that ends in .safetensors")
        found = open_tensors(index.with_name(file))
        listed = {key for key, place in places.items() if place == file}
        if found.keys() != listed:
            key = sorted(found.keys() ^ listed)[0]
            has, lacks = (file, index.name) if key in found else (index.name, file)
            raise ValueError(f"{index} does not fit {file}: {short_repr(key)} is in {has} and not in {lacks}")
        tensors |= found
    return tensors
