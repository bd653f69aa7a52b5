"""Arrays that another thread changes, resizes or reshapes in the midst of a call: undefined numbers, never a crash."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
from support.helpers import SANITIZED, run_python

import pyattn

pytestmark = pytest.mark.threads


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 4, length, 32), np.float32) for length in (100, 900, 900)]


def exception_of(call):
    """What kind of exception a call raises; None for none."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def keep_changing(change, call, seconds=1.0):
    """Call while another thread changes what the call reads."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            change()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            call()
    finally:
        stop.set()
        thread.join()


def test_numbers_that_change_meanwhile_crash_nothing(arrays):
    query, key, value = arrays
    mask = np.ones((100, 900), np.float32) * 0.5
    rng = np.random.default_rng(1)

    def change():
        for array in (query, key, value, mask):
            array[..., : rng.integers(1, 30)] = rng.choice([np.nan, np.inf, -np.inf, 0, 1e38])

    keep_changing(change, lambda: pyattn.attention(query, key, value, attn_mask=mask, num_threads=2, need_weights=True))


LENGTHS = """
import faulthandler, sys, threading, time
import numpy as np, pyattn

faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
query = key = value = np.ones((512, 128, 32), np.float32)
lengths, stop = np.full(512, 128), []

def change():
    while not stop:
        for number in (10**12, -(10**12), 2**63 - 1, -(2**63), 128):
            lengths[:] = number
            time.sleep(0.0005)

thread = threading.Thread(target=change)
thread.start()
end, calls, refused = time.monotonic() + 1, 0, 0
while time.monotonic() < end or not 0 < refused < calls:
    calls += 1
    try:
        pyattn.attention(
            query, key, value, {name}=lengths, is_causal=True, align="lower_right", num_threads=calls % 2 + 1
        )
    except ValueError:
        refused += 1
stop.append(1)
thread.join()
"""


@pytest.mark.parametrize("name", ["key_lengths", "query_lengths"])
def test_lengths_that_change_meanwhile_crash_nothing(name):
    """What was checked is what is used: else a row could be looked for anywhere. Goes on until both have been seen."""
    run_python(LENGTHS.format(name=name))


def test_memory_in_use_cannot_be_resized():
    """The call holds on to its arrays: whoever resizes one meanwhile is told."""
    query, key = np.ones((1, 300, 32), np.float32), np.ones((1, 600, 32), np.float32)
    memory = bytearray(600 * 32 * 4)
    value = np.frombuffer(memory, np.float32).reshape(1, 600, 32)
    refused = []

    def change():
        resizes = (lambda: key.resize((1, 601, 32)), lambda: key.resize((1, 600, 32)), lambda: memory.append(0))
        refused.extend(exception_of(resize) for resize in resizes)

    def call():
        with contextlib.suppress(ValueError):  # key may have 601 rows between two calls
            pyattn.attention(query, key, value, num_threads=2)

    keep_changing(change, call, 0.5)
    assert BufferError in refused
    assert ValueError in refused


RESHAPING = """
import faulthandler, threading
import numpy as np, pyattn

faulthandler.dump_traceback_later(60, exit=True)
x, weight = np.ones((2, 4), np.int64), np.eye(4, dtype=np.int64)  # converted in every call
masks = [np.ones((2, 2), bool), np.ones((2, 2), np.float32), np.ones((1, 2, 2), bool)]
done = False

def reshape():
    while not done:
        for mask in masks:
            mask.shape = mask.shape + (1,) * 20
            mask.shape = mask.shape[:-20]

thread = threading.Thread(target=reshape)
thread.start()
for n in range(ROUNDS):
    for mask in masks:
        try:
            pyattn.self_attention(x, weight, weight, weight, attn_mask=mask, key_lengths=2)
        except (ValueError, pyattn.MaskWarning):
            pass
done = True
thread.join()
"""


def test_a_mask_that_another_thread_reshapes_is_no_crash():
    run_python(RESHAPING.replace("ROUNDS", "300" if SANITIZED else "3000"), options=("-W", "ignore"))


EMPTIED = """
import numpy as np, pyattn

class Emptying:
    def __array__(self, dtype=None, copy=None):
        rows.clear()
        return np.ones(4)

rows = [Emptying() for _ in range(50)]
print(pyattn.nn.losses.mse_loss(rows, np.zeros((50, 4)))[0])
"""


def test_a_list_that_its_own_items_empty_is_read_as_it_was():
    """NumPy itself borrows the items of a list, and crashes."""
    assert run_python(EMPTIED, PYTHONMALLOC="debug").stdout == "1.0\n"
