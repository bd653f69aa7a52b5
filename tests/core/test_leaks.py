"""Nothing is left behind by calls, be they right or wrong: by 300 of each, and by 10,000 in `make suite-all`."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from itertools import repeat

import numpy as np
import pytest
from support.calls import WORKING
from support.helpers import EVERYTHING, SANITIZED, for_each
from support.mistaken_calls import MISTAKES
from support.module_calls import MODULES, MODULES_MISTAKES

import pyattn

RIGHT, WRONG = WORKING | MODULES, MISTAKES | MODULES_MISTAKES
TIMES = 10_000 if EVERYTHING and not SANITIZED else 300
MOST_BLOCKS = 5
LESS_OFTEN = {"generate": 20, "SentenceEncoder": 20, "models": 100, "files": 100}
LESS_OFTEN |= {"compare": 20, "assert_attention_close": 500, "check": 1000}
if not EVERYTHING:
    LESS_OFTEN |= {"init": 10, "Seq2SeqTransformer": 10, "compare": 30}
SLOW = {"assert_attention_close, far", "check"}
SHARES = 12  # of a test each

pytestmark = pytest.mark.skipif(sys.getallocatedblocks() == 0, reason="PYTHONMALLOC=malloc counts no blocks")


@pytest.fixture(autouse=True, scope="module")
def _other_objects():
    """What other tests left is none of the collector's business here: there is much of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def refused(mistake):
    try:
        mistake()
    except Exception:
        return
    pytest.fail("no mistake")


CALLS = [*RIGHT.items(), *((name, functools.partial(refused, mistake)) for name, mistake in WRONG.items())]
QUICK = [(name, call) for name, call in CALLS if name not in SLOW]


def times_of(name):
    """Less often what is many calls in one, or reads files; more often than blocks are allowed."""
    return max(2 * MOST_BLOCKS, TIMES // LESS_OFTEN.get(name.partition(",")[0], 1))


def growth(run, times=TIMES):
    """Blocks that are alive after run(times) and were not before; the least of several, as CPython's caches fill."""
    run(min(50, times))
    least = float("inf")
    for _ in range(30):
        gc.collect()
        before = sys.getallocatedblocks()
        run(times)
        gc.collect()
        least = min(least, sys.getallocatedblocks() - before)
        if least <= MOST_BLOCKS:
            break
    return least


def left_behind(calls):
    """Names and blocks of the calls that leave more than a few."""

    def run(call, times):
        for _ in repeat(None, times):
            call()

    blocks = {name: growth(functools.partial(run, call), times_of(name)) for name, call in calls}
    return {name: count for name, count in blocks.items() if count > MOST_BLOCKS}


@pytest.mark.parametrize("share", range(SHARES))
def test_calls_and_mistakes_leave_nothing_behind(share):
    assert left_behind(QUICK[share::SHARES]) == {}


@pytest.mark.slow
def test_slow_calls_leave_nothing_behind():
    assert left_behind([(name, call) for name, call in CALLS if name in SLOW]) == {}


@pytest.mark.sampled(2)
@pytest.mark.peers
@pytest.mark.parametrize("share", [False, True])
def test_modules_there_and_back_leave_nothing_behind(share, torch):
    from torch.nn.utils import prune

    interop, theirs = pyattn.interop.torch, torch.nn.MultiheadAttention(4, 2)
    pruned = prune.l1_unstructured(torch.nn.Linear(4, 3), "weight", 0.5)

    def run(times):
        for _ in repeat(None, times):
            interop.to_torch(interop.from_torch(theirs, share), share)
            with contextlib.suppress(ValueError):  # where share is
                interop.from_torch(pruned, share)

    assert growth(run, 2 * MOST_BLOCKS) <= MOST_BLOCKS


@pytest.mark.peers
def test_an_accelerated_model_leaves_nothing_behind(torch):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.ones(1, 3, 8)

    def run(times):
        with torch.no_grad(), pyattn.interop.torch.accelerate(layer):
            for _ in repeat(None, times):
                layer(x)
        layer(x)

    assert growth(run) <= MOST_BLOCKS


def test_arrays_are_let_go():
    """References to the arguments are given back: by calls, and by mistakes found late."""
    query, key, value = arrays = [np.ones((70, 4), np.float32) for _ in range(3)]
    mask, lengths, out = np.ones((70, 70), bool), np.array(70), np.empty_like(query)
    held = [*arrays, mask, lengths, out]
    arguments = {"attn_mask": mask, "key_lengths": lengths, "query_lengths": lengths}
    before = [sys.getrefcount(array) for array in held]
    for _ in range(100):
        pyattn.attention(query, key, value, **arguments, out=out)
        pyattn.attention(query, key, value, **arguments, out=out[::-1], need_weights=True, need_lse=True)
        with pytest.raises(ValueError, match="out has shape"):
            pyattn.attention(query, key, value, **arguments, out=out[:3])
        pyattn.merge_states([query, key], [query[:, 0], key[:, 0]])
        pyattn.softmax(query)
    assert [sys.getrefcount(array) for array in held] == before


@for_each(("name", "call"), CALLS if EVERYTHING else QUICK)
def test_what_all_calls_share_is_let_go(name, call):
    """Classes, modules and dtypes are there anyway: one reference more each time costs no block."""
    shared = [pyattn.AttentionResult, pyattn.MaskWarning, pyattn.ShapeWarning, np.ma.MaskedArray, np.matrix, np.ndarray]
    shared += [np, np.ma, pyattn, pyattn.functional, *map(np.dtype, ("f4", "?", "i8"))]  # np.empty itself keeps an f8

    def run(times):
        for _ in repeat(None, times):
            call()

    run(10)
    before = [sys.getrefcount(thing) for thing in shared]
    run(20)
    growth_of = {str(thing): sys.getrefcount(thing) - count for thing, count in zip(shared, before, strict=True)}
    assert {thing: growth for thing, growth in growth_of.items() if growth > 10} == {}
