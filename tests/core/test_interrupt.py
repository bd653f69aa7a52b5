"""Ctrl-C in a long call: KeyboardInterrupt soon after the signal, and the next call works."""

from __future__ import annotations

import json
import os

import pytest
from support.helpers import EVERYTHING, SANITIZED, run_python

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's here"),
]

PATIENCE = 10.0 if SANITIZED else 0.3  # seconds from the signal to the exception, by the clock or the processor
LONG = {  # each would take seconds or years: arrays of any length in little memory
    "prefill": "attend(endless(8, 64, 20000, 64), endless(8, 64, 20000, 64))",
    "prefill, causal": "attend(endless(8, 64, 20000, 64), endless(8, 64, 20000, 64), is_causal=True)",
    "prefill, float64": "attend(endless(8, 64, 9000, 64, dtype='f8'), endless(8, 64, 9000, 64, dtype='f8'))",
    "prefill, one task": "attend(endless(48, 64), endless(1 << 28, 64))",
    "prefill, weights": "attend(endless(512, 30000), endless(4096, 30000), need_weights=True)",
    "decode": "attend(endless(64, 64, 1, 64), endless(64, 64, 1 << 20, 64))",
    "decode, one task": "attend(endless(1, 64), endless(1 << 33, 64))",
    "gradients": "differentiate(endless(1, 8, 20000, 64))",
    "gradients, of one head": "differentiate(endless(60000, 64))",
    "tangents": "derive(endless(1, 8, 20000, 64))",
    "wide heads": "attend(endless(200, 30000), endless(200000, 30000))",
    "linear": "multiply(endless(1 << 17, 4096), endless(4096, 4096))",
    "linear, a deep (in, out)": "multiply(endless(384, 1 << 22), columns(128, 1 << 22))",
    "linear, deep halves": "multiply(endless(384, 1 << 22, dtype='f2'), endless(512, 1 << 22, dtype='f2'))",
    "linear, a deep strided weight": "multiply(endless(8, 1 << 22), endless(1 << 11, 1 << 23)[:, ::2])",
    "linear, few rows": "multiply(endless(8, 1 << 22), columns(1 << 11, 1 << 22))",
    "rotary": "functional.rotary_embedding(endless(1 << 20, 1024), num_threads=threads)",
    "merged states": "pyattn.merge_states([np.ones((4096, 512))] * 2000, [np.ones(4096)] * 2000)",
    "keeps": "functional.dropout_keep_mask((1, 1 << 32), 0.5)",
    "dropout": "attend(endless(8, 64, 20000, 64), endless(8, 64, 20000, 64), dropout_p=0.5)",
    "softmax, another axis": "pyattn.softmax(endless(20000, 4000), axis=0)",
    "small heads": "attend(endless(1 << 22, 1), endless(1 << 20, 1))",
    "additive": "attend(endless(99999, 64), endless(99999, 64), score='additive', score_weight=endless(64))",
    "cosine": "attend(endless(8, 64, 20000, 64), endless(8, 64, 20000, 64), score='cosine')",
    "distance": "attend(endless(8, 64, 20000, 64), endless(8, 64, 20000, 64), score='distance')",
    "bilinear": "attend(endless(99999, 64), endless(99999, 64), score='bilinear', score_weight=endless(64, 64))",
    "top_k": "functional.topk(np.zeros((1 << 19, 1024), 'f4'), 100)",
    "top_k, one row": "functional.topk(np.arange(1 << 24, dtype='f4'), 1 << 22)",
    "softmax": "pyattn.softmax(np.zeros((1 << 19, 1024), 'f4'))",  # memory that is not written to is not there
    "module": "module(*[endless(1, 30000, 256)] * 3, need_weights=False)",
    "module, weights": "module(*[endless(4, 8000, 256)] * 3)",
    "module, projections": "wide_module(*[endless(1, 1 << 14, 4096)] * 3, need_weights=False)",
    "layer": "layer(endless(1, 30000, 256))",
    "feed_forward": "functional.feed_forward(endless(1 << 17, 999), endless(999, 999), None, endless(999, 999), None)",
    "layer_norm": "functional.layer_norm(endless(1 << 20, 1024), 1024)",
    "layer_norm, gradients": "functional.layer_norm_backward(*[endless(1 << 20, 1024)] * 2, 1024)",
    "softmax, gradients": "functional.softmax_backward(*[np.zeros((1 << 19, 1024), 'f4')] * 2)",
    "gelu, gradients": "functional.gelu_backward(*[np.zeros((1 << 19, 1024), 'f4')] * 2)",
    "gelu": "functional.gelu(np.zeros((1 << 20, 1024), 'f4'))",
    # wide rows, as nobody looks for a signal while ids are copied and checked
    "embedding": "functional.embedding(ids, endless(9, 1 << 16), num_threads=threads)",
    "embedding, gradients": "functional.embedding_backward(endless(1 << 14, 1 << 20), ids, 9)",
}

# `make test` asks a call for most of the loops that look for a signal.
ASKED = (
    "prefill",
    "decode",
    "gradients",
    "wide heads",
    "linear",
    "linear, a deep (in, out)",
    "linear, few rows",
    "rotary",
    "merged states",
    "softmax",
    "additive",
    "top_k",
)
ASKED += ("layer", "layer_norm")
WHAT = LONG if EVERYTHING else ASKED

COMMON = """
import faulthandler, json, os, signal, sys, threading, time
import numpy as np, pyattn
from pyattn import _core, functional
from support.helpers import assert_same_bits
from pyattn import functional
from pyattn import nn

faulthandler.dump_traceback_later(120, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def now():
    return np.array([time.perf_counter(), time.process_time()])

def delay_of(call, *arguments, begun=lambda: time.sleep(0.12)):
    "Seconds from Ctrl-C, which comes when `begun` returns, to the exception; other programs' turns do not count."
    def press():
        begun()
        sent.append(now())
        os.kill(os.getpid(), signal.SIGINT)

    sent, thread = [], threading.Thread(target=press)
    thread.start()
    try:
        call(*arguments)
    except KeyboardInterrupt:
        return (now() - sent[0]).min()
    finally:
        thread.join()

rng = np.random.default_rng(0)
"""

SCRIPT = """
def endless(*shape, dtype="f4"):
    return np.broadcast_to(np.ones(shape[-1], dtype), shape)

def columns(*shape):
    return np.lib.stride_tricks.as_strided(np.ones(shape[0], "f4"), shape, (4, 0))

def attend(query, key, **arguments):
    return pyattn.attention(query, key, key, num_threads=threads, **arguments)

def differentiate(x):
    lse = np.full(x.shape[:-1], 60, "f4")
    return functional.attention_backward(x, x, x, x, x, lse, num_threads=threads)

def derive(x):
    lse = np.full(x.shape[:-1], 60, "f4")
    return _core.attention_jvp(x, x, x, x, x, x, x, None, lse, None, num_threads=threads)

def multiply(x, weight):
    return functional.linear(x, weight, num_threads=threads)

small = [rng.standard_normal((2, 8, 128, 64), np.float32) for _ in range(3)]
expected = pyattn.attention(*small)
module = nn.MultiheadAttention(256, 4, batch_first=True, rng=0)
weights = {{"in_proj_weight": endless(3 * 4096, 4096), "out_proj.weight": endless(4096, 4096)}}
wide_module = nn.MultiheadAttention.from_arrays(weights, 32, batch_first=True)
layer, ids = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, rng=0).eval(), np.zeros(1 << 14, int)

delays = []
for threads in {threads}:
    pyattn.set_num_threads(threads)
    delays.append(delay_of(lambda: {call}))
    assert_same_bits(pyattn.attention(*small, num_threads=threads), expected)
    assert np.float32(1e-40) * np.float32(1) != 0  # the floating-point state is the caller's again
print(json.dumps(delays))
"""


def assert_soon(script):
    """Once in three runs all is as soon: others may have the processors for a while."""
    runs = []
    while len(runs) < 3 and (not runs or max(runs[-1]) >= PATIENCE):
        runs.append(json.loads(run_python(script).stdout))
        assert None not in runs[-1], "a call came to its end"
    assert max(runs[-1]) < PATIENCE, runs


@pytest.mark.parametrize("what", WHAT)
def test_ctrl_c_stops_a_long_call(what):
    """With one thread and, twice, with two. Threads that share out endless chunks would need gigabytes for them."""
    threads = [1, 1] if what == "decode, one task" else [1, 2, 2]
    assert_soon(COMMON + SCRIPT.format(call=LONG[what], threads=threads))


DECODING = f"""
most = {1000 if SANITIZED else 4000}
model = nn.TransformerLM(1000, 256, 4, 4, 1024, max_length=5000, rng=0).eval()
prompt = rng.integers(1000, size=(1, 40))

def generate(count):
    generation = pyattn.generate(model, prompt, max_new_tokens=count)
    return generation.tokens, generation.scores

expected = generate(8)
delays = [delay_of(generate, most, begun=lambda: time.sleep(seconds)) for seconds in (0.02, 0.15, 0.4)]
for actual, before in zip(generate(8), expected, strict=True):
    assert_same_bits(actual, before)

def half_of_the_layers_have_all():
    while len(cache.keys(1)) == 1:
        time.sleep(0.001)

cache = model.new_cache()
model.decode_step(prompt, cache)
other = cache.fork()
for _ in range(3):
    prompt = rng.integers(1000, size=(1, most))
    delays.append(delay_of(model.decode_step, prompt, cache, begun=half_of_the_layers_have_all))
    assert cache.lengths.tolist() == [40]
    assert [len(cache.keys(n)) for n in range(4)] == [1] * 4
for token in (3, 1, 4):
    assert_same_bits(model.decode_step([[token]], cache).logits, model.decode_step([[token]], other).logits)
for n in range(4):
    for actual, before in zip(cache.to_arrays(n), other.to_arrays(n), strict=True):
        assert_same_bits(actual, before)
print(json.dumps(delays))
"""


def test_ctrl_c_stops_generating():
    """The same call then gives the same bits; and what a step has put into half of the layers' cache is undone."""
    assert_soon(COMMON + DECODING)


TRAINING = f"""
from pyattn import optim
from pyattn.nn import losses

model = nn.TransformerLM(1000, 256, 4, {1 if SANITIZED else 2}, 1024, rng=0)
optimizer = optim.AdamW(model)
ids = rng.integers(1000, size=({1 if SANITIZED else 4}, 129))

def step(seed=0):
    logits, backward = model.vjp(ids[:, :-1], rng=seed)
    loss, grad = losses.cross_entropy(logits, ids[:, 1:])
    backward(grad)
    optimizer.step()
    model.zero_grad()
    return loss

def copy(state):
    return {{n: {{name: np.array(x) for name, x in own.items()}} for n, own in state.items()}}

step()
parameters = {{name: x.copy() for name, x in model.state_dict().items()}}
state = {{**optimizer.state_dict(), "state": copy(optimizer.state_dict()["state"])}}

def restore():
    model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    model.zero_grad()

start = time.perf_counter()
loss = step()
seconds = time.perf_counter() - start
expected = {{name: x.copy() for name, x in model.state_dict().items()}}
logits = model(ids[:1, :5], rng=3)

def train():
    while True:
        step()

delays = []
for share in (0.1, 0.3, 0.5, 0.7, 0.9):  # of the first step, or of a later one
    restore()
    delays.append(delay_of(train, begun=lambda: time.sleep(share * seconds)))
    assert all(np.isfinite(x).all() for x in model.parameters())
    restore()
    assert not model.grads
    assert step() == loss
    for name, x in model.state_dict().items():
        assert_same_bits(x, expected[name], name)
    assert_same_bits(model(ids[:1, :5], rng=3), logits)  # a plain call, which notes nothing
    assert not model.grads
print(json.dumps(delays))
"""


def test_ctrl_c_stops_training():
    """In forward, backward or the optimiser. From saved parameters and state, a step then gives the same bits."""
    assert_soon(COMMON + TRAINING)


def test_ctrl_c_is_not_lost_in_the_first_call():
    """Where arguments are read no line of Python runs: the signal waits. Asking for the main thread then took it."""
    script = """
import ctypes, functools, signal
import numpy as np, pyattn
from pyattn import functional
signal.signal(signal.SIGINT, signal.default_int_handler)

class Two:  # comes with Ctrl-C, from C alone
    __index__ = staticmethod(functools.partial(max, [int(signal.SIGINT)], key=getattr(ctypes.PyDLL(None), "raise")))

x = np.ones((8, 1000, 64), np.float32)
try:
    pyattn.attention(x, x, x, num_threads=Two())
except KeyboardInterrupt:
    raise SystemExit(0) from None
raise SystemExit("the call came to its end")
"""
    run_python(script)


HANDLER = """
import os, signal, threading, time
import numpy as np, pyattn
from pyattn import functional

class Stop(Exception):
    pass

def handle(signum, frame):
    seen.append(signum)
    if raises:
        raise Stop("the handler's own")

def send():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGUSR1)

signal.signal(signal.SIGUSR1, handle)
query = np.broadcast_to(np.ones(64, "f4"), (4000, 64))
key = np.broadcast_to(np.ones(64, "f4"), (1 << 24, 64))
for raises in (True, False):
    seen, thread = [], threading.Thread(target=send)
    thread.start()
    start, stopped = time.perf_counter(), None
    try:
        pyattn.attention(query if raises else query[:{rows}], key, key)
    except Stop as error:
        stopped = str(error)
    thread.join()
    assert stopped == ("the handler's own" if raises else None), stopped
    assert seen == [signal.SIGUSR1]
"""


def test_a_handler_that_raises_stops_the_call_and_another_does_not():
    run_python(HANDLER.format(rows=1 if SANITIZED else 16))


def test_another_thread_is_not_interrupted():
    """Signals belong to the main thread: a call elsewhere comes to its end."""
    script = """
import os, signal, threading, time
import numpy as np, pyattn
from pyattn import functional
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
arrays = [rng.standard_normal((2, 8, 500, 64), np.float32) for _ in range(3)]
expected, results = pyattn.attention(*arrays), []
def work():
    end = time.monotonic() + 1
    while time.monotonic() < end:
        results.append(np.array_equal(pyattn.attention(*arrays), expected))
thread = threading.Thread(target=work)
thread.start()
try:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    pass
thread.join()
assert results and all(results)
"""
    run_python(script)


def test_the_program_may_end_while_a_daemon_thread_computes():
    """Its stack is gone then, and what its workers read must not be on it."""
    script = """
import threading, time
import numpy as np, pyattn
from pyattn import functional
x = np.zeros((1, 8, 16384, 64), np.float32)
def run(depth):
    return max([0], key=lambda _: run(depth - 1) or 0) if depth else pyattn.attention(x, x, x, num_threads=3)
threading.Thread(target=run, args=(60,), daemon=True).start()
time.sleep(0.3)
"""
    for _ in range(3 if EVERYTHING else 1):
        run_python(script)
