"""Models by what their configuration calls them."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy.typing as npt

from pyattn.models._files import read_config

__all__ = ["load"]

# Of config.json's model_type to the module of pyattn.models that loads it.
MODULES = dict.fromkeys(("bert", "roberta", "camembert", "xlm-roberta", "distilbert", "albert", "mobilebert"), "bert")
MODULES |= {"gpt2": "gpt2", "llama": "llama", "mistral": "llama"}


def load(path: str | os.PathLike[str], *, strict: bool = True, dtype: npt.DTypeLike | None = None) -> Any:
    """Make a model of published files, by the ``model_type`` of config.json. Nothing is downloaded.

    Parameters
    ----------
    path : str or path
        The folder of config.json and model.safetensors, or a file in it.
    strict : bool
        Everything that config.json speaks of is there; the default. See the ``load`` of the model's own module.
    dtype : dtype, optional
        float32 or float64, to which weights are converted. Default: None, as they are in the files, and float32 for
        float16 and bfloat16.

    Returns
    -------
    pyattn.nn.Module
        In evaluation mode: a `pyattn.models.bert.Bert`, `pyattn.models.gpt2.GPT2` or `pyattn.models.llama.Llama`. Its
        unused_keys are tensors in the files that it has no use for, its missing_keys those that it does without.

    Raises
    ------
    OSError
        A file is not there or cannot be read.
    ValueError
        A file is damaged, config.json is of another model, or they do not go together; the message names the file.
    TypeError
        dtype is something else.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.models.load("no such folder")
    Traceback (most recent call last):
    FileNotFoundError: no such folder is not there, expected a folder with config.json and model.safetensors
    """
    config = read_config(path)
    if "model_type" not in config.values:
        raise config.wrong("model_type", "a name; if it is a BERT's, pyattn.models.bert.load takes it as such")
    module = importlib.import_module(f"pyattn.models.{config.choice('model_type', '', MODULES)}")
    return module.load(path, strict=strict, dtype=dtype)
