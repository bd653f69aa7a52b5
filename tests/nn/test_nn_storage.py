"""save and load: round trips in both formats, other packages, damage, and no code in files."""

from __future__ import annotations

import io
import re
import zipfile

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.nets import KEYS, Net, X

import pyattn.io.arrays as io_arrays
from pyattn import nn
from pyattn.io.safetensors import open_tensors

ENDINGS = (".npz", ".safetensors")
every_ending = pytest.mark.parametrize("ending", ENDINGS)

ARRAYS = {
    "plain": np.arange(6.0).reshape(2, 3),
    "single": np.ones(3, np.float32),
    "half": np.ones(2, np.float16),
    "scalar": np.array(2.5),
    "empty": np.ones((0, 3)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "reversed": np.arange(6.0)[::-2],
    "swapped": np.arange(3, dtype=">f8"),
    "integers": np.arange(3),
    "bools": np.array([True, False]),
    "file": np.zeros(1),  # numpy.savez has an argument of this name
    "dotted.name.0": np.zeros(1),
}


@every_ending
def test_a_module_survives_the_round_trip(ending, tmp_path):
    source, target = Net(rng=1), Net(rng=2)
    path = tmp_path / f"net{ending}"
    nn.save(source, path)
    state = nn.load(str(path))
    assert list(state) == KEYS
    target.load_state_dict(state)
    assert_same_bits(target(X), source(X))


@every_ending
def test_arrays_keep_their_bits_shape_and_dtype(ending, tmp_path):
    path = tmp_path / f"arrays{ending}"
    nn.save(ARRAYS, path)
    loaded = nn.load(path)
    assert list(loaded) == list(ARRAYS)
    for key, array in ARRAYS.items():
        assert loaded[key].shape == array.shape, key
        assert loaded[key].dtype == array.dtype.newbyteorder("="), key
        np.testing.assert_array_equal(loaded[key], array, err_msg=key)
        assert loaded[key].flags.writeable


@every_ending
def test_an_existing_file_is_replaced_when_the_new_one_is_complete(ending, tmp_path, monkeypatch):
    path, link = tmp_path / f"net{ending}", tmp_path / f"link{ending}"
    link.symlink_to(path)
    nn.save(ARRAYS, path)
    nn.save({"one": [1.0]}, link)
    assert list(nn.load(path)) == ["one"]

    def fail(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(io_arrays, "write_tensors" if ending == ".safetensors" else "_write_npz", fail)
    with pytest.raises(OSError, match="the disk is full"):
        nn.save(ARRAYS, path)
    assert list(nn.load(path)) == ["one"]
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_mapped_weights_are_saved_over_their_own_file(tmp_path):
    """Writing into the file itself would cut off what is being read, which ends the process."""
    path = tmp_path / "net.safetensors"
    nn.save({"x": np.arange(1e5), "y": np.ones(3)}, path)
    mapped = {name: tensor.to_array() for name, tensor in open_tensors(path).items()}
    nn.save({"y": mapped["x"]}, path)
    assert_same_bits(nn.load(path)["y"], np.arange(1e5))
    assert_same_bits(mapped["y"], np.ones(3))


def test_numpy_reads_and_writes_the_same_npz(tmp_path):
    net = Net()
    nn.save(net, tmp_path / "ours.npz")
    content = (tmp_path / "ours.npz").read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        for entry in file.infolist():  # the header of each has room for sizes of 64 bits, over 2 GiB
            assert int.from_bytes(content[entry.header_offset + 28 :][:2], "little") >= 20
    with np.load(tmp_path / "ours.npz", allow_pickle=False) as file:
        assert list(file) == KEYS
        assert_same_bits(file["first.weight"], net.first.weight)
    np.savez_compressed(tmp_path / "theirs.npz", **net.state_dict())
    assert_same_bits(nn.load(tmp_path / "theirs.npz")["first.weight"], net.first.weight)


@pytest.mark.peers
def test_torch_reads_and_writes_the_same_safetensors(tmp_path, torch):
    from safetensors.torch import load_file, save_file

    linear, theirs = nn.Linear(4, 3), torch.nn.Linear(4, 3)
    nn.save(linear, tmp_path / "ours.safetensors")
    theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"))
    assert_same_bits(theirs.weight.detach().numpy(), linear.weight)
    save_file(torch.nn.Linear(4, 3).state_dict(), tmp_path / "theirs.safetensors")
    linear.load_state_dict(nn.load(tmp_path / "theirs.safetensors"))
    assert not np.array_equal(theirs.weight.detach().numpy(), linear.weight)


@pytest.mark.peers
@every_ending
def test_tensors_can_be_saved(ending, tmp_path, torch):
    theirs = torch.nn.Linear(4, 3)
    nn.save(theirs.state_dict(), tmp_path / f"theirs{ending}")
    assert_same_bits(nn.load(tmp_path / f"theirs{ending}")["weight"], theirs.weight.detach().numpy())


def test_pickled_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "evil.npz", weight=np.array([print], object))
    with pytest.raises(ValueError, match=r"evil.npz .*: weight.npy holds Python objects, which may run code") as caught:
        nn.load(tmp_path / "evil.npz")
    assert "allow_pickle" not in str(caught.value)


# Damaged files


@every_ending
@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"no such file " * 9,
        lambda good: good[: len(good) // 2],
        lambda good: good[:-1],
        lambda good: good[100:],
    ],
    ids=["empty", "another kind", "half", "the last byte", "the first bytes"],
)
def test_a_damaged_file_is_named(ending, damage, tmp_path):
    path = tmp_path / f"net{ending}"
    nn.save(Net(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is damaged or not a {ending} file: "):
        nn.load(path)


def test_an_array_that_claims_more_than_there_is_takes_no_memory(tmp_path):
    path = tmp_path / "large.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weight.npy", header.getvalue() + bytes(16))
    with pytest.raises(ValueError, match=r"weight.npy holds 16 bytes of data, expected 8796093022208: shape \(1099"):
        nn.load(path)


def mutated(good, rng):
    """Cut off, with some bits flipped, or without some bytes."""
    data = bytearray(good)
    place = int(rng.integers(len(data)))
    match rng.integers(3):
        case 0:
            del data[place:]
        case 1:
            for where in rng.integers(len(data), size=int(rng.integers(1, 4))):
                data[where] ^= 1 << int(rng.integers(8))
        case 2:
            del data[place : place + int(rng.integers(1, 9))]
    return bytes(data)


@pytest.mark.parametrize("write", [nn.save, lambda arrays, path: np.savez_compressed(path, **arrays)], ids=["", "z"])
def test_a_damaged_npz_is_refused_or_right(write, tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "arrays.npz"
    arrays = {"a.weight": rng.standard_normal((3, 4)), "b": np.ones(5, np.float32), "c": np.zeros((0, 3))}
    write(arrays, path)
    good, refused = path.read_bytes(), 0
    for _ in range(200):
        path.write_bytes(mutated(good, rng))
        try:
            state = nn.load(path)
        except (ValueError, OSError):
            refused += 1
            continue
        assert state.keys() == arrays.keys()
        for key, array in arrays.items():
            assert_same_bits(state[key], array)
    assert refused > 100


def test_a_damaged_safetensors_is_refused_or_read(tmp_path):
    """It has no checksum: a flipped bit of a number gives another number."""
    rng, path = np.random.default_rng(0), tmp_path / "arrays.safetensors"
    nn.save({"a.weight": rng.standard_normal((3, 4)), "b": np.ones(5, np.float32)}, path)
    good, refused = path.read_bytes(), 0
    for _ in range(200):
        path.write_bytes(mutated(good, rng))
        try:
            nn.load(path)
        except (ValueError, OSError):
            refused += 1
    assert refused > 100


@for_each("path", ["weights", "weights.npy", "weights.pt", ".npz", "weights.NPZ"])
def test_other_endings_are_refused(path, tmp_path):
    for call in (lambda: nn.save({}, tmp_path / path), lambda: nn.load(tmp_path / path)):
        with pytest.raises(ValueError, match=r"^path ends in '.*', expected '.npz' or '.safetensors'$"):
            call()
    assert not list(tmp_path.iterdir())


@every_ending
@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ([1.0], "obj is of type list, expected a Module or a mapping of names to arrays"),
        ({"weight": np.array([print], object)}, "weight has dtype object, expected numbers"),
        ({"weight": "text"}, "weight has dtype <U4, expected numbers"),
        ({"weight": np.ma.ones(2)}, "weight is a masked array"),
        ({"weight": [1.0], 3: [2.0]}, "obj has the key 3 of type int, expected names of type str"),
    ],
    ids=["list", "objects", "text", "masked", "key"],
)
def test_objects_that_cannot_be_saved_are_refused_and_leave_no_file(obj, message, ending, tmp_path):
    with pytest.raises(TypeError, match=message):
        nn.save(obj, tmp_path / f"file{ending}")
    assert not list(tmp_path.iterdir())


@every_ending
def test_a_key_that_a_file_would_cut_off_is_refused(ending, tmp_path):
    with pytest.raises(ValueError, match=r"^obj has the key 'b\\x00c', expected names without NUL$"):
        nn.save({"b\0c": [1.0]}, tmp_path / f"file{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dtype", "other"), [("longdouble", "float64"), ("complex128", "complex64")])
def test_a_dtype_that_safetensors_lacks_is_refused_with_the_fix(dtype, other, tmp_path):
    weight = np.ones(2, dtype)
    message = f"weight has dtype {weight.dtype}, which .safetensors lacks; pass weight.astype(numpy.{other})"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}, or save a .npz$"):
        nn.save({"weight": weight}, tmp_path / "file.safetensors")
    assert not list(tmp_path.iterdir())
    for path, array in (("file.npz", weight), ("file.safetensors", weight.astype(other))):
        nn.save({"weight": array}, tmp_path / path)
        loaded = nn.load(tmp_path / path)["weight"]
        assert loaded.dtype == array.dtype
        np.testing.assert_array_equal(loaded, array)


@pytest.mark.peers
def test_torchs_bfloat16_goes_over_and_back(tmp_path, torch):
    from safetensors.torch import load_file, save_file

    theirs, path = torch.nn.Linear(4, 3), tmp_path / "theirs.safetensors"
    save_file(theirs.bfloat16().state_dict(), path)
    found = nn.load(path)
    assert {array.dtype.name for array in found.values()} == {"bfloat16"}
    assert_same_bits(found["weight"].astype(np.float32), theirs.weight.float().detach().numpy())
    again = tmp_path / "again.safetensors"
    nn.save(found, again)
    assert torch.equal(load_file(again)["weight"], theirs.weight)
    with pytest.raises(TypeError, match=r"weight has dtype bfloat16, which .npz lacks; save a .safetensors"):
        nn.save({"weight": found["weight"]}, tmp_path / "a.npz")


def test_what_numpy_writes_of_bfloat16_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, weight=nn.Linear(2, 2).bfloat16().weight)
    with pytest.raises(
        ValueError, match=r"a\.npz holds weight as \|V2, probably bfloat16, .* save a \.safetensors, or"
    ):
        nn.load(path)


def test_a_dtype_that_numpy_lacks_is_named_with_the_fix(tmp_path):
    path = tmp_path / "theirs.safetensors"
    header = b'{"weight":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"12")
    message = rf"^{re.escape(str(path))} holds weight as F8_E5M2, a dtype that NumPy lacks: .* module.float\(\)"
    with pytest.raises(ValueError, match=message):
        nn.load(path)


@every_ending
def test_a_missing_file_is_an_oserror(ending, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        nn.load(tmp_path / f"missing{ending}")


def test_the_name_that_safetensors_reserves_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"key '__metadata__', which \.safetensors reserves; rename it, or save a \.npz"
    ):
        nn.save({"__metadata__": [1.0]}, tmp_path / "file.safetensors")
    assert not list(tmp_path.iterdir())
    nn.save({"__metadata__": [1.0]}, tmp_path / "file.npz")
    assert list(nn.load(tmp_path / "file.npz")) == ["__metadata__"]


def test_files_with_metadata_and_without_tensors_are_read(tmp_path):
    nn.save({}, tmp_path / "none.safetensors")
    assert nn.load(tmp_path / "none.safetensors") == {}
    text = b'{"__metadata__":{"format":"pt"}}'
    (tmp_path / "none.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert nn.load(tmp_path / "none.safetensors") == {}
