"""An ONNX model of one Attention node, written as the few protobuf bytes that it is.

The field numbers are those of onnx.proto. Writing them here saves the `onnx` package, which nothing else needs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

OPSET = 23  # the first with Attention
IR_VERSION = 11
ELEMENT_TYPES = {"float32": 1, "bool": 9, "float64": 11}


def _varint(number: int) -> bytes:
    low = bytearray()
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    return bytes(low) + bytes([number])


def _field(number: int, content: int | float | str | bytes) -> bytes:
    """One field: an integer as varint, a float as 4 bytes, text and messages with their length."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    if isinstance(content, float):
        return _varint(number << 3 | 5) + struct.pack("<f", content)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _value_info(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    dimensions = b"".join(_field(1, _field(1, size)) for size in shape)
    tensor = _field(1, ELEMENT_TYPES[dtype.name]) + _field(2, dimensions)
    return _field(1, name) + _field(2, _field(1, tensor))


def attention_model(inputs: Mapping[str, np.ndarray], attributes: Mapping[str, int]) -> bytes:
    """A model whose inputs have the names, shapes and dtypes of `inputs`.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Query, key, value and perhaps a mask, in this order.
    attributes : mapping of str to int
        Attributes of the node, such as ``is_causal``.
    """
    integer = 2  # AttributeProto.INT
    node = b"".join(_field(1, name) for name in inputs) + _field(2, "output") + _field(4, "Attention")
    for name, number in attributes.items():
        node += _field(5, _field(1, name) + _field(3, number) + _field(20, integer))
    query = next(iter(inputs.values()))
    graph = _field(1, node) + _field(2, "attention")
    graph += b"".join(_field(11, _value_info(name, array.dtype, array.shape)) for name, array in inputs.items())
    graph += _field(12, _value_info("output", query.dtype, query.shape))
    return _field(1, IR_VERSION) + _field(8, _field(1, "") + _field(2, OPSET)) + _field(7, graph)
