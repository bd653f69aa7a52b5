"""ONNX models, written as the protobuf bytes that they are.

The field numbers are those of onnx.proto. Writing them here saves the `onnx` package, which nothing else needs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike

IR_VERSION = 11
OPSETS = {"": 23, "com.microsoft": 1}  # 23 is the first with Attention
ELEMENT_TYPES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float64": 11}

Attribute = int | float | str | Sequence[int]


def _varint(number: int) -> bytes:
    number &= 2**64 - 1  # a negative number as its two's complement
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


def _fields(number: int, contents: Sequence[int | str | bytes]) -> bytes:
    """A repeated field."""
    return b"".join(_field(number, content) for content in contents)


def _attribute(name: str, value: Attribute) -> bytes:
    """A name, a value in the field of its type, and that type."""
    if isinstance(value, float):
        typed = _field(2, value) + _field(20, 1)
    elif isinstance(value, int):
        typed = _field(3, value) + _field(20, 2)
    elif isinstance(value, str):
        typed = _field(4, value) + _field(20, 3)
    else:
        typed = _fields(8, value) + _field(20, 7)
    return _field(1, name) + typed


class Graph:
    """A graph that is built in the order it is computed. A value is known by its name, "" is one left out."""

    def __init__(self) -> None:
        self._parts = [_field(2, "graph")]

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[int | None]) -> str:
        """Add an array that each run gets; None is a size that differs from run to run."""
        sizes = _fields(1, [b"" if size is None else _field(1, size) for size in shape])
        tensor = _field(1, ELEMENT_TYPES[np.dtype(dtype).name]) + _field(2, sizes)
        self._parts.append(_field(11, _field(1, name) + _field(2, _field(1, tensor))))
        return name

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Add arrays such as these, with their names, dtypes and shapes."""
        return [self.input(name, array.dtype, array.shape) for name, array in arrays.items()]

    def weight(self, array: np.ndarray) -> str:
        """Add an array that belongs to the model."""
        name = f"weight{len(self._parts)}"
        tensor = _fields(1, array.shape) + _field(2, ELEMENT_TYPES[array.dtype.name])
        self._parts.append(_field(5, tensor + _field(8, name) + _field(9, array.tobytes())))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """Add a node with one output."""
        return self.nodes(1, operator, *inputs, **attributes)[0]

    def nodes(self, outputs: int, operator: str, *inputs: str, **attributes: Attribute) -> list[str]:
        """Add a node with several outputs. A contrib operator is named with its domain: "com.microsoft.BiasGelu"."""
        domain, _, name = operator.rpartition(".")
        names = [f"value{len(self._parts)}_{index}" for index in range(outputs)]
        node = _fields(1, inputs) + _fields(2, names) + _field(4, name) + _field(7, domain)
        self._parts.append(_field(1, node + _fields(5, [_attribute(*item) for item in attributes.items()])))
        return names

    def model(self, *outputs: str) -> bytes:
        """The model that returns these values, whose types ONNX Runtime finds out."""
        graph = b"".join(self._parts) + _fields(12, [_field(1, name) for name in outputs])
        opsets = _fields(8, [_field(1, domain) + _field(2, version) for domain, version in OPSETS.items()])
        return _field(1, IR_VERSION) + opsets + _field(7, graph)


def attention_model(inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Attribute]) -> bytes:
    """A model of one Attention node.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Query, key, value and perhaps a mask, in this order. The model's inputs have their names, dtypes and shapes.
    attributes : mapping of str to int
        Attributes of the node, such as ``is_causal``.
    """
    graph = Graph()
    return graph.model(graph.node("Attention", *graph.inputs(inputs), **attributes))
