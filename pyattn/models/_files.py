"""A published model on disk: a folder with `config.json` and its weights in `.safetensors` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyattn.io.config import Config
from pyattn.io.json import read_object
from pyattn.io.safetensors import Stored, open_tensors

__all__ = ["ModelFiles", "folder_of", "open_model", "read_config"]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class ModelFiles(NamedTuple):
    """What a folder holds.

    Attributes
    ----------
    config : Config
        What config.json says.
    tensors : dict of str to Stored
        By their published names.
    source : str
        What messages call the file of the tensors.
    """

    config: Config
    tensors: dict[str, Stored]
    source: str


def open_model(path: str | os.PathLike[str]) -> ModelFiles:
    """Read a model's config.json, and find its tensors. Their numbers are not read.

    Parameters
    ----------
    path : str or path
        The folder, or a file in it; a file of weights is taken itself, whatever its name.

    Returns
    -------
    ModelFiles
        Configuration and tensors.

    Raises
    ------
    OSError
        A file is not there or cannot be read.
    ValueError
        A file is damaged, or files do not go together.
    """
    folder = folder_of(path)
    given = Path(path)
    config = read_config(folder)
    if given.is_file() and given.suffix == ".safetensors":
        return ModelFiles(config, open_tensors(given), os.fspath(given))
    if (folder / WEIGHTS).exists():
        return ModelFiles(config, open_tensors(folder / WEIGHTS), os.fspath(folder / WEIGHTS))
    if (folder / INDEX).exists():
        return ModelFiles(config, _open_shards(folder / INDEX), os.fspath(folder / INDEX))
    pickles = sorted(file.name for file in folder.glob("*.bin"))
    reason = f"; {pickles[0]} is a pickle, which may run code: save the model as safetensors first" if pickles else ""
    raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {INDEX}{reason}")


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a model's config.json.

    Parameters
    ----------
    path : str or path
        The folder, or a file in it.

    Returns
    -------
    Config
        What it says.

    Raises
    ------
    OSError
        It is not there or cannot be read.
    ValueError
        It is no JSON, or no object.
    """
    file = folder_of(path) / CONFIG
    return Config(read_object(file), os.fspath(file))


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Find the folder of a model.

    Parameters
    ----------
    path : str or path
        The folder, or a file in it.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    TypeError
        path is something else.
    OSError
        It is not there, or has no config.json.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}, expected a str or path of a folder")
    given = Path(path)
    if not given.exists():
        raise FileNotFoundError(f"{given} is not there, expected a folder with {CONFIG} and {WEIGHTS}")
    folder = given if given.is_dir() else given.parent
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"{folder} has no {CONFIG}, expected a folder with {CONFIG} and {WEIGHTS}")
    return folder


def _open_shards(index: Path) -> dict[str, Stored]:
    """Find the tensors of files that an index names, all of them and no others."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{index} has no weight_map, an object with a file's name for each tensor")
    tensors: dict[str, Stored] = {}
    for file in dict.fromkeys(places.values()):
        if os.path.basename(file) != file or not file.endswith(".safetensors"):  # it could lead anywhere
            raise ValueError(f"{index} names the file {file!r}, expected a name that ends in .safetensors")
        found = open_tensors(index.with_name(file))
        named = {key for key, place in places.items() if place == file}
        if found.keys() != named:
            some = sorted(found.keys() ^ named)[0]
            raise ValueError(f"{index} and {file} do not go together: {some!r} is in one of them alone")
        tensors |= found
    return tensors
