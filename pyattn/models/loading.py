"""`load`: find the family of a published model, and build the model from its files."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy.typing as npt

from pyattn._util.arguments import as_choice, as_flag
from pyattn.io.config import Config
from pyattn.models.bert import Bert, plan_albert, plan_bert, plan_distilbert, plan_roberta
from pyattn.models.files import open_model
from pyattn.models.gpt2 import GPT2, plan_gpt2
from pyattn.models.llama import Llama, plan_llama, plan_mistral
from pyattn.models.mobilebert import plan_mobilebert
from pyattn.models.weights import Plan, find_weights

__all__ = ["FAMILIES", "load"]

# Keys are values of model_type in config.json. MiniLM, SpanBERT and TinyBERT have bert; many models have llama.
FAMILIES: dict[str, Callable[[Config], Plan]] = {
    "bert": plan_bert,
    "roberta": plan_roberta,
    "camembert": plan_roberta,
    "xlm-roberta": plan_roberta,
    "distilbert": plan_distilbert,
    "albert": plan_albert,
    "mobilebert": plan_mobilebert,
    "gpt2": plan_gpt2,
    "llama": plan_llama,
    "mistral": plan_mistral,
}


def load(
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    dtype: npt.DTypeLike | None = None,
    model_type: str | None = None,
) -> Bert | GPT2 | Llama:
    """Load a published model from its files: config.json and model.safetensors.

    Families are ``bert`` (including MiniLM, SpanBERT and TinyBERT), ``roberta``, ``camembert``, ``xlm-roberta``,
    ``distilbert``, ``albert``, ``mobilebert``, ``gpt2``, ``llama`` and ``mistral``. Nothing is downloaded.

    Parameters
    ----------
    path : str or path
        The folder of config.json and model.safetensors (one file, or several with an index), or a file in it.
    strict : bool
        Require a decoder's head. False: load files without one, too; then `logits` are None. A pooler may always be
        missing. Default: True.
    dtype : dtype, optional
        float16, bfloat16, float32 or float64: convert the weights, which rounds them where it is smaller. Default:
        None, as the files have them. Halves are used in place then, with float32 arithmetic and results: the same
        numbers as with float32, in half of the memory. float16 beside bfloat16 makes both float32, one float64 tensor
        makes all of them float64, and without ml_dtypes bfloat16 becomes float32.
    model_type : str, optional
        The family, for files from 2018 whose config.json has no ``model_type``. Default: None, read from config.json.

    Returns
    -------
    Bert, GPT2 or Llama
        In evaluation mode. Its `missing_keys` are the tensors of a pooler or head that the files lack, its
        `unexpected_keys` the tensors that the model does not use. Weights are read-only views of the file, which must
        not change while the model is in use. Some are copies: biases of queries, keys and values, and converted
        tensors. ``copy.deepcopy(model)`` makes writable copies of all weights, ``model.to_order("in_out", copy=True)``
        copies that are faster for one token.

    Raises
    ------
    OSError
        A file does not exist or cannot be read.
    ValueError
        A file is damaged, config.json asks for something unsupported, or tensors are missing or have other shapes: the
        message lists them.
    TypeError
        An argument has another type.

    Examples
    --------
    A tiny model in the format of published ones:

    >>> import json, pathlib, tempfile
    >>> import numpy as np, pyattn
    >>> config = {"dim": 4, "n_layers": 1, "n_heads": 2, "hidden_dim": 4, "vocab_size": 9, "max_position_embeddings": 9}
    >>> tables = {f"embeddings.{name}_embeddings.weight": np.eye(9, 4) for name in ("word", "position")}
    >>> layer = ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2"]
    >>> norms = ["transformer.layer.0.sa_layer_norm", "transformer.layer.0.output_layer_norm", "embeddings.LayerNorm"]
    >>> weights = {f"transformer.layer.0.{name}.weight": np.eye(4) for name in layer}
    >>> weights |= {f"{name}.weight": np.ones(4) for name in norms}
    >>> biases = {name.replace(".weight", ".bias"): np.zeros(4) for name in weights}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = json.dumps({"model_type": "distilbert", **config})
    ...     _ = pathlib.Path(folder, "config.json").write_text(text)
    ...     pyattn.nn.save({**tables, **weights, **biases}, pathlib.Path(folder, "model.safetensors"))
    ...     model = pyattn.models.load(folder)
    >>> model([[1, 5, 3]]).last_hidden_state.shape
    (1, 3, 4)
    """
    strict = as_flag(strict, "strict")
    files = open_model(path)
    plan = _find_family(files.config, model_type)(files.config)
    weights = find_weights(files, plan, strict=strict, dtype=dtype)
    model: Bert | GPT2 | Llama = plan.build(weights.arrays)
    model.missing_keys, model.unexpected_keys = weights.missing, weights.unexpected
    model.eval()
    return model


def _find_family(config: Config, given: str | None) -> Callable[[Config], Plan]:
    if given is not None:
        name: str = as_choice(given, "model_type", FAMILIES)
        if config.values.get("model_type", name) != name:
            raise config.error("model_type", f"{name!r}, the argument model_type; leave the argument out")
        return FAMILIES[name]
    if "model_type" not in config.values:
        raise config.error("model_type", "the name of a family; if the model is a BERT, pass model_type='bert'")
    family: Callable[[Config], Plan] = config.choice("model_type", None, FAMILIES)
    return family
