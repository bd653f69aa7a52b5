"""Files of models: tensors are read where they lie, and every kind of damage gets a clear error."""

from __future__ import annotations

import json
import mmap
import os
import re
import struct

import numpy as np
import pytest
import safetensors.numpy
from support.helpers import assert_same_bits, bits
from support.published import BERT, bert_tensors, bytes_of, file_of, header_of, write_model

from pyattn import models
from pyattn.io.safetensors import open_tensors, write_tensors

ARRAYS = {
    "single": np.arange(6, dtype=np.float32).reshape(2, 3),
    "double": np.linspace(0, 1, 5),
    "half": np.array([0.1, 65504, -np.inf], np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(2.5),
    "integers": np.arange(-2, 2),
    "flags": np.array([True, False]),
    "bytes": np.arange(3, dtype=np.uint8),
}


def base_of(array):
    """What the array's memory belongs to."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


# Reading


def test_the_reader_reads_what_the_package_writes(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(ARRAYS, path, {"format": "np"})
    found, expected = open_tensors(path), safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys() == ARRAYS.keys()
    for name, tensor in found.items():
        assert_same_bits(tensor.to_array(), expected[name], name)


def test_the_package_reads_what_the_writer_and_these_tests_write(tmp_path):
    path = tmp_path / "a.safetensors"
    for kind in ("writer", "tests"):
        if kind == "tests":
            path.write_bytes(bytes_of(ARRAYS))
        else:
            with open(path, "wb") as file:
                write_tensors(ARRAYS, file)
        found = safetensors.numpy.load_file(path)
        assert found.keys() == ARRAYS.keys()
        for name, array in found.items():
            assert_same_bits(array, ARRAYS[name], name)


def test_the_writer_keeps_the_order_of_names_and_aligns_every_tensor(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {"bytes": ARRAYS["bytes"], **ARRAYS, "complex": np.ones(3, np.complex64)}
    with open(path, "wb") as file:
        write_tensors(arrays, file)
    found = open_tensors(path)
    assert list(found) == list(arrays)
    for name, tensor in found.items():
        assert isinstance(base_of(tensor.to_array()), mmap.mmap), name
        assert_same_bits(tensor.to_array(), arrays[name], name)


def test_tensors_are_views_of_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes_of({"x": ARRAYS["single"]}))
    array = open_tensors(path)["x"].to_array()
    assert isinstance(base_of(array), mmap.mmap)
    assert not array.flags.writeable
    with open(path, "r+b") as file:  # seen, as nothing was copied
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())
    assert array[-1, -1] == 7


def test_a_tensor_at_an_odd_place_is_copied(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes_of({"first": np.zeros(1, np.uint8), "x": ARRAYS["single"]}))
    array = open_tensors(path)["x"].to_array()
    assert array.flags.aligned
    assert_same_bits(array, ARRAYS["single"])


def test_every_half_becomes_the_float32_that_it_is(tmp_path):
    path, patterns = tmp_path / "a.safetensors", np.arange(2**16, dtype=np.uint16)
    path.write_bytes(bytes_of({"b": patterns, "h": patterns}, dtypes={"b": "BF16", "h": "F16"}))
    found = open_tensors(path)
    wanted = np.dtype(np.float32)
    np.testing.assert_array_equal(bits(found["b"].to_array(wanted)), patterns.astype(np.uint32) << 16)
    half = patterns.view(np.float16)
    np.testing.assert_array_equal(found["h"].to_array(wanted), half.astype(np.float32))
    for name in "bh":  # so that Module.to_order may replace it
        assert found[name].to_array(wanted).flags.owndata


def test_numbers_of_eight_bits_are_found_and_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes_of({"x": ARRAYS["bytes"]}, dtypes={"x": "F8_E4M3"}))
    with pytest.raises(ValueError, match="dtype F8_E4M3, expected one of F32"):
        open_tensors(path)["x"].to_array()


# Damaged files

X = {"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)}
DATA = bytes(20)


def header(**changes):
    """That of X, with entries changed."""
    return {**header_of(X), **changes}


def entry(dtype="F32", shape=(2,), data_offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets, **more}


DAMAGED = {
    "nothing": (b"", "has 0 bytes; the header's length alone takes 8"),
    "seven bytes": (bytes(7), "has 7 bytes"),
    "no header": (bytes(8), "the header begins with b'', expected '{'"),
    "a long header": (struct.pack("<Q", 2**63) + b"{}", "length is 9223372036854775808, expected at most 2"),
    "a header past the end": (struct.pack("<Q", 3) + b"{}", "length is 3, expected at most 2"),
    "no text": (file_of(b"{\xff}", b""), "codec can't decode"),
    "no JSON": (file_of(b"{x}", b""), "Expecting property name"),
    "no object": (file_of(b"[]", b""), r"begins with b'\[\]"),
    "nested": (file_of(b'{"x":' + b"[" * 200_000, b""), "nested too deeply|Expecting value"),
    "many digits": (file_of(b'{"x":' + b"9" * 5000 + b"}", b""), "not JSON|must be an object"),
    "a name twice": (
        file_of(b'{"x":' + json.dumps(entry()).encode() + b"," + json.dumps(header()).encode()[1:], DATA[:12]),
        "declares 20 data bytes",
    ),
    "metadata": (file_of(header(__metadata__={"a": 1}), DATA), "__metadata__"),
    "no entry": (file_of(header(x=3), DATA), "'x' in its header must be an object of dtype, shape and data_offsets"),
    "too little": (file_of(header(x={"dtype": "F32", "shape": [2]}), DATA), "'x' in its header must be an object"),
    "too much": (file_of(header(x=entry(more=1)), DATA), "'x' in its header must be an object"),
    "dtype": (file_of(header(x=entry("F31")), DATA), "'x' has dtype 'F31', expected one of F32"),
    "dtype of a list": (file_of(header(x=entry(["F32"])), DATA), r"'x' has dtype \['F32'\]"),
    "shape": (file_of(header(x=entry(shape=2)), DATA), "'x' has shape 2, expected a list"),
    "a negative size": (file_of(header(x=entry(shape=[-2])), DATA), r"'x' has shape \[-2\]"),
    "a size of True": (file_of(header(x=entry(shape=[True, 2])), DATA), "'x' has shape"),
    "a size of a float": (file_of(header(x=entry(shape=[2.0])), DATA), "'x' has shape"),
    "many axes": (file_of(header(x=entry(shape=[1] * 64 + [2])), DATA), "expected a list of up to 64 sizes"),
    "another size": (file_of(header(x=entry(shape=[3])), DATA), r"\[0, 8\], expected 12 bytes: shape \[3\] of F32"),
    "large sizes": (file_of(header(x=entry(shape=[2**32, 2**32, 2])), DATA), "'x' has data_offsets"),
    "huge sizes": (file_of(header(x=entry(shape=[2**62] * 64)), DATA), "'x' has data_offsets"),
    "sizes of many digits": (file_of(header(x=entry(shape=[10**4000, 2])), DATA), "'x' has shape"),
    "offsets of many digits": (file_of(header(x=entry(data_offsets=[0, 10**4000])), DATA), "'x' has data_offsets"),
    "a long name": (file_of({"x" * 10_000: 1}, b""), "in its header must be"),
    "offsets": (file_of(header(x=entry(data_offsets=[0])), DATA), r"data_offsets \[0\], expected \[start, stop\]"),
    "offsets backwards": (file_of(header(x=entry(shape=[0], data_offsets=[8, 0])), DATA), "'x' has data_offsets"),
    "an overlap": (
        file_of(header(y=entry(data_offsets=[4, 12])), DATA),
        "'y' overlaps the tensor before it: it starts at 4, expected 8",
    ),
    "a hole": (file_of(header(y=entry(data_offsets=[12, 20])), DATA), "'y' begins after a gap"),
    "a hole first": (file_of(header_of(X), DATA).replace(b"[0, 8]", b"[1, 9]"), "'x' begins after a gap"),
    "one byte less": (file_of(header_of(X), DATA[:-1]), "declares 20 data bytes; the file has 19"),
    "one byte more": (file_of(header_of(X), DATA + b"x"), "declares 20 data bytes; the file has 21"),
}


def test_every_damage_has_its_message(tmp_path):
    path = tmp_path / "a.safetensors"
    for name, (content, words) in DAMAGED.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words) as caught:
            open_tensors(path)
        assert str(caught.value).startswith(f"{path} is damaged or not a .safetensors file: "), name
        assert len(str(caught.value)) < len(str(path)) + 600, name


def test_a_folder_or_nothing_in_place_of_a_file_is_an_oserror(tmp_path):
    for path in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(OSError, match=re.escape(str(path))):
            open_tensors(path)


# Folders


def test_a_file_in_the_folder_stands_for_it(tmp_path):
    folder = write_model(tmp_path / "model")
    expected = models.load(folder)([[1, 2]]).last_hidden_state
    (folder / "other.safetensors").write_bytes(bytes_of(bert_tensors(seed=1)))
    for name in ("config.json", "model.safetensors"):
        assert_same_bits(models.load(folder / name)([[1, 2]]).last_hidden_state, expected)
    other = models.load(str(folder / "other.safetensors"))
    assert not np.array_equal(other([[1, 2]]).last_hidden_state, expected)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected a folder with config\.json and model\.safetensors"):
        models.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        models.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(FileNotFoundError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json$"):
        models.load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle, which may run code"):
        models.load(tmp_path)


def write_shards(folder, tensors, count=3):
    """A model in several files, with an index of its tensors, as large ones are published."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BERT))
    names, places = list(tensors), {}
    for n in range(count):
        file = f"model-{n + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[n::count]}
        (folder / file).write_bytes(bytes_of(part))
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_parts_are_one_model(tmp_path):
    whole, parts = write_model(tmp_path / "whole"), tmp_path / "parts"
    write_shards(parts, bert_tensors())
    ids = [[3, 1, 4]]
    assert_same_bits(models.load(parts)(ids).last_hidden_state, models.load(whole)(ids).last_hidden_state)


def change_index(index, change):
    places = index["weight_map"]
    first, *_, last = places
    if change == "a tensor elsewhere":
        places[first] = places[last] if places[last] != places[first] else "model-00002-of-00003.safetensors"
    elif change == "a tensor that is nowhere":
        places["more"] = places[first]
    elif change == "a tensor left out":
        del places[first]
    elif change == "a path":
        places[first] = f"../parts/{places[first]}"
    elif change == "another kind of file":
        places[first] = "config.json"
    elif change == "a number":
        places[first] = 1
    elif change == "a long name":
        places["x" * 10_000] = places[first]
    elif change == "a long file":
        places[first] = "x" * 10_000
    elif change == "a file that is not there":
        places[first] = "model-00009-of-00003.safetensors"
    elif change == "no map":
        index["weight_map"] = []
    return index


INDEX_CHANGES = {
    "a tensor elsewhere": (ValueError, r"does not fit model-\S+: '[^']+' is in model"),
    "a tensor that is nowhere": (ValueError, r"'more' is in model\.safetensors\.index\.json and not in model-00001"),
    "a tensor left out": (
        ValueError,
        r"is in model-00001-of-00003\.safetensors and not in model\.safetensors\.index\.json",
    ),
    "a path": (ValueError, "names the file '../parts/[^']+', expected a name"),
    "another kind of file": (ValueError, r"names the file 'config\.json'"),
    "a number": (ValueError, "has no weight_map"),
    "a long name": (ValueError, "is in model"),
    "a long file": (ValueError, "names the file"),
    "a file that is not there": (OSError, "model-00009"),
    "no map": (ValueError, "has no weight_map"),
}


def test_every_mistake_of_an_index_has_its_message(tmp_path):
    for change, (error, words) in INDEX_CHANGES.items():
        index = write_shards(tmp_path, bert_tensors())
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(change_index(index, change)))
        with pytest.raises(error, match=words) as caught:
            models.load(tmp_path)
        assert len(str(caught.value)) < 600 + 2 * len(str(tmp_path)), change


CONFIGS = {
    "nothing": (b"", "Expecting value"),
    "no text": (b"\xff", "codec can't decode"),
    "a list": (b"[1]", "holds a JSON list, expected an object"),
    "many digits": (b'{"model_type": ' + b"9" * 5000 + b"}", "not JSON|model_type is"),
    "nested": (b"[" * 200_000, "nested too deeply|Expecting value"),
}


def test_every_damage_of_a_config_has_its_message(tmp_path):
    folder = write_model(tmp_path / "model")
    for content, words in CONFIGS.values():
        (folder / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=words) as caught:
            models.load(folder)
        assert re.match(
            rf"{re.escape(str(folder / 'config.json'))} (is damaged or not JSON|holds|: model_type)", str(caught.value)
        )


def test_a_byte_order_mark_is_read_over(tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())
    assert models.load(folder).config == BERT


def test_a_file_of_json_has_an_end(tmp_path):
    folder = write_model(tmp_path / "model")
    with open(folder / "config.json", "wb") as file:
        file.truncate(2**40)  # takes no place on the disk
    with pytest.raises(
        ValueError, match=r"config\.json has 1099511627776 bytes, expected at most 67108864 for a file of JSON"
    ):
        models.load(folder)
