"""Model files as they are published, written here without the packages that usually write them."""

from __future__ import annotations

import json
import struct

import numpy as np

NAMES = {"<f4": "F32", "<f8": "F64", "<f2": "F16", "<i8": "I64", "<u2": "U16", "|u1": "U8", "|b1": "BOOL"}

BERT = {
    "model_type": "bert",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}


def header_of(tensors, dtypes=None):
    """The header of a file with these arrays, one after another; dtypes: names that NumPy lacks."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        dtype = (dtypes or {}).get(name, NAMES.get(array.dtype.str))
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    return header


def file_of(header, data, padding=8):
    """The bytes of a file; header is an object, or text. Data begins at a multiple of `padding`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % padding)
    return struct.pack("<Q", len(text)) + text + data


def bytes_of(tensors, **options):
    return file_of(header_of(tensors, **options), b"".join(array.tobytes() for array in tensors.values()))


def linear(name, out, into):
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def bert_shapes(config=BERT, *, pooler=True):
    """The published names, once more: typed out from a file of transformers."""
    dim, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], dim),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], dim),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], dim),
        **norm("embeddings.LayerNorm", dim),
    }
    for n in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{n}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{layer}.attention.{part}", dim, dim)
        shapes |= norm(f"{layer}.attention.output.LayerNorm", dim)
        shapes |= linear(f"{layer}.intermediate.dense", hidden, dim) | linear(f"{layer}.output.dense", dim, hidden)
        shapes |= norm(f"{layer}.output.LayerNorm", dim)
    return shapes | (linear("pooler.dense", dim, dim) if pooler else {})


def bert_tensors(seed=0, dtype=np.float32, config=BERT, **options):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) * (0.3 if len(shape) == 2 else 0.1)).astype(dtype)
        for name, shape in bert_shapes(config, **options).items()
    }


def write_model(folder, config=BERT, tensors=None):
    """A folder of config.json and model.safetensors; a tiny BERT unless tensors are given."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes_of(bert_tensors(config=config) if tensors is None else tensors))
    return folder
