"""The border between Python and C: arrays that change in a call, ends of memory, small stacks, forks, bad arguments."""

from __future__ import annotations

import array
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import EVERYTHING, SANITIZED, assert_same_bits, for_each, normal, run_python

import pyattn

# Arrays that Python code changes in the middle of a call -------------------------------------------------------------

CHANGING = """
import faulthandler, warnings
import numpy as np, pyattn

faulthandler.enable()

class Changing(np.random.SeedSequence):
    "Calls `change` when a seed is drawn from it."

    def generate_state(self, *arguments):
        change()
        return super().generate_state(*arguments)

def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("no ValueError")

def warn(*arguments, **options):
    change()
    warnings.showwarning = no_warning

def no_warning(*arguments, **options):
    pass

warnings.simplefilter("always")
x = np.ones((1024, 1024), np.float32)
few, ones = x[:16], np.eye(16, dtype=np.float32)
"""

# Each line would read or write megabytes past the end of an array that has the shape of before.
CHANGES = {
    "attention, a mask of nine axes": """
        mask = np.eye(16, dtype=np.float32)
        def change(): mask.resize((1, 1, 1, 1, 1, 1, 1, 16, 16), refcheck=False)
        warnings.showwarning = warn
        message = refused(lambda: pyattn.attention(ones, ones, ones, attn_mask=mask))
        assert message == "an array that changed during the call has 9 axes, expected at most 8", message
    """,
    "rotary, the copy of the frequencies": """
        class Watched(np.ndarray):
            def __array_finalize__(self, other): seen.append(self)
        class Positions:
            def __array__(self, *arguments, **options):
                for array in seen:
                    if array.flags.owndata: array.resize(1, refcheck=False)
                return np.array([1, 2])
        seen = []
        rotate = pyattn.functional.rotary_embedding
        frequencies = pyattn.functional.rotary_frequencies(200_000)
        watched = frequencies._replace(inv_freq=frequencies.inv_freq.view(Watched))
        seen.clear()
        wide = np.ones((2, 200_000), np.float32)
        given = rotate(wide, frequencies=watched, position_ids=Positions())
        assert (given == rotate(wide, frequencies=frequencies, position_ids=[1, 2])).all()
    """,
    "attention, out": """
        out = np.empty_like(x)
        def change(): out.resize((2, 524288), refcheck=False)
        message = refused(lambda: pyattn.attention(x, few, few, dropout_p=0.5, rng=Changing(0), out=out))
        assert message == "out has shape (2, 524288), expected (1024, 1024)", message
    """,
    "attention, out, a warning": """
        out = np.empty_like(x)
        def change(): out.resize((2, 524288), refcheck=False)
        warnings.showwarning = warn
        message = refused(lambda: pyattn.attention(x, few, few, attn_mask=np.ones((1024, 16), np.float32), out=out))
        assert message == "out has shape (2, 524288), expected (1024, 1024)", message
    """,
    "attention, key": """
        key = x.copy()
        def change(): key.resize((3, 5), refcheck=False)
        message = refused(lambda: pyattn.attention(few, key, key, dropout_p=0.5, rng=Changing(0)))
        assert message.startswith("key has head_dim 5 but query has 1024"), message
    """,
    "attention, a bilinear score": """
        weight = x.copy()
        def change(): weight.resize((3, 5), refcheck=False)
        message = refused(lambda: pyattn.attention(
            few, few, few, score="bilinear", score_weight=weight, dropout_p=0.5, rng=Changing(0)))
        assert message.startswith("score_weight has shape (3, 5), expected (1024, 1024)"), message
    """,
    "multi_head_attention_forward": """
        weight, last = np.ones((3072, 1024), np.float32), x.copy()
        def change(): last.resize((3, 5), refcheck=False)
        message = refused(lambda: pyattn.functional.multi_head_attention_forward(
            few, few, few, 1024, 2, weight, None, None, None, False, 0.5, last, None, rng=Changing(0)))
        assert message == "out_weight has shape (3, 5), expected (out_dim, 1024)", message
    """,
    "multi_head_attention_forward, a warning": """
        weight, last = np.ones((3072, 1024), np.float32), x.copy()
        def change(): last.resize((3, 5), refcheck=False)
        warnings.showwarning = warn
        message = refused(lambda: pyattn.functional.multi_head_attention_forward(
            few, few, few, 1024, 2, weight, None, None, None, False, 0.0, last, None, attn_mask=ones))
        assert message == "out_weight has shape (3, 5), expected (out_dim, 1024)", message
    """,
    "TransformerEncoderLayer, a warning": """
        layer = pyattn.nn.TransformerEncoderLayer(1024, 2, 1024, batch_first=True, rng=0).eval()
        def change(): layer.linear1.weight.resize((3, 5), refcheck=False)
        warnings.showwarning = warn
        message = refused(lambda: layer(few, src_mask=ones))
        assert "in_weight has shape (3, 5)" in message, message
    """,
}


@pytest.mark.parametrize("name", CHANGES)
def test_arrays_are_looked_at_after_the_last_python_code(name):
    """The code that draws a seed, or shows a warning, may change the arrays of the call."""
    run_python(CHANGING + "\n".join(line[8:] for line in CHANGES[name].splitlines()))


SHAPES = """
import faulthandler
import numpy as np, pyattn

faulthandler.enable()
x, weight, residual = np.ones((4, 8), np.float32), np.ones((3, 8), np.float32), np.ones((4, 8), np.float32)
ids, frequencies, calls, decoys = np.array([0, 2, 1, 1]), np.ones(4), [], []

class Out(np.ndarray):
    "Gives the arrays new memory for their shapes when it is asked for its class, and lets go of the old."

    @property
    def __class__(self):
        calls.append(1)
        for array in (x, weight, residual):
            decoys.extend(np.empty(shape) for shape in [(1,), (1, 1)] * 20)  # empties NumPy's store of such memory
            array.shape = array.shape
            for shape in [(10**6,), array.shape] * 5:  # one of them gets the old memory
                decoys.append(np.lib.stride_tricks.as_strided(x, shape, (1 << 40,) * len(shape)))
        return np.ndarray

expected = CALL
out = np.empty(expected.shape, np.float32).view(Out)
assert type(out) is Out
calls.clear()
assert CALL_WITH_OUT is out
assert calls
assert np.array_equal(np.asarray(out), expected)
"""
SHAPE_CALLS = {
    "attention": "pyattn.attention(x, weight, weightOUT)",
    "linear": "pyattn.functional.linear(x, weightOUT)",
    "embedding": "pyattn.functional.embedding(ids, weight, scale=2, residual=residualOUT)",
    "rotary": "pyattn._core.rotary(x, frequenciesOUT)",
    "feed_forward": "pyattn.functional.feed_forward(x, weight, None, weight.T, None, residual=residualOUT)",
}


@pytest.mark.parametrize("name", SHAPE_CALLS)
def test_no_shape_is_kept_while_python_code_runs(name):
    """An array gets new memory for its shape when one is assigned to it. Looking at the type of `out` may do that."""
    call = SHAPE_CALLS[name]
    script = SHAPES.replace("CALL_WITH_OUT", call.replace("OUT)", ", out=out)"))
    run_python(script.replace("CALL", call.replace("OUT)", ")")))


RESIZES = """
import faulthandler
import numpy as np, pyattn

faulthandler.enable()
x, weight = np.ones((2048, 2048), np.float32), np.ones((64, 2048), np.float32)
frequencies, ids = np.ones(1024), np.full(4, 2047)

class Out(np.ndarray):
    @property
    def __class__(self):
        x.resize((3, 5), refcheck=False)
        return np.ndarray

out = np.empty(SHAPE, np.float32).view(Out)
try:
    CALL
except ValueError as error:
    assert "5)" in str(error), error  # of the new shape
else:
    raise AssertionError("no error")
"""
RESIZED = {
    "attention": ("pyattn.attention(x, x, x, out=out)", (2048, 2048)),
    "linear": ("pyattn.functional.linear(x, weight, out=out)", (2048, 64)),
    "embedding": ("pyattn.functional.embedding(ids, x, out=out)", (4, 2048)),
    "rotary": ("pyattn._core.rotary(x, frequencies, out=out)", (2048, 2048)),
    "feed_forward": ("pyattn.functional.feed_forward(x, weight, None, weight.T, None, out=out)", (2048, 2048)),
}


@pytest.mark.parametrize("name", RESIZED)
def test_looking_at_out_may_resize_an_input(name):
    """The old memory is gone: the call must be refused, not read it."""
    call, shape = RESIZED[name]
    run_python(RESIZES.replace("SHAPE", str(shape)).replace("CALL", call))


THREAD_RESHAPES = """
import faulthandler, sys, threading, time
import numpy as np, pyattn

faulthandler.dump_traceback_later(60, exit=True)
sys.setswitchinterval(1e-6)

class Slow(np.random.SeedSequence):
    def generate_state(self, *arguments):
        time.sleep(0)
        return super().generate_state(*arguments)

query, key, value = np.ones((1024, 4), np.float32), np.ones((3, 4), np.float32), np.ones((3, 1024), np.float32)
out, done, fitted, refused = np.empty((1024, 1024), np.float32), [], 0, 0

def flip():
    while not done:
        out.shape = 2, -1
        let_others_run()
        out.shape = 1024, 1024

def let_others_run():
    "The interpreter changes threads when a function begins."

thread = threading.Thread(target=flip)
thread.start()
while min(fitted, refused) < TIMES:
    try:
        pyattn.attention(query, key, value, dropout_p=0.5, rng=Slow(0), out=out)
        fitted += 1
    except ValueError:
        refused += 1
done.append(1)
thread.join()
"""


@pytest.mark.threads
def test_an_out_that_another_thread_reshapes_crashes_nothing():
    """The rows that it had would lie megabytes apart in the shape that it gets."""
    run_python(THREAD_RESHAPES.replace("TIMES", "300" if EVERYTHING else "100"))


# Arrays that end where the memory ends -------------------------------------------------------------------------------

GUARDED = """
import ctypes, faulthandler, mmap
import numpy as np, pyattn
from pyattn import _core, functional
from support.helpers import assert_same_bits

faulthandler.enable()
libc = ctypes.CDLL(None)
regions = []

def guarded(array):
    "A copy whose last byte lies before a page that cannot be read."
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    regions.append(mmap.mmap(-1, size + mmap.PAGESIZE))
    page = ctypes.addressof(ctypes.c_char.from_buffer(regions[-1])) + size
    assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0  # PROT_NONE
    copy = np.frombuffer(regions[-1], array.dtype, array.size, size - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy

calls = {
    "attention": lambda x, y, **_: pyattn.attention(x, y, y),
    "attention, one query": lambda x, y, **_: pyattn.attention(x[-1:], y, y),
    "attention, bool mask": lambda x, y, keep, **_: pyattn.attention(x, y, y, attn_mask=keep),
    "attention, float mask": lambda x, y, mask, **_: pyattn.attention(x, y, y, attn_mask=mask),
    "cosine": lambda x, y, **_: pyattn.attention(x, y, y, score="cosine"),
    "distance": lambda x, y, **_: pyattn.attention(x, y, y, score="distance"),
    "additive": lambda x, y, w, **_: pyattn.attention(x, y, y, score="additive", score_weight=w[-1]),
    "bilinear": lambda x, y, w, **_: pyattn.attention(x, y, y, score="bilinear", score_weight=w),
    "linear": lambda x, w, **_: functional.linear(x, w, w[-1], residual=x),
    "linear, one row": lambda x, w, **_: functional.linear(x[-1:], w),
    "linear, (in, out)": lambda x, w, **_: functional.linear(x, w.T),
    "feed_forward": lambda x, w, **_: functional.feed_forward(x, w, w[-1], w, w[-1], gate_weight=w),
    "layer_norm": lambda x, w, **_: functional.layer_norm(x, x.shape[-1], w[-1], w[-1], residual=x),
    "rms_norm": lambda x, w, **_: functional.rms_norm(x, x.shape[-1], w[-1]),
    "rotary_embedding": lambda x, **_: functional.rotary_embedding(x[..., x.shape[-1] % 2 :]),
    "embedding": lambda w, **_: functional.embedding([0, len(w) - 1], w),
    "softmax": lambda x, **_: functional.softmax(x),
    "log_softmax": lambda x, **_: functional.log_softmax(x),
    "cross_entropy": lambda x, **_: pyattn.nn.losses.cross_entropy(x, np.arange(len(x)) % x.shape[-1], weight=x[-1])[1],
    "cross_entropy, probabilities": lambda x, y, **_: pyattn.nn.losses.cross_entropy(y, y, weight=x[-1])[1],
    "sum_squares": lambda x, **_: np.array(_core.sum_squares(x)),
    "gelu": lambda x, **_: functional.gelu(x),
    "silu": lambda x, **_: functional.silu(x),
    "gelu_backward": lambda x, **_: functional.gelu_backward(x, x),
    "softmax_backward": lambda x, **_: functional.softmax_backward(x, x),
    "log_softmax_backward": lambda x, **_: functional.log_softmax_backward(x, x),
    "layer_norm_backward": lambda x, w, **_: functional.layer_norm_backward(x, x, x.shape[-1], w[-1]).x,
    "rms_norm_backward": lambda x, w, **_: functional.rms_norm_backward(x, x, x.shape[-1], w[-1]).weight,
    "embedding_backward": lambda x, **_: functional.embedding_backward(x, [0, 1, 2, 3, 0], 4),
    "topk": lambda x, **_: functional.topk(x, x.shape[-1]).values,
    "dropout": lambda x, **_: functional.dropout(x, 0.5, rng=0),
    "merge_states": lambda x, **_: pyattn.merge_states([x, x], [x[:, -1], x[:, -1]])[0],
}
for dim in (1, 2, 3, 7, 18, 37):
    for dtype in ("float32", "float64"):
        rng = np.random.default_rng(dim)
        shapes = {"x": (5, dim), "y": (dim, dim), "w": (dim, dim), "mask": (5, dim)}
        plain = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
        plain["keep"] = plain["mask"] > 0
        ends = {name: guarded(array) for name, array in plain.items()}
        for level in _core._levels():
            _core._set_isa(level)
            for name, call in calls.items():
                assert_same_bits(call(**ends), call(**plain), f"{name}, dim {dim}, {dtype}, {level}")
"""


def test_nothing_is_read_past_the_end_of_an_array():
    """A row is not a multiple of a vector: what is left over is read by itself."""
    run_python(GUARDED)


# Threads with a small stack ------------------------------------------------------------------------------------------

SMALL_STACK = """
import faulthandler, sys, threading, warnings
import numpy as np, pyattn
from support.calls import WORKING
from support.module_calls import MODULES
from pyattn import _core, nn

faulthandler.enable()
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 4, 200, 32), np.float32)
long, rows = rng.standard_normal((1, 1, 5000, 32), np.float32), rng.standard_normal((4, 400, 32), np.float32)
holes, mask, wide = long.copy(), np.tri(200, dtype=bool), rng.standard_normal((64, 1024), np.float32)
holes[0, 0, 3], up = np.nan, wide[:, :32]
norms = [
    nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=first, rng=0).eval()
    for first in (False, True)
]
decoder = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True, norm_first=True, rng=0).eval()
model, one = nn.TransformerLM(20, 32, 4, 2, 64, rng=0).eval(), nn.MultiheadAttention(32, 4, batch_first=True, rng=0)
cache = pyattn.KVCache(1, 1, 32)
cache.append(0, long, long)
large = {
    "causal": lambda: pyattn.attention(x, x, x, is_causal=True, num_threads=2),
    "everything": lambda: pyattn.attention(
        x, x, x, attn_mask=mask, key_lengths=[200, 7], dropout_p=0.3, rng=0, need_weights=True, need_lse=True),
    "scores": lambda: [pyattn.attention(x, x, x, score=score) for score in ("cosine", "distance")],
    "additive": lambda: pyattn.attention(x, x, x, score="additive", score_weight=x[0, 0, 0]),
    "bilinear": lambda: pyattn.attention(x, x, x, score="bilinear", score_weight=x[0, 0, :32]),
    "decode": lambda: pyattn.attention(long[:, :, :1], long, long, num_threads=2),
    "decode, one thread": lambda: pyattn.attention(long[:, :, :1], long, long, num_threads=1),
    "decode, distances": lambda: pyattn.attention(long[:, :, :2], long, long, score="distance"),
    "decode, aliases": lambda: pyattn.attention(wide[:1], wide, wide),
    "redone": lambda: pyattn.attention(long[:, :, :90], long, holes, window=(4, 4), align="upper_left"),
    "redone, decode": lambda: pyattn.attention(long[:, :, :1], long, holes, attn_mask=np.arange(5000) % 2 == 0),
    "cache": lambda: cache.attend(0, long[:, :, :3], is_causal=True),
    "linear": lambda: [pyattn.functional.linear(y, wide) for y in (wide, wide[:1], np.asfortranarray(wide))],
    "feed_forward": lambda: pyattn.functional.feed_forward(rows, up, None, up.T, None, gate_weight=up),
    "multi_head": lambda: one(rows.reshape(1, -1, 32), *[rows.reshape(1, -1, 32)] * 2, average_attn_weights=False),
    "layers": lambda: [layer(rows, is_causal=True) for layer in norms],
    "decoder": lambda: decoder(rows, rows, tgt_is_causal=True),
    "generate": lambda: pyattn.generate(model, [[3, 1, 4], [1]], max_new_tokens=5, num_beams=2),
}
calls = WORKING | MODULES | large

def run_all():
    for name, call in calls.items():
        print(name, flush=True)
        call()
    done.append(1)

warnings.simplefilter("ignore")
run_all, done = run_all, []
run_all()  # what is imported at first use is imported here
threading.stack_size(65536)
thread = threading.Thread(target=run_all)
thread.start()
thread.join()
assert len(done) == 2
"""


@pytest.mark.threads
@pytest.mark.skipif(SANITIZED, reason="a sanitizer's frames are several times as large")
def test_every_call_does_with_a_stack_of_64_kb():
    """`threading.stack_size` allows as little, and NumPy runs in it."""
    run_python(SMALL_STACK)


# The environment and forks -------------------------------------------------------------------------------------------

LATER = """
import os, pyattn
os.environ["PYATTN_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "5"
assert pyattn.get_num_threads() == 3, pyattn.get_num_threads()
"""


@pytest.mark.threads
@pytest.mark.parametrize("name", ["PYATTN_NUM_THREADS", "OMP_NUM_THREADS"])
def test_the_environment_is_read_at_import(name):
    """A call runs beside other threads, which may change the environment while it is read."""
    run_python(LATER, **{"PYATTN_NUM_THREADS": None, "OMP_NUM_THREADS": None, name: "3"})


# Stands before the C library's function. Once armed, the next registration waits until a byte can be read.
REGISTERING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static int armed, say, wait_for;

void arm(int out, int in)
{
    say = out;
    wait_for = in;
    armed = 1;
}

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *dso)
{
    int (*next)(void (*)(void), void (*)(void), void (*)(void), void *) = dlsym(RTLD_NEXT, "__register_atfork");
    char byte = 0;
    if (armed) {
        armed = 0;
        if (write(say, &byte, 1) != 1 || read(wait_for, &byte, 1) != 1) return 1;
    }
    return next(prepare, parent, child, dso);
}
"""
FORK_MEANWHILE = """
import ctypes, os, sys, threading
import numpy as np, pyattn

x = np.ones((64, 128, 32), np.float32)
library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else os.environ["LD_PRELOAD"])
registering, registered = os.pipe(), os.pipe()
library.arm(registering[1], registered[0])

def threads():
    return len(os.listdir("/proc/self/task"))

def fork():
    os.read(registering[0], 1)
    child = os.fork()
    if child == 0:
        pyattn.attention(x, x, x, num_threads=2)
        os._exit(threads())
    os.write(registered[1], b"x")
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

statuses, thread = [], threading.Thread(target=fork)
thread.start()
pyattn.attention(x, x, x, num_threads=2)
thread.join()
assert statuses == [2], statuses
"""


@pytest.mark.threads
@pytest.mark.skipif(SANITIZED, reason="a sanitizer's library is to be the first that is loaded")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes the place of a function of glibc")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_at_the_first_call_has_threads_of_its_own(tmp_path):
    """The pool is watched for forks before it is taken: a child does not inherit one that nobody gives back."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "registering.c").write_text(REGISTERING)
    library = tmp_path / "registering.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "registering.c", "-ldl"], check=True)
    run_python(FORK_MEANWHILE, LD_PRELOAD=str(library), OPENBLAS_NUM_THREADS="1", timeout=60)


# An `out` that overlaps itself ---------------------------------------------------------------------------------------

X, WEIGHT = normal(4, 8), normal(6, 8, seed=1)
CACHE = pyattn.KVCache(1, 1, 8)
CACHE.append(0, X[np.newaxis, np.newaxis], X[np.newaxis, np.newaxis])

WITH_OUT = {
    "attention": lambda out: pyattn.attention(X, X, X, out=out),
    "additive_attention": lambda out: pyattn.additive_attention(X, X, X, WEIGHT.T, WEIGHT.T, WEIGHT[:, 0], out=out),
    "KVCache.attend": lambda out: CACHE.attend(0, X[np.newaxis, np.newaxis], out=out),
    "linear": lambda out: pyattn.functional.linear(X, WEIGHT, out=out),
    "embedding": lambda out: pyattn.functional.embedding([0, 5, 2], WEIGHT, out=out),
    "rotary_embedding": lambda out: pyattn.functional.rotary_embedding(X, out=out),
    "RotaryEmbedding": lambda out: pyattn.nn.RotaryEmbedding(8)(X, out=out),
    "feed_forward": lambda out: pyattn.functional.feed_forward(X, WEIGHT, None, WEIGHT.T, None, out=out),
}


@for_each("name", WITH_OUT)
def test_an_out_that_overlaps_itself_is_refused(name):
    call = WITH_OUT[name]
    expected = call(None)
    *outer, rows, features = expected.shape
    for strides in ((0, 4), (4, 0), (8, 4), (4 * features - 4, 4), (-4, 4)):
        memory = np.full(200, 7, np.float32)
        out = np.lib.stride_tricks.as_strided(memory[100:], expected.shape, (400,) * len(outer) + strides)
        with pytest.raises(ValueError, match=r"^out overlaps itself: .*; pass an array .* numpy\.empty_like\(out\)$"):
            call(out)
        np.testing.assert_array_equal(memory, 7)
    assert_same_bits(call(np.empty_like(expected)), expected)
    assert_same_bits(call(np.empty((*outer, features, rows), np.float32).swapaxes(-1, -2)), expected)


def test_only_an_out_that_overlaps_itself_is_refused():
    """Strides of all kinds, some of which step over one another without meeting."""
    rng, refused = np.random.default_rng(0), 0
    for _ in range(2000):
        shape = tuple(rng.integers(1, 4, 3))
        strides = rng.integers(-13, 14, 3)
        places = np.tensordot(strides, np.indices(shape), 1)
        apart = np.unique(places).size == places.size
        memory = np.full(200, 7, np.float32)
        out = np.lib.stride_tricks.as_strided(memory[100:], shape, tuple(4 * strides))
        arrays = rng.standard_normal((3, *shape), np.float32)
        try:
            pyattn.attention(*arrays, out=out)
            assert apart, (shape, strides)
            np.testing.assert_array_equal(out, pyattn.attention(*arrays))
        except ValueError:
            assert not apart, (shape, strides)
            refused += 1
    assert 200 < refused < 1800


def test_elements_that_share_a_few_bytes_overlap():
    memory = np.zeros(100, np.int32).view(np.float64)
    out = np.lib.stride_tricks.as_strided(memory, (4, 8), (64, 4))
    with pytest.raises(ValueError, match="out overlaps itself"):
        pyattn.attention(*[X.astype(np.float64)] * 3, out=out)


def test_an_out_without_two_elements_overlaps_nothing():
    one, none = np.ones((1, 1), np.float32), np.ones((0, 4), np.float32)
    for x in (one, none):
        out = np.lib.stride_tricks.as_strided(x.copy(), x.shape, (0, 0))
        assert pyattn.attention(x, x, x, out=out) is out


# Arguments that are mistakes -----------------------------------------------------------------------------------------


@for_each("window", [b"ab", bytearray(b"ab"), memoryview(b"ab"), array.array("b", b"ab"), "ab"])
def test_text_is_not_a_window(window):
    """Bytes are a sequence of integers to Python."""
    message = rf"^window is of type (array\.)?{type(window).__name__}, expected an int or \(left, right\)$"
    with pytest.raises(TypeError, match=message):
        pyattn.attention(X, X, X, window=window)
    with pytest.raises(TypeError, match=message):
        pyattn.self_attention(X, WEIGHT.T, WEIGHT.T, WEIGHT.T, window=window)


@pytest.mark.parametrize(
    "number",
    [2**70, -(2**70), 2**64, -(2**63) - 1, 10**5000],
    ids=["2**70", "-2**70", "2**64", "-2**63-1", "10**5000"],
)
@pytest.mark.parametrize("name", ["key_lengths", "query_lengths"])
def test_a_length_that_no_int64_holds_is_too_large(name, number):
    """No cast helps, so that none is proposed."""
    message = rf"^{name} holds an int that is too large for int64$"
    for lengths in (number, [number], np.array(number, object)):
        with pytest.raises(ValueError, match=message):
            pyattn.attention(X, X, X, **{name: lengths})
    with pytest.raises(ValueError, match=message):
        pyattn.attention(np.stack([X, X]), X, X, **{name: [2, number]})


def test_ids_and_positions_that_no_int64_holds_are_too_large():
    with pytest.raises(ValueError, match=r"^input holds an int that is too large for int64$"):
        pyattn.functional.embedding([0, 2**70], WEIGHT)
    with pytest.raises(ValueError, match=r"^position_ids holds an int that is too large for int64$"):
        pyattn.functional.rotary_embedding(X, position_ids=[0, 1, 2, 2**70])


# A packed projection of one feature ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_feature_takes_a_bias_of_any_stride(step, dtype):
    """The three biases of one element each are not read as one of three."""
    x, ones = normal(5, 2, 1, dtype=dtype), np.ones((1, 1), dtype)
    weight, bias = normal(3, 1, dtype=dtype, seed=1), normal(6, dtype=dtype, seed=2)[::step][:3]

    def forward(bias):
        arguments = (None, None, False, 0.0, ones, None)
        return pyattn.functional.multi_head_attention_forward(x, x, x, 1, 1, weight, bias, *arguments)

    for given, expected in zip(forward(bias), forward(bias.copy()), strict=True):
        assert_same_bits(given, expected)
