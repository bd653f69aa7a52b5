"""What a call takes beyond its inputs and its output: never an array of (L, S), not even one of bools.

The core allocates through Python's own allocator, whose peak tracemalloc tells. It is started before a process's first
call, so that scratch memory which is kept for the next call counts there, too.
"""

from __future__ import annotations

import json

import pytest
from support.helpers import run_python

LENGTH = 4096
MOST = 16e6  # bytes: less than one for each pair of a query and a key
assert MOST < LENGTH**2

SCRIPT = """
import json, tracemalloc
import numpy as np, pyattn
from pyattn import nn

pyattn.set_num_threads({threads})
rng = np.random.default_rng(0)
{prepare}
tracemalloc.start()

def extra(call):
    tracemalloc.reset_peak()
    result = call()
    results = result if isinstance(result, tuple) else (result,)
    return tracemalloc.get_traced_memory()[1] - sum(array.nbytes for array in results if array is not None)

print(json.dumps([{calls}]))
"""


def extra_bytes(threads, prepare, *calls):
    """The peak during each call beyond what it returns; inputs are not counted."""
    listed = ", ".join(f"extra(lambda: {call})" for call in calls)
    return json.loads(run_python(SCRIPT.format(prepare=prepare, calls=listed, threads=threads)).stdout)


ATTENTION = f"""
query, key, value = (rng.standard_normal((2, 2, {LENGTH}, 64), np.float32) for _ in range(3))
pairs = rng.random(({LENGTH}, {LENGTH})) < 0.9
padding = np.arange({LENGTH}) < np.array([{LENGTH}, 3000])[:, None, None, None]
bias = rng.standard_normal((2, 1, {LENGTH}), np.float32)
"""
ARGUMENTS = (
    "",
    "attn_mask=pairs",
    "attn_mask=padding",
    f"attn_mask=np.broadcast_to(padding, (2, 2, {LENGTH}, {LENGTH}))",
    "attn_mask=bias",
    "is_causal=True",
    "is_causal=True, attn_mask=pairs",
    "window=300, attn_mask=padding",
    f"key_lengths=[{LENGTH}, 3000]",
    "need_lse=True",
    "dropout_p=0.5, rng=0, attn_mask=padding",
    "score='distance', attn_mask=pairs",
)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_attention_takes_less_than_a_byte_for_each_pair(threads):
    calls = [f"pyattn.attention(query, key, value, {arguments})" for arguments in ARGUMENTS]
    extra = dict(zip(calls, extra_bytes(threads, ATTENTION, *calls), strict=True))
    assert {call: number for call, number in extra.items() if number > MOST} == {}


def test_scratch_memory_is_counted():
    """Else the limits here would say nothing. Two threads have a packed block of 24 queries each, and their sums."""
    (extra,) = extra_bytes(2, ATTENTION, "pyattn.attention(query, key, value)")
    assert extra >= 2 * 2 * 24 * 64 * 4


def test_weights_are_counted_where_they_are_made():
    """An array of pairs, if that is what is asked for, and none beside it."""
    call = "pyattn.attention(x, x, x, need_weights=True)"
    prepare = f"x = rng.standard_normal(({LENGTH}, 8), np.float32)"
    of_weights, beside = extra_bytes(2, prepare, f"({call}.weights[0],)", call)
    assert of_weights >= 4 * LENGTH**2
    assert beside <= MOST


DERIVATIVES = """
from pyattn.functional import attention_backward, attention_jvp
query, key, value, grad, output = rng.standard_normal((5, {length}, 64), np.float32)
lse = np.full({length}, 9, np.float32)
"""


@pytest.mark.parametrize(
    ("length", "threads"), [(8192, 1), (LENGTH, 2), pytest.param(16384, 1, marks=pytest.mark.slow)]
)
def test_gradients_take_memory_for_rows_and_not_for_pairs(length, threads):
    """Beyond the gradients: a few arrays of each thread's, as large as queries and values; 8,192**2 weights are 268 MB.

    A twentieth is for padding, and a MB a thread for blocks of keys and for tiles. The values in lse do not matter.
    """
    call = "attention_backward(grad, query, key, value, output, lse)"
    (extra,) = extra_bytes(threads, DERIVATIVES.format(length=length), call)
    rows = 4 * length * (3 * 64 + 2 * 64 + 4)  # as the docstring of attention_backward says
    assert threads * rows <= extra <= threads * (1.05 * rows + 1e6)


def test_a_tangent_takes_the_room_of_a_logsumexp_and_of_tiles():
    (extra,) = extra_bytes(1, DERIVATIVES.format(length=LENGTH), "attention_jvp(query, key, value, grad, grad, grad)")
    assert 4 * LENGTH <= extra <= 4 * LENGTH + 1e6


MODULE = """
module = nn.MultiheadAttention(256, 8, batch_first=True, rng=0).eval()
x = rng.standard_normal((4, 512, 256), np.float32)
y = x + 1
padding = np.arange(512) >= np.array([512, 400, 300, 1])[:, None]
pairs = rng.random((512, 512)) < 0.1
"""
INPUT = 4 * 512 * 256 * 4  # bytes
INPUTS = (
    "x, x, x",
    "x, y, y",
    "x, x, x, is_causal=True",
    "x, x, x, key_padding_mask=padding",
    "x, x, x, attn_mask=pairs",
    "x, x, x, attn_mask=pairs, key_padding_mask=padding, is_causal=True",
)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_module_takes_five_times_its_input(threads):
    """Four arrays of its size are there at a time: q, k, v and what the heads give. All else has the room of one more.

    Rows of those four are padded to an odd number of cache lines, a sixteenth at most. The other three quarters of an
    input, 1.5 MB, are for two threads' blocks. Scores of one byte would be 4 inputs.
    """
    calls = [f"module({inputs}, need_weights=False)" for inputs in INPUTS]
    times = [extra / INPUT for extra in extra_bytes(threads, MODULE, *calls)]
    assert {call: number for call, number in zip(calls, times, strict=True) if not 4 <= number <= 5} == {}


LONG = """
module = nn.MultiheadAttention(256, 8, batch_first=True, rng=0).eval()
x = rng.standard_normal((1, 8192, 256), np.float32)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inputs", ["x, x, x", "x, x, x, is_causal=True"])
def test_one_long_entry_takes_three_times_its_input(inputs):
    """Two arrays of its size are k and v, padded by a sixteenth at most. Of q and the heads' output a tenth is there.

    All else, two threads' blocks, has the room of two thirds of an input, 5 MB.
    """
    (extra,) = extra_bytes(2, LONG, f"module({inputs}, need_weights=False)")
    assert 2 <= extra / (8192 * 256 * 4) <= 3


ENCODER = """
layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first={norm_first}, rng=0)
encoders = [nn.TransformerEncoder(layer, n).eval() for n in (2, 12)]
x = rng.standard_normal({shape}, np.float32)
"""


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_takes_no_more_for_more_layers(norm_first):
    """Three times its input, with what it returns: for that, for what the layer before gave, and one for groups.

    A group is two entries, a sixteenth of this batch. Four parts of that are q, k, v and heads; four the hidden rows,
    where those are not; and the rest is for two threads' blocks, which stay there for the next call.
    """
    prepare = ENCODER.format(norm_first=norm_first, shape=(32, 512, 256))
    few, many = extra_bytes(2, prepare, "encoders[0](x)", "encoders[1](x)")
    whole = 32 * 512 * 256 * 4
    assert 1 + 4 / 16 <= many / whole <= 2
    assert many <= few + 0.1 * whole


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_nor_does_one_long_entry_alone(norm_first):
    """Besides what it returns: what the layer before gave, k and v, and less than one more for all that is in parts."""
    prepare = ENCODER.format(norm_first=norm_first, shape=(1, 8192, 256))
    few, many = extra_bytes(2, prepare, "encoders[0](x)", "encoders[1](x)")
    whole = 8192 * 256 * 4
    assert 3 <= many / whole <= 4
    assert many <= few + 0.1 * whole
