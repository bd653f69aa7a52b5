"""Fork after use: parent and child go on, with the same bits, also while another thread is at work."""

from __future__ import annotations

import os

import pytest
from support.helpers import EVERYTHING, SANITIZED, run_python, tenth

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

ROUNDS = min(tenth(50), 10 if SANITIZED else 50)  # four seconds each under ASan beside other work
TIMES = 3 if EVERYTHING else 1
SECONDS = 120 if SANITIZED else 40  # far more than any needs: what hangs, hangs
LENGTH = 500 if SANITIZED else 2000

COMMON = f"""
import os, signal, threading, time, warnings
import numpy as np, pyattn
from pyattn import functional
from support.helpers import bits

signal.alarm({SECONDS})  # a lock that nobody opens any more
warnings.simplefilter("ignore", DeprecationWarning)  # what this is about: threads and fork
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((2, 8, length, 32), np.float32) for length in (100, 600, 600)]
held, model = pyattn.KVCache(1, 8, 32, batch_size=2), pyattn.nn.TransformerLM(20, 16, 2, 2, 32, rng=0).eval()
held.append(0, *arrays[1:])

def compute(threads=2):
    result = pyattn.attention(*arrays, num_threads=threads, need_lse=True)
    few = pyattn.attention(arrays[0][:, :, :1], *arrays[1:], num_threads=threads)
    soft = pyattn.softmax(arrays[1])
    norms = functional.layer_norm(arrays[1], 32), functional.rms_norm(arrays[1], 32)
    gradients = functional.layer_norm_backward(arrays[1], arrays[2], 32)
    gradients += functional.embedding_backward(arrays[1][0, 0], np.arange(600) % 9, 9),
    gradients += functional.attention_backward(
        arrays[0], *arrays, result.output, result.lse, num_threads=threads, need=("query", "key", "value")
    )
    layer = pyattn.nn.TransformerEncoderLayer(32, 2, 64, 0.0, rng=0)
    gradients += layer.vjp(arrays[0][0])[1](arrays[0][0])
    cache = held.fork()  # its last page is copied
    cache.append(0, arrays[1][:, :, :1], arrays[2][:, :, :1])
    read = cache.attend(0, arrays[0], is_causal=True, num_threads=threads)
    scores = pyattn.generate(model, [[3, 1, 4], [1]], max_new_tokens=3).scores
    return b"".join(bits(x).tobytes() for x in (result.output, result.lse, few, soft, *norms, *gradients, read, scores))

def forked(work):
    child = os.fork()
    if child == 0:
        signal.alarm({SECONDS})
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return child

def succeeded(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

AGAIN_AND_AGAIN = f"""
expected = compute()

def child():
    right = compute() == expected and compute(3) == expected
    grandchild = forked(lambda: compute() == expected)  # fork again, after use
    return compute() == expected and succeeded(grandchild) and right

for _ in range({ROUNDS}):
    pid = forked(child)
    assert compute() == expected
    assert succeeded(pid)
"""

BEFORE_USE = """
pid = forked(lambda: len(compute()) > 0)
assert succeeded(pid)
first = compute()
assert first == compute(1)
"""

WHILE_OTHERS_WORK = f"""
expected, stop = compute(), []

def work():
    while not stop:
        assert compute() == expected

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range({ROUNDS}):
    assert succeeded(forked(lambda: compute() == expected and compute() == expected))
stop.append(1)
for thread in threads:
    thread.join()
assert compute() == expected
"""

MULTIPROCESSING = """
import multiprocessing

def digest(n):
    return compute(n)

expected = compute()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(digest, [1, 2, 3, 1]) == [expected] * 4
"""

IN_A_SIGNAL_HANDLER = f"""
parent, children = os.getpid(), []

def handle(signum, frame):
    child = os.fork()
    if child:
        children.append(child)

signal.signal(signal.SIGUSR1, handle)
query, few = (rng.standard_normal((1, 4, length, 64), np.float32) for length in ({LENGTH}, 1))
long = np.broadcast_to(query[:, :, None], (1, 4, 100, {LENGTH}, 64)).reshape(1, 4, -1, 64)
wide, module = query.reshape(1, -1, 256)[:, :700], pyattn.nn.MultiheadAttention(256, 4, 0.1, batch_first=True, rng=0)
turning = pyattn.nn.MultiheadAttention(8, 2, batch_first=True, rng=0, rotary=pyattn.nn.RotaryEmbedding(4)).eval()
layer = pyattn.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, rng=0).eval()
first = pyattn.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True, rng=0).eval()
small = rng.standard_normal(({3 * LENGTH}, 16, 8), np.float32)  # most of the time goes to what is done in place
rows, up = small.reshape(-1, 8), rng.standard_normal((1000, 64), np.float32)
in_place = lambda x: functional.rotary_embedding(x, offset=3, num_threads=2, out=x)
held = pyattn.KVCache(1, 4, 64)
held.append(0, *[long[:, :, : {5 * LENGTH}]] * 2)
pyattn.set_num_threads(2)
calls = {{
    "tasks": lambda: pyattn.attention(query, query, query, num_threads=2),
    "spans": lambda: pyattn.attention(few, long, long, num_threads=2),
    "linear": lambda: functional.linear(query.reshape(-1, 64), query.reshape(-1, 64), num_threads=2),
    "embedding": lambda: functional.embedding(np.arange({50 * LENGTH}) % len(wide[0]), wide[0], scale=2, num_threads=2),
    "top_k": lambda: functional.topk(long[0, 0, :20000], 5).values,
    "dropout": lambda: functional.dropout(long[0, 0, :100000], 0.3, rng=0),
    "rotary": lambda: functional.rotary_embedding(long[:, :, : {20 * LENGTH}], offset=3, num_threads=2),
    "rotary in place": lambda: in_place(long[:, :, : {20 * LENGTH}].copy()),
    "module": lambda: module(wide, wide, wide, rng=0, average_attn_weights=False)[0],
    "rotary in a module": lambda: turning(small, small, small, need_weights=False)[0],
    "parts of a module": lambda: turning(*[rows[None]] * 3, window=(2, 2), need_weights=False)[0],
    "feed_forward": lambda: functional.feed_forward(query.reshape(-1, 64), up, None, up.T, None, gate_weight=up),
    "layer": lambda: layer(small),
    "layer, a norm first": lambda: first(small),
    "layer_norm": lambda: functional.layer_norm(long[:, :, : {20 * LENGTH}], 64),
    "cache": lambda: held.attend(0, query[:, :, : {LENGTH // 4}], num_threads=2),
    "generate": lambda: pyattn.generate(model, [[3, 1, 4]], max_new_tokens=20).scores,
}}
for name, call in calls.items():
    expected = call()
    for _ in range({TIMES}):
        timer = threading.Timer(0.004, os.kill, (parent, signal.SIGUSR1))
        timer.start()
        same = np.array_equal(call(), expected)
        timer.join()
        time.sleep(0.01)  # on a busy machine the signal comes as late as here
        if os.getpid() != parent:
            os._exit(0 if same else 3)  # the child came out of the same call
        assert same, name
assert len(children) == {TIMES} * len(calls)
assert all(succeeded(child) for child in children)
"""


@pytest.mark.parametrize(
    "script",
    [
        AGAIN_AND_AGAIN,
        BEFORE_USE,
        WHILE_OTHERS_WORK,
        MULTIPROCESSING,
        pytest.param(IN_A_SIGNAL_HANDLER, marks=pytest.mark.slow),
    ],
    ids=["again and again", "before use", "while others work", "multiprocessing", "in a signal handler"],
)
def test_parent_and_child_get_the_same_bits(script):
    run_python(COMMON + script, timeout=2 * SECONDS)
