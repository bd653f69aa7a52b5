"""Denormals are flushed inside the core and nowhere else: the caller's floating-point state is as it was."""

from __future__ import annotations

import ctypes
import platform
import threading
from functools import partial

import numpy as np
import pytest
from support.calls import WORKING
from support.module_calls import MODULES

import pyattn
from pyattn import _core, nn
from pyattn.testing import bounds

LIBM = ctypes.CDLL(None)
UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
# Invalid, division by zero, overflow, underflow. Not inexact, which any division raises, the interpreter's own too.
FLAGS = {"x86_64": 0x1D, "aarch64": 0x0F}.get(platform.machine())
INEXACT = {"x86_64": 0x20, "aarch64": 0x10}.get(platform.machine())
USUAL = [*WORKING.values(), *MODULES.values()]  # all there is, in all its ways, with numbers as they should be
needs_fenv = pytest.mark.skipif(
    UPWARD is None, reason=f"fenv.h's constants for {platform.machine()} are not known here"
)


@pytest.fixture
def arrays(dtype):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((5, 70, 24)).astype(dtype) for _ in range(3)]  # enough for two threads


def denormals_work():
    return bool(np.float32(1e-40) * np.float32(1) != 0 and np.float64(5e-324) * np.float64(1) != 0)


def attention_calls(arrays):
    """Attention of numbers that overflow, underflow and are invalid on the way.

    The numbers are made here: NumPy's own arithmetic has its own way with the flags.
    """
    query, key, value = arrays
    most, least = np.finfo(query.dtype).max, np.finfo(query.dtype).tiny
    large, invalid, infinite = (np.full_like(query, number) for number in (most, np.nan, np.inf))
    far, tiny, mask = query * 40, value * least, np.full(70, -most)
    return [
        lambda: pyattn.attention(query, key, value),
        lambda: pyattn.attention(query, key, value, num_threads=2, need_weights=True, need_lse=True),
        lambda: pyattn.attention(query[:, :1], key, value, is_causal=True, align="lower_right"),
        lambda: pyattn.attention(far, key, tiny),
        lambda: pyattn.attention(large, large, large),
        lambda: pyattn.attention(invalid, key, infinite),
        lambda: pyattn.attention(query, key, value, attn_mask=mask),
        *(partial(pyattn.attention, query, key, value, dropout_p=p, rng=0) for p in (5e-324, 0.1, 1 - 2**-53, 1.0)),
        lambda: pyattn.functional.dropout_keep_mask((3, 300), 0.1, rng=0),
        lambda: pyattn.attention(large, far, tiny, score="cosine"),
        lambda: pyattn.attention(far, large, value, score="distance", need_lse=True),
        lambda: pyattn.attention(large, key, value, score="bilinear", score_weight=large[0, :24]),
        lambda: pyattn.attention(invalid, key, value, score="additive", score_weight=large[0, 0]),
    ]


def cached(rows):
    """Attention to keys and values in pages."""
    cache = pyattn.KVCache(1, rows.shape[1], rows.shape[3], dtype=rows.dtype)
    cache.append(0, rows, rows)
    return cache.attend(0, rows, is_causal=True)


def step_optimizers(large):
    """Steps that overflow, of a parameter that does not matter later."""
    moments = [np.zeros_like(large) for _ in range(2)]
    assert _core.adam_step(large.copy(), large, *moments, None, 0.1, 0.9, 0.999, 1e-8, 0.1, 1, True, False)
    assert _core.sgd_step(large.copy(), large, moments[0], 0.1, 0.9, 0.3, 0.1, False, False, False)


def calls(arrays):
    """Every function that enters the core, with numbers that do as those above."""
    query, key, _ = arrays
    far, large, lse = query * 40, np.full_like(query, np.finfo(query.dtype).max), query[..., 0] * 100
    return [
        *attention_calls(arrays),
        lambda: pyattn.softmax(far),
        *(partial(pyattn.functional.dropout, large, p, rng=0) for p in (5e-324, 0.1, 1 - 2**-53, 1.0)),
        lambda: pyattn.functional.log_softmax(large),
        lambda: nn.losses.cross_entropy(far, np.zeros(far.shape[:-1], int), label_smoothing=0.1),
        lambda: nn.losses.cross_entropy(large[0, :0], [], weight=large[0, 0]),
        lambda: nn.losses.cross_entropy(large[0, :, :0], large[0, :, :0]),
        lambda: step_optimizers(large),
        lambda: pyattn.functional.argmax(large),
        lambda: pyattn.functional.topk(np.full_like(query, np.nan), 3),
        lambda: pyattn.merge_states([query, key], [lse, lse]),
        lambda: pyattn.functional.linear(far, large[0]),
        lambda: pyattn.functional.embedding([0, 1], large[0], scale=9.0, residual=large[0, 0]),
        lambda: pyattn.functional.rotary_embedding(large, rotary_dim=4, offset=10),
        *(partial(activate, x) for activate in (pyattn.functional.gelu, pyattn.functional.silu) for x in (far, large)),
        lambda: pyattn.functional.layer_norm(far, 24, residual=large),
        lambda: pyattn.functional.rms_norm(large, 24),
        *(partial(_core.activate_backward, large, large, kind, far) for kind in ("relu", "gelu", "silu", "tanh")),
        lambda: pyattn.functional.softmax_backward(large, far),
        lambda: pyattn.functional.log_softmax_backward(large, far),
        lambda: pyattn.functional.layer_norm_backward(large, far, 24),
        lambda: pyattn.functional.rms_norm_backward(far, large, 24),
        lambda: pyattn.functional.embedding_backward(large[0], [0] * large.shape[1], 2, scale=9.0),
        lambda: pyattn.functional.feed_forward(large, far[0], None, far[0].T, None, activation="silu"),
        lambda: pyattn.self_attention(large, *[far[0, :24]] * 3, num_threads=2),
        lambda: _core.multi_head(large, far, far, *[far[0, :24]] * 3, heads=2, num_threads=2),
        lambda: nn.TransformerEncoderLayer(24, 2, 48, batch_first=True, dtype=large.dtype, rng=0).eval()(large),
        lambda: cached(large[np.newaxis]),
    ]


def test_denormals_work_after_every_call(arrays, level):
    assert denormals_work()
    for call in [*calls(arrays), *USUAL]:
        call()
        assert denormals_work()


def test_denormals_work_after_an_exception(arrays):
    for mistake in ({"attn_mask": np.zeros((2, 2))}, {"key_lengths": [71] * 5}, {"out": np.zeros(3)}, {"scale": "a"}):
        with pytest.raises((ValueError, TypeError)):
            pyattn.attention(*arrays, **mistake)
        assert denormals_work()


@pytest.mark.threads
def test_denormals_work_in_every_thread(arrays):
    found = []

    def attend():
        for call in calls(arrays):
            call()
        found.append(denormals_work())

    threads = [threading.Thread(target=attend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


@needs_fenv
def test_flags_stay_down(arrays, level):
    for call in calls(arrays):
        LIBM.feclearexcept(FLAGS)
        call()
        assert LIBM.fetestexcept(FLAGS) == 0


@needs_fenv
def test_flags_stay_up(arrays, level):
    for call in attention_calls(arrays):  # the others call NumPy, which takes flags down
        LIBM.feraiseexcept(FLAGS)
        call()
        assert LIBM.fetestexcept(FLAGS) == FLAGS
    LIBM.feclearexcept(FLAGS)


@needs_fenv
@pytest.mark.parametrize("columns", [1, 70])
@pytest.mark.parametrize("queries", [1, 70])
def test_what_a_mask_holds_raises_no_flag(queries, columns, arrays, level):
    """Inexact neither: numbers that the query's dtype lacks, and a NaN that would complain of being looked at."""
    query, key, value = arrays[0][:, :queries], *arrays[1:]
    tenth, huge, tiny = np.longdouble(1) / 10, np.longdouble(2) ** 16000, np.longdouble(2) ** -16400
    signalling = np.array(0x7FA00000, np.uint32).view(np.float32), np.array(0x7FF4 << 48, np.uint64).view(np.float64)
    masks = [
        np.broadcast_to(number, (queries, columns)) for number in (tenth, huge, tiny, np.float64(0.1), *signalling)
    ]
    raised = []
    for mask in masks:
        LIBM.feclearexcept(FLAGS | INEXACT)
        pyattn.attention(query, key, value, attn_mask=mask)
        raised.append(LIBM.fetestexcept(FLAGS | INEXACT))
    LIBM.feclearexcept(FLAGS | INEXACT)
    assert raised == [0] * len(masks)


@needs_fenv
def test_flags_of_both_units_stay_up(arrays):
    mask = np.full(70, np.longdouble(1) / 10)
    for flag in (1 << bit for bit in range(8) if FLAGS >> bit & 1):
        LIBM.feclearexcept(FLAGS)
        LIBM.feraiseexcept(flag)
        before = LIBM.fetestexcept(FLAGS)
        pyattn.attention(*arrays, attn_mask=mask)
        assert LIBM.fetestexcept(FLAGS) == before
    LIBM.feclearexcept(FLAGS)


@needs_fenv
def test_the_rounding_mode_is_the_callers(arrays):
    for call in [*calls(arrays), *USUAL]:
        call()
        LIBM.fesetround(UPWARD)
        call()
        mode = LIBM.fegetround()
        LIBM.fesetround(0)
        assert mode == UPWARD


@needs_fenv
def test_the_rounding_mode_does_not_reach_the_core(arrays, level):
    """Given the scale, which is computed before."""
    expected = pyattn.attention(*arrays, scale=0.25, need_lse=True)
    LIBM.fesetround(UPWARD)
    result = pyattn.attention(*arrays, scale=0.25, need_lse=True)
    LIBM.fesetround(0)
    np.testing.assert_array_equal(result.output, expected.output)
    np.testing.assert_array_equal(result.lse, expected.lse)


# Denormal-making input gets right answers


@pytest.mark.parametrize("queries", [1, 70])
def test_one_strong_key(queries, arrays, dtype, level):
    """The others are 95 nats below (float64: 730): their weights are denormals."""
    query, key, value = arrays
    below = 95 if dtype == "float32" else 730
    mask = np.full(70, -below, dtype)
    mask[3] = 0
    arrays = (query[:, :queries], key, value)
    result = pyattn.attention(*arrays, attn_mask=mask, need_weights=True, need_lse=True)
    expected = bounds.expect(*arrays, dtype, attn_mask=mask)
    assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR
    assert bounds.weights_ratio(result.weights, expected) <= 1
    assert bounds.lse_ratio(result.lse, expected) <= 1


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_arrays_of_denormals(which, queries, arrays, dtype, level):
    arrays[which] *= np.finfo(dtype).tiny / 100
    arrays[0] = arrays[0][:, :queries]
    result = pyattn.attention(*arrays)
    assert bounds.output_ratio(result, bounds.expect(*arrays, dtype)) <= bounds.OUTPUT_BAR


def test_softmax_far_below(dtype, level):
    for below in (80, 88, 95, 103, 110, 700, 710, 740, 750):
        x = np.array([0, -below, -below - 0.5], dtype)
        assert bounds.softmax_ratio(pyattn.softmax(x), x) <= 1
        assert bounds.softmax_ratio(pyattn.functional.log_softmax(x), x, logarithm=True) <= 1


@pytest.mark.threads
def test_other_levels_do_not_leave_their_state(arrays, levels):
    for level in levels:
        _core._set_isa(level)
        pyattn.attention(*arrays, num_threads=2)
    assert denormals_work()
