"""Files give a KVCache back; what holds none gets one kind of error."""

from __future__ import annotations

import contextlib
import re
import zipfile

import numpy as np
import pytest
from support.caches import cache_for, draw, fill, pages_held, part
from support.helpers import assert_same_bits

from pyattn import KVCache, nn


@pytest.fixture
def arrays(dtype):
    return draw(dtype)


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
@pytest.mark.parametrize("window", [None, 30])
def test_a_file_gives_the_cache_back(arrays, window, ending, tmp_path):
    cache = cache_for(arrays, layers=2, window=window, max_length=1000)
    for at in (0, 100, 200):
        cache.append(0, *part(arrays[1:], at, at + 100), lengths=[100, 40])
    fill(cache, arrays, 50, layer=1)
    path = tmp_path / f"cache{ending}"
    cache.save(path)
    found = KVCache.load(path)
    assert repr(found) == repr(cache)
    assert pages_held(found) == pages_held(cache)
    for layer in range(2):
        cache.append(layer, *part(arrays[1:], 300, 302))
        found.append(layer, *part(arrays[1:], 300, 302))
        assert found.start(layer) == cache.start(layer)
        query = arrays[0][:, :, 300:302]
        assert_same_bits(found.attend(layer, query, is_causal=True), cache.attend(layer, query, is_causal=True))


# What holds none

KEY, VALUE = np.zeros((2, 3, 5, 8), np.float32), np.zeros((2, 3, 5, 4), np.float32)


def saved(tmp_path, **changes):
    cache = KVCache(1, 3, 8, v_head_dim=4, batch_size=2, window=5)
    cache.append(0, KEY, VALUE)
    cache.save(tmp_path / "cache.npz")
    state = nn.load(tmp_path / "cache.npz")
    state.update({name.replace("_", "."): array for name, array in changes.items()})
    state = {name: array for name, array in state.items() if array is not None}
    nn.save(state, tmp_path / "cache.npz")
    return tmp_path / "cache.npz"


BROKEN = {
    "no version": ({"version": None}, "version is missing"),
    "version": ({"version": np.array(2)}, "version is 2, expected 1"),
    "no key": ({"0_key": None}, "0.key is missing"),
    "key shape": ({"0_key": KEY[:, :, :4]}, "0.key is (2, 3, 4, 8) of float32, expected (2, 3, 5, 8) of float32"),
    "value dtype": (
        {"0_value": VALUE.astype(float)},
        "0.value is (2, 3, 5, 4) of float64, expected (2, 3, 5, 4) of float32",
    ),
    "half": ({"0_key": KEY.astype("f2")}, "0.value is (2, 3, 5, 4) of float32, expected (2, 3, 5, 4) of float16"),
    "sizes": ({"sizes": np.array([3, 8])}, "sizes are [3, 8], expected three of 1 or more"),
    "no sizes": ({"sizes": np.array([3, 8, 0])}, "sizes are [3, 8, 0], expected three of 1 or more"),
    "lengths": ({"lengths": np.array([[5, -1]])}, "starts are [[0, 0]] and lengths [[5, -1]]"),
    "lengths shape": ({"lengths": np.array([[5]])}, "starts have shape (1, 2) and lengths (1, 1), expected the same"),
    "lengths axes": ({"lengths": np.array([5, 5])}, "lengths has 1 axes and dtype int64, expected 2 and int64"),
    "lengths dtype": (
        {"lengths": np.array([[5.0, 5.0]])},
        "lengths has 2 axes and dtype float64, expected 2 and int64",
    ),
    "longer": ({"lengths": np.array([[5, 9]])}, "0.key is (2, 3, 5, 8) of float32, expected (2, 3, 9, 8) of float32"),
    "starts": (
        {"starts": np.array([[0, 3]]), "lengths": np.array([[5, 5]])},
        "starts are [[0, 3]] and lengths [[5, 5]]",
    ),
    "no layers": (
        {"starts": np.zeros((0, 2), int), "lengths": np.zeros((0, 2), int)},
        "starts have shape (0, 2) and lengths (0, 2), expected the same",
    ),
    "settings": ({"settings": np.array([5])}, "not enough values to unpack"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_hold_no_cache(name, tmp_path):
    changes, message = BROKEN[name]
    path = saved(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} does not hold a saved KVCache: {message}')}"):
        KVCache.load(path)


def test_files_that_are_cut_short(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="does not hold a saved KVCache: "):
            KVCache.load(path)


def test_files_with_bytes_that_changed(tmp_path):
    """A cache, or the one error."""
    path = saved(tmp_path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    outcomes = []
    for at in rng.integers(0, len(whole), 300):
        broken = whole.copy()
        broken[at] ^= 1 << rng.integers(8)
        path.write_bytes(broken)
        with contextlib.suppress(MemoryError):  # a size that grew
            outcomes.append(outcome(path))
    assert set(outcomes) <= {"a cache", "the error"}
    assert "the error" in outcomes


def outcome(path):
    try:
        KVCache.load(path)
    except ValueError as error:
        return "the error" if str(error).startswith(f"{path} does not hold a saved KVCache: ") else str(error)
    return "a cache"


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(FileNotFoundError):
        KVCache.load(tmp_path / "missing.npz")
    path = tmp_path / "pickled.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("version.npy", "w") as file:
        np.lib.format.write_array(file, np.array([None]), allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects, which may run code"):
        KVCache.load(path)
