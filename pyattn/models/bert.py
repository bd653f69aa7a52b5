"""BERT and its relatives: encoders that turn ids of tokens into a vector for each.

By the ``model_type`` of config.json: ``bert`` (as which MiniLM, SpanBERT and TinyBERT are published, too), ``roberta``,
``camembert``, ``xlm-roberta``, ``distilbert``, ``albert`` and ``mobilebert``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn._util.typing import FloatArray
from pyattn.io.config import Config
from pyattn.models._albert import plan_albert
from pyattn.models._bert_like import plan_bert, plan_distilbert, plan_roberta
from pyattn.models._files import open_model
from pyattn.models._ids import as_padding
from pyattn.models._mobilebert_plan import plan_mobilebert
from pyattn.models._plan import Plan
from pyattn.models._weights import fit, without_prefix
from pyattn.nn.containers import ModuleList
from pyattn.nn.module import Module

__all__ = ["Bert", "EncoderOutput", "load"]

# Types to what plans them, and to the prefix that published names have where heads are in the same file.
_FAMILIES: dict[str, tuple[Callable[[Config], Plan], str]] = {
    "bert": (plan_bert, "bert."),
    "roberta": (plan_roberta, "roberta."),
    "camembert": (plan_roberta, "roberta."),
    "xlm-roberta": (plan_roberta, "roberta."),
    "distilbert": (plan_distilbert, "distilbert."),
    "albert": (plan_albert, "albert."),
    "mobilebert": (plan_mobilebert, "mobilebert."),
}


class EncoderOutput(NamedTuple):
    """What `Bert` returns; the names are those of transformers, and None stands for what was not asked for.

    Attributes
    ----------
    last_hidden_state : ndarray, (N, L, features)
        A vector for each token; those of padding mean nothing.
    pooler_output : ndarray, (N, features), or None
        A vector for each sequence, where the model has a pooler.
    hidden_states : tuple of ndarray, (N, L, features), or None
        What the first layer takes, then what each layer gives.
    attentions : tuple of ndarray, (N, heads, L, L), or None
        What each token gives to each, in each layer: rows sum to 1.
    """

    last_hidden_state: FloatArray
    pooler_output: FloatArray | None
    hidden_states: tuple[FloatArray, ...] | None
    attentions: tuple[FloatArray, ...] | None


class Bert(Module):
    """An encoder of the BERT family; `load` makes one of files.

    There is no dropout in it, as in evaluation elsewhere. Each of its layers is a module that can be called by itself,
    and in most families a call of a layer is one call of the core.

    Parameters
    ----------
    embeddings : Module
        Called with input_ids, token_type_ids and position_ids.
    layers : iterable of Module
        Called as a `pyattn.nn.TransformerEncoderLayer` with batch_first. One may come several times, as in ALBERT.
    pooler : Module, optional
        Called with what the last layer gives. Default: None.
    config : mapping of str to object, optional
        What config.json says. Default: nothing.

    Attributes
    ----------
    config : dict of str to object
        As given.
    missing_keys : list of str
        Tensors of a pooler that the files do not have; then there is none.
    unused_keys : list of str
        Tensors in the files that the model has no use for, such as heads for other tasks.
    """

    embeddings: Module
    layers: ModuleList
    pooler: Module | None

    def __init__(
        self,
        embeddings: Module,
        layers: Iterable[Module],
        pooler: Module | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.embeddings, self.layers, self.pooler = embeddings, ModuleList(layers), pooler
        self.config = dict(config or {})
        self.missing_keys: list[str] = []
        self.unused_keys: list[str] = []

    def forward(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
        need_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Compute a vector for each token.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            Ids of tokens, as the model's tokenizer gives them.
        attention_mask : array_like, (N, L), optional
            1 or True = attend, 0 or False = padding. Default: None, there is no padding.
        token_type_ids : array_like of int, (N, L) or (L,), optional
            In most families 0 for a first sentence and 1 for a second. Default: None, 0.
        position_ids : array_like of int, (N, L) or (L,), optional
            Default: None, in their order; in the families of RoBERTa after the id of padding, which takes no position.
        need_weights : bool
            Return the weights of all attentions. Default: False.
        need_hidden_states : bool
            Return what goes from layer to layer. Default: False.

        Returns
        -------
        EncoderOutput
            Of the weights' dtype. A sequence of padding alone attends to nothing, where others attend to the padding.

        Raises
        ------
        TypeError
            Ids are no integers; attention_mask has no numbers.
        ValueError
            Ids are out of range; a sequence is too long; shapes do not go together; attention_mask holds other numbers
            than 0 and 1.
        """
        weighted, kept = as_flag(need_weights, "need_weights"), as_flag(need_hidden_states, "need_hidden_states")
        x: FloatArray = self.embeddings(input_ids, token_type_ids, position_ids)
        padding = as_padding(attention_mask, x.shape[:2])
        states, attentions = [x] if kept else [], []
        for layer in self.layers:
            if weighted:
                x, weights, _ = layer.forward_with_weights(x, src_key_padding_mask=padding)  # type: ignore[attr-defined]
                attentions.append(weights)
            else:
                x = layer(x, src_key_padding_mask=padding)
            if kept:
                states.append(x)
        pooled = None if self.pooler is None else self.pooler(x)
        return EncoderOutput(x, pooled, tuple(states) if kept else None, tuple(attentions) if weighted else None)


def load(path: str | os.PathLike[str], *, strict: bool = True, dtype: npt.DTypeLike | None = None) -> Bert:
    """Make a model of published files: config.json, and model.safetensors, whole or in parts. Nothing is downloaded.

    Parameters
    ----------
    path : str or path
        Their folder, or a file in it.
    strict : bool
        Everything that config.json speaks of is there. False does without a pooler, which files that were trained to
        fill in words often lack. Default: True.
    dtype : dtype, optional
        float32 or float64, to which weights are converted. Default: None, as they are in the files, and float32 for
        float16 and bfloat16.

    Returns
    -------
    Bert
        In evaluation mode. Its weights are read-only views of the file, which has to stay as it is; where they had to
        be converted, and for the biases of queries, keys and values, copies. ``copy.deepcopy(model)`` is a model of
        copies, which can be written to.

    Raises
    ------
    OSError
        A file is not there or cannot be read.
    ValueError
        A file is damaged; config.json is of another model, or asks for what is not here; tensors are missing or of
        another shape, all of which the message lists.
    TypeError
        dtype is something else.

    Examples
    --------
    A tiny model, saved as published ones are:

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
    ...     model = pyattn.models.bert.load(folder)
    >>> model([[1, 5, 3]]).last_hidden_state.shape
    (1, 3, 4)
    """
    strict = as_flag(strict, "strict")
    files = open_model(path)
    make_plan, prefix = files.config.choice("model_type", "bert", _FAMILIES)  # the first published files have none
    plan = make_plan(files.config)
    weights = fit(files, plan.shapes, without_prefix(prefix), optional=plan.optional, strict=strict, dtype=dtype)
    embeddings, layers, pooler = plan.build(weights.arrays)
    model = Bert(embeddings, layers, pooler, files.config.values)
    model.missing_keys, model.unused_keys = weights.missing, weights.unused
    return model.eval()
