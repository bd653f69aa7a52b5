"""Arrays of other libraries: taken without a copy where NumPy can view them, refused with the fix where it cannot."""

from __future__ import annotations

import array
import re
from types import SimpleNamespace

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, run_python

import pyattn
from pyattn import _core

QUERY, KEY, VALUE = (np.random.default_rng(0).random(shape, np.float32) for shape in ((3, 4), (5, 4), (5, 2)))


class Exporter:
    """Hands out its memory through DLPack and in no other way."""

    def __init__(self, memory):
        self.memory = memory

    def __dlpack__(self, **options):
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


class Interface:
    """Hands out its memory through __array_interface__."""

    def __init__(self, memory):
        self.memory = memory
        self.__array_interface__ = memory.__array_interface__


class Convertible:
    """Hands out its memory through __array__."""

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, dtype=None, copy=None):
        return self.memory


EXPORTERS = {
    "DLPack": Exporter,
    "__array_interface__": Interface,
    "__array__": Convertible,
    "memoryview": memoryview,
    "buffer": lambda memory: memoryview(bytearray(memory.tobytes())).cast("B").cast("f", memory.shape),
}


@pytest.mark.parametrize("export", EXPORTERS)
def test_other_objects_are_arrays_too(export):
    expected = pyattn.attention(QUERY, KEY, VALUE)
    make = EXPORTERS[export]
    result = pyattn.attention(make(QUERY), make(KEY), make(VALUE))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("export", ["DLPack", "__array_interface__", "__array__", "memoryview"])
def test_their_memory_is_not_copied(export):
    assert np.shares_memory(_core.as_real(EXPORTERS[export](KEY), "key"), KEY)


def test_masks_and_lengths_may_be_foreign():
    mask = np.random.default_rng(1).random((3, 5)) < 0.7
    expected = pyattn.attention(QUERY, KEY, VALUE, attn_mask=mask)
    np.testing.assert_array_equal(pyattn.attention(QUERY, KEY, VALUE, attn_mask=memoryview(mask)), expected)
    np.testing.assert_array_equal(pyattn.attention(QUERY, KEY, VALUE, attn_mask=mask.tolist()), expected)
    batch = [stacked[np.newaxis] for stacked in (QUERY, KEY, VALUE)]
    by_length = pyattn.attention(*batch, key_lengths=array.array("q", [3]))
    np.testing.assert_array_equal(by_length, pyattn.attention(*batch, key_lengths=[3]))


@for_each("device", ["cuda", "mps", "xpu"])
def test_tensors_elsewhere_are_refused(device):
    tensor = SimpleNamespace(requires_grad=False, device=SimpleNamespace(type=device))
    message = f"key is a tensor on device '{device}'; pass key.cpu()"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        pyattn.attention(QUERY, tensor, VALUE)


def test_tensors_that_require_grad_are_refused():
    class Tensor(Convertible):
        requires_grad = True

    with pytest.raises(
        TypeError,
        match=r"^query is a tensor that requires grad; pass query\.detach\(\), or use pyattn\.interop\.torch",
    ):
        pyattn.attention(Tensor(QUERY), KEY, VALUE)


@pytest.mark.parametrize("name", ["toarray", "requires_grad", "device"])
def test_an_exception_in_an_attribute_comes_through(name):
    def fail(self):
        raise OSError("no such tensor")

    with pytest.raises(OSError, match="no such tensor"):
        pyattn.attention(type("Tensor", (), {name: property(fail)})(), KEY, VALUE)


def test_an_exception_in_a_conversion_comes_through():
    class Failing:
        def __array__(self, dtype=None, copy=None):
            raise OSError("no such array")

    with pytest.raises(OSError, match="no such array"):
        pyattn.attention(QUERY, Failing(), VALUE)


class OddError(TypeError):
    """Takes two arguments, as JAX's complaint about tracers takes something else than a message."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        (OddError("this", "that"), TypeError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no text"), ValueError),
        (ValueError("no number"), ValueError),
        (RuntimeError("not now"), TypeError),
        (NotImplementedError("not yet"), TypeError),
    ],
    ids=lambda argument: type(argument).__name__,
)
def test_a_complaint_of_the_owner_is_told_in_the_arguments_name(complaint, kind):
    class Complaining:
        def __array__(self, dtype=None, copy=None):
            raise complaint

    with pytest.raises(kind) as caught:
        pyattn.attention(QUERY, Complaining(), VALUE)
    assert type(caught.value) is kind
    assert str(caught.value) == f"key is not an array of numbers: {complaint}"
    assert caught.value.__cause__ is complaint
    assert complaint.__traceback__ is not None


# PyTorch


@pytest.mark.peers
@pytest.mark.parametrize("function", ["attention", "scaled_dot_product_attention"])
def test_torch_tensors_are_taken_as_they_are(torch, function):
    tensors = [torch.from_numpy(memory) for memory in (QUERY, KEY, VALUE)]
    call = getattr(pyattn, function)
    result = call(*tensors)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, call(QUERY, KEY, VALUE))
    strided = torch.from_numpy(KEY.T.copy()).T
    np.testing.assert_array_equal(call(tensors[0], strided, tensors[2]), result)
    mask = torch.ones(3, 5, dtype=torch.bool)
    np.testing.assert_array_equal(call(*tensors, attn_mask=mask), result)


@pytest.mark.peers
def test_torch_memory_is_not_copied(torch):
    assert np.shares_memory(_core.as_real(torch.from_numpy(KEY), "key"), KEY)
    assert np.shares_memory(_core.as_real(torch.from_numpy(KEY).T, "key"), KEY)


@pytest.mark.peers
@pytest.mark.parametrize("function", ["attention", "scaled_dot_product_attention"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_torch_tensors_with_gradients_say_detach(torch, function, place):
    tensors = [torch.from_numpy(memory.copy()) for memory in (QUERY, KEY, VALUE)]
    tensors[place].requires_grad_()
    name = ("query", "key", "value")[place]
    with pytest.raises(
        TypeError,
        match=rf"^{name} is a tensor that requires grad; pass {name}\.detach\(\), or use pyattn\.interop\.torch",
    ):
        getattr(pyattn, function)(*tensors)
    getattr(pyattn, function)(*(tensor.detach() for tensor in tensors))


@pytest.mark.peers
@for_each("function", ["attention", "scaled_dot_product_attention"])
def test_torch_tensors_without_data_are_refused(torch, function):
    query, key, value = (torch.from_numpy(memory) for memory in (QUERY, KEY, VALUE))
    with pytest.raises(TypeError, match=r"^key is a tensor without data \(device 'meta'\); pass"):
        getattr(pyattn, function)(query, key.to("meta"), value)


@pytest.mark.peers
def test_torch_sparse_tensors_and_other_dtypes_are_refused(torch):
    query, key, value = (torch.from_numpy(memory) for memory in (QUERY, KEY, VALUE))
    for sparse in (key.to_sparse(), key.bfloat16().to_sparse()):
        with pytest.raises(TypeError, match=r"^key is a sparse tensor; pass key\.to_dense\(\)$"):
            pyattn.attention(query, sparse, value)
    eight = query.to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"^query is not an array of numbers: .*; pass query\.float\(\)$"):
        pyattn.attention(eight, key, value)
    pyattn.attention(eight.float(), key, value)
    with pytest.raises(TypeError, match=r"pass numpy\.asarray\(attn_mask, bool\) if nonzero means attend"):
        pyattn.attention(query, key, value, attn_mask=torch.ones(3, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"^value is not an array of numbers: .*[Nn]egative.*numpy\(\) instead\.$"):
        pyattn.attention(query, key, torch.ones(5, 2, dtype=torch.complex64).conj().imag)


@pytest.mark.peers
def test_torch_tensors_in_half_precision(torch):
    query, key, value = (torch.from_numpy(memory) for memory in (QUERY, KEY, VALUE))
    for dtype in (torch.float16, torch.bfloat16):
        halves = [x.to(dtype) for x in (query, key, value)]
        output = pyattn.attention(*halves)
        assert output.dtype.name == str(dtype).removeprefix("torch.")
        expected = pyattn.attention(*(x.float() for x in halves))
        assert_same_bits(output.view(np.uint16), expected.astype(output.dtype).view(np.uint16))
    half = query.bfloat16()
    assert_same_bits(pyattn.attention(torch._neg_view(half), key, value), pyattn.attention(-half.float(), key, value))
    stacked = torch.stack([half, half])[:, None]
    assert_same_bits(pyattn.functional.gelu([[half], [half]]), pyattn.functional.gelu(stacked))
    assert_same_bits(pyattn.attention([*half], key, value), pyattn.attention(half, key, value))


@pytest.mark.peers
def test_the_fixes_for_bfloat16_tensors_work(torch):
    key = torch.ones(4, 8, dtype=torch.bfloat16)
    for call in (
        lambda key: pyattn.KVCache(1, 1, 8, dtype="float64").append(0, key[None, None], key[None, None]),
        lambda key: pyattn.nn.Linear(8, 2, dtype="float64")(key),
    ):
        with pytest.raises(TypeError, match=r"pass numpy\.asarray\(\w+\.float\(\), numpy\.float64\)"):
            call(key)
    module = pyattn.nn.Linear(8, 2, dtype="float64")
    assert module(np.asarray(key.float(), np.float64)).dtype == np.float64
    with pytest.raises(TypeError, match=r"pass numpy\.asarray\(x, numpy\.float64\) of tensors converted with \.float"):
        module([*key])
    with pytest.raises(TypeError, match=r"pass numpy\.asarray\(key_lengths\.float\(\), numpy\.int64\)"):
        pyattn.attention(key, key, key, key_lengths=torch.tensor([1.0], dtype=torch.bfloat16))


@pytest.mark.peers
def test_lists_of_bfloat16_tensors_and_others(torch):
    """They mix as arrays do, wherever they stand in the list."""
    half, wide = torch.tensor([1.5, 2.5, -3.0], dtype=torch.bfloat16), torch.tensor([0.1, 0.2, 0.3])
    for rows in ([half, wide], [wide, half], [half, wide.numpy()], [half, [0.1, 0.2, 0.3]], [[half[0], 1], [2.0, 3]]):
        numbers = [[float(x) for x in row] for row in rows]
        found = pyattn.softmax(rows)
        np.testing.assert_allclose(found, pyattn.softmax(numbers), rtol=1e-6)
        assert found.itemsize >= 4
    with pytest.raises(TypeError, match=r"^x\[0\] has dtype bfloat16 and x\[1\] float16"):
        pyattn.softmax([half, wide.half()])
    with pytest.raises(TypeError, match=r"^x\[1\] requires grad; pass x\[1\]\.detach"):
        pyattn.softmax([half, half.clone().requires_grad_()])
    with pytest.raises(ValueError, match=r"^x has rows of different lengths"):
        pyattn.softmax([half, wide[:2]])


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import torch
import pyattn
for call in (lambda: pyattn.nn.Linear(2, 2).bfloat16(), lambda: pyattn.softmax(torch.ones(2).bfloat16())):
    try:
        call()
    except ImportError as error:
        print(error)
"""


@pytest.mark.peers
def test_bfloat16_without_ml_dtypes_says_what_helps():
    needs = "bfloat16 needs ml_dtypes: pip install ml_dtypes"
    assert run_python(WITHOUT_ML_DTYPES).stdout == f"{needs}\n{needs}, or convert the tensor with float()\n"
