"""Many threads: those of the core, those of the caller, both at once, and how many there are."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

import numpy as np
import pytest
from support.helpers import EVERYTHING, SANITIZED, assert_same_bits, bits, for_each, run_python

import pyattn
from pyattn import _core, nn

pytestmark = pytest.mark.threads


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


@pytest.fixture
def switch_often():
    """Threads that compute in Python, too, take turns every ten microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 4, length, 32), np.float32) for length in (100, 900, 900)]


def in_threads(count, work):
    """Run work(0), work(1) ... at once; raise what any of them raised."""
    gate, failures = threading.Barrier(count), []

    def run(n):
        try:
            gate.wait()
            work(n)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# Calls at once


def make_call(n):
    """The n-th of some calls of every size and kind."""
    rng = np.random.default_rng(n)
    q_len, kv_len = ((3, 3), (1, 9000), (90, 400), (130, 130))[n % 4]
    query, key, value = (rng.standard_normal((2, 2, length, 16), np.float32) for length in (q_len, kv_len, kv_len))
    arguments = {"num_threads": (None, 1, 2, 5)[n // 4 % 4], "need_weights": n % 5 == 0, "need_lse": True}
    if n % 3 == 0:
        arguments |= {"is_causal": True, "align": "lower_right"}
    if n % 7 == 0:
        arguments["attn_mask"] = rng.random((q_len, kv_len)) < 0.7
    return lambda: pyattn.attention(query, key, value, **arguments)


def test_sixteen_threads_get_what_one_gets():
    calls = [make_call(n) for n in range(48)]
    expected = [call() for call in calls]

    def work(n):
        for turn in range(6 if EVERYTHING else 2):
            for k in range(len(calls)):
                which = (k * (2 * n + 1) + turn) % len(calls)  # each in an order of its own
                assert_same_bits(calls[which](), expected[which], which)

    in_threads(16, work)


def shared_calls(arrays):
    """Of all functions and of modules, on the same arrays."""
    query, key, value = arrays
    parts = [pyattn.attention(query, key[:, :, cut], value[:, :, cut], need_lse=True) for cut in np.s_[:300, 300:]]
    x, wide = key[0], key[0, 0, :50]
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, rng=0).eval()
    model = nn.TransformerLM(20, 32, 4, 2, 64, rng=0).eval()
    return [
        lambda: pyattn.softmax(key),
        lambda: pyattn.functional.log_softmax(key, 0),
        lambda: pyattn.functional.topk(key, 7).values,
        lambda: pyattn.merge_states([part.output for part in parts], [part.lse for part in parts])[0],
        lambda: pyattn.attention(query, key, value, need_lse=True).lse,
        lambda: pyattn.functional.linear(query, key[0, 0]),
        lambda: pyattn.functional.dropout(key, 0.3, rng=0),
        lambda: pyattn.functional.embedding(np.arange(3000) % 300, key[0, 0], scale=2, residual=key[0, 0, 0]),
        lambda: pyattn.functional.rotary_embedding(query, offset=5),
        lambda: pyattn.functional.layer_norm(key, 32, wide[0], wide[1]),
        lambda: pyattn.functional.rms_norm(key, 32, wide[0], residual=value),
        lambda: pyattn.functional.gelu(key),
        lambda: pyattn.functional.silu_backward(value, key),
        lambda: pyattn.functional.softmax_backward(value, key),
        lambda: pyattn.functional.layer_norm_backward(value, key, 32, wide[0]).weight,
        lambda: pyattn.functional.embedding_backward(x[0], np.arange(x.shape[1]) % 7, 9),
        lambda: pyattn.functional.feed_forward(x, wide, None, wide.T, None, activation="silu", residual=x),
        lambda: layer(x, is_causal=True),
        lambda: pyattn.generate(model, [[3, 1, 4], [1, 5]], max_new_tokens=5).scores,
        lambda: pyattn.generate(model, [[3, 1, 4]], max_new_tokens=4, num_beams=3).scores,
        lambda: nn.losses.cross_entropy(key, np.zeros(key.shape[:-1], int), label_smoothing=0.1)[1],
    ]


@pytest.mark.usefixtures("switch_often")
def test_threads_may_share_all_functions(arrays):
    """And modules, whose parameters are only read."""
    calls = shared_calls(arrays)
    expected = [call() for call in calls]
    assert_same_bits(expected[4], pyattn.attention(*arrays, need_lse=True).lse)

    def work(n):
        for k in range(n, n + 20):
            assert_same_bits(calls[k % len(calls)](), expected[k % len(calls)], k % len(calls))

    in_threads(8, work)


def attend_in_turns(cache, key, value):
    """Tokens come a few at a time, to a cache of one's own, on pages that it shares until it writes."""
    cache, outputs = cache.fork(), []
    for turn in (np.s_[:, :, a:b] for a, b in itertools.pairwise([70, 71, 74, 80, 90, 99, 115, 140, 143])):
        cache.append(0, key[turn], value[turn])
        outputs.append(cache.attend(0, key[turn], is_causal=True))
    return np.concatenate([*outputs, *cache.to_arrays(0)], axis=2)


@pytest.mark.usefixtures("switch_often")
def test_each_thread_continues_a_cache_by_itself(arrays):
    _, key, value = arrays
    cache = pyattn.KVCache(1, 4, 32, batch_size=2)
    cache.append(0, key[:, :, :70], value[:, :, :70])
    rows = [(np.roll(key, n, axis=2), np.roll(value, n, axis=2)) for n in range(8)]
    expected = [attend_in_turns(cache, *each) for each in rows]

    def work(n):
        for _ in range(3):
            assert_same_bits(attend_in_turns(cache, *rows[n]), expected[n])

    in_threads(8, work)


def test_threads_may_change_the_number_meanwhile(arrays):
    expected = pyattn.attention(*arrays)

    def work(n):
        for k in range(10):
            pyattn.set_num_threads((n + k) % 5 + 1)
            assert_same_bits(pyattn.attention(*arrays), expected)

    in_threads(6, work)


def test_levels_may_be_switched_meanwhile(arrays, levels):
    expected = set()
    for level in levels:
        _core._set_isa(level)
        expected.add(bits(pyattn.attention(*arrays)).tobytes())

    def work(n):
        for k in range(8):
            _core._set_isa(levels[(n + k) % len(levels)])
            assert bits(pyattn.attention(*arrays)).tobytes() in expected

    in_threads(4, work)


@pytest.mark.parametrize("count", [8, 64, 1000, 10**6])
def test_more_threads_than_processors(count, arrays):
    expected = pyattn.attention(*arrays, num_threads=1, need_lse=True)
    assert_same_bits(pyattn.attention(*arrays, num_threads=count, need_lse=True), expected)
    pyattn.set_num_threads(count)
    assert_same_bits(pyattn.attention(*arrays, need_lse=True), expected)


def test_a_long_call_lets_other_threads_run(arrays):
    """The GIL is released: another thread goes on long before the call is done."""
    start = time.perf_counter()
    pyattn.attention(*arrays, num_threads=1)
    times = int(0.3 / (time.perf_counter() - start)) + 1
    longer = [np.broadcast_to(array, (times, *array.shape)) for array in arrays]
    woke = []
    sleeper = threading.Thread(target=lambda: (time.sleep(0.01), woke.append(time.perf_counter())))
    start = time.perf_counter()
    sleeper.start()
    pyattn.attention(*longer, num_threads=1)
    end = time.perf_counter()
    sleeper.join()
    assert woke[0] - start < (end - start) / 2


# The number


def test_the_number_can_be_set_and_forgotten():
    default = pyattn.get_num_threads()
    assert default >= 1
    for number in (1, 2, 7, np.int64(3)):
        pyattn.set_num_threads(number)
        assert pyattn.get_num_threads() == number
    pyattn.set_num_threads(None)
    assert pyattn.get_num_threads() == default


@pytest.mark.parametrize("number", [1024, 1025, 10**30])
def test_there_are_1024_threads_at_most(number):
    pyattn.set_num_threads(number)
    assert pyattn.get_num_threads() == 1024


@for_each(
    ("number", "kind", "message"),
    [
        (0, ValueError, "num_threads is 0, expected 1 or more, or None"),
        (-1, ValueError, "num_threads is -1, expected 1 or more, or None"),
        (1.5, TypeError, "num_threads is of type float, expected an int"),
        ("2", TypeError, "num_threads is of type str, expected an int"),
        (True, TypeError, "num_threads is of type bool, expected an int"),
    ],
)
def test_a_wrong_number_is_named(number, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.set_num_threads(number)
    assert pyattn.get_num_threads() >= 1


COUNT = "import pyattn; print(pyattn.get_num_threads())"


@pytest.mark.parametrize(
    ("ours", "openmp", "expected"),
    [
        ("3", None, 3),
        (None, "5", 5),
        ("3", "5", 3),
        (None, "4,2", 4),
        ("0", "5", 5),
        ("-1", "5", 5),
        ("many", "5", 5),
        ("2.5", "5", 5),
        ("", "5", 5),
    ],
    ids=str,
)
def test_the_default_is_taken_from_the_environment(ours, openmp, expected):
    done = run_python(COUNT, PYATTN_NUM_THREADS=ours, OMP_NUM_THREADS=openmp)
    assert int(done.stdout) == expected
    heeded = ours in ("3", None, "")
    assert (f"PYATTN_NUM_THREADS={ours} is not a number from 1 to 1024" in done.stderr) != heeded


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity cannot be set on this system")
def test_the_default_is_no_more_than_the_affinity_allows():
    everything = run_python(COUNT, PYATTN_NUM_THREADS=None, OMP_NUM_THREADS=None)
    assert 1 <= int(everything.stdout) <= len(os.sched_getaffinity(0))
    script = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" + COUNT
    assert int(run_python(script, PYATTN_NUM_THREADS=None, OMP_NUM_THREADS=None).stdout) == 1


# threadpoolctl


THREADPOOLCTL = """
default = pyattn.get_num_threads()
with threadpoolctl.threadpool_limits(limits=5, user_api="pyattn"):
    assert pyattn.get_num_threads() == 5
assert pyattn.get_num_threads() == default
[info] = [info for info in threadpoolctl.threadpool_info() if info["user_api"] == "pyattn"]
assert (info["num_threads"], info["version"]) == (default, pyattn.__version__), info
"""
IMPORTS = {
    "threadpoolctl first": "import threadpoolctl, pyattn",
    "pyattn first": "import pyattn, threadpoolctl\npyattn.set_num_threads(None)",
    "set twice": "import threadpoolctl, pyattn\npyattn.set_num_threads(None)\npyattn.set_num_threads(None)",
}


@pytest.mark.parametrize("imports", IMPORTS)
def test_threadpoolctl_knows_pyattn(imports):
    run_python(IMPORTS[imports] + THREADPOOLCTL)


@pytest.mark.parametrize("text", ["", "LibController = 3"])
def test_a_threadpoolctl_without_register_is_left_alone(text, tmp_path):
    """As it was before 3.2."""
    (tmp_path / "threadpoolctl.py").write_text(text)
    run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport threadpoolctl, pyattn")


# Threads that cannot be made

FEW_THREADS = """
import resource, numpy as np, pyattn
rng = np.random.default_rng(0)
query, key, value = (rng.standard_normal((64, 128, 32), np.float32) for _ in range(3))
expected = pyattn.attention(query, key, value, num_threads=1)
out, same = np.empty_like(expected), np.empty(expected.shape, bool)  # nothing may be left for another array
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (24 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
for threads in (1000, 200):
    pyattn.attention(query, key, value, num_threads=threads, out=out)
    assert np.equal(out, expected, out=same).all()
import os
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(SANITIZED, reason="sanitizers need all the address space")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_that_cannot_be_made_are_no_error():
    """There is room for the stacks of some twenty."""
    threads = int(run_python(FEW_THREADS, OPENBLAS_NUM_THREADS="1").stdout)
    assert 1 < threads < 60
