"""``python -m pyattn test``: what an installed pyattn gives on this machine, as a bug report needs it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
import pyattn.runtime as runtime
import pyattn.tracing.article as article
from pyattn.functional import attention
from pyattn.testing import bounds

__all__ = ["Report", "examine"]

Array = npt.NDArray[Any]
CALLERS, CHILD_SECONDS = 4, 30


class Finding(NamedTuple):
    """What one check found at a level."""

    check: str
    level: str
    passed: bool
    detail: str


class Case(NamedTuple):
    """The inputs of a call of attention."""

    number: int
    arrays: tuple[Array, Array, Array]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """Describe the case by its number, shapes and arguments."""
        shapes = ", ".join(str(array.shape) for array in self.arrays)
        return f"case {self.number}: {shapes}, {self.arrays[0].dtype}, {', '.join(self.arguments) or 'plain'}"


class Report(NamedTuple):
    """All findings, and how long they took."""

    findings: list[Finding]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.passed for finding in self.findings)

    def __str__(self) -> str:
        """Write a line for each finding, and the verdict."""
        lines = [f"{f.check:12}{f.level:8}{'passed' if f.passed else 'FAILED'}: {f.detail}" for f in self.findings]
        verdict = "Everything passed" if self.passed else "FAILED: please report it with all of the above"
        return "\n".join([*lines, "", f"{verdict}, after {self.seconds:.0f} s."])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "findings": [finding._asdict() for finding in self.findings],
        }


def examine(cases: int) -> Report:
    """Run all checks at every level of this machine; so many cases are drawn at each."""
    began, before = time.perf_counter(), runtime.isa()
    findings: list[Finding] = []
    try:
        for level in _core._levels():
            _core._set_isa(level)
            findings += [
                _find("article", level, _article),
                _find("threads", level, _threads),
                _find("fork", level, _fork),
                _find("drawn cases", level, lambda: _drawn(cases)),
            ]
        findings.append(_find("same bits", "all", lambda: _same_bits(cases)))
    finally:
        _core._set_isa(before)
    return Report(findings, time.perf_counter() - began)


def _find(check: str, level: str, find: Callable[[], tuple[bool, str]]) -> Finding:
    """Run a check; an exception is a failure, too."""
    try:
        return Finding(check, level, *find())
    except Exception as error:
        return Finding(check, level, False, f"{type(error).__name__}: {error}")


# The checks: whether all is well, and a sentence


def _article() -> tuple[bool, str]:
    """Compute the worked example in both dtypes."""
    worst = 0.0
    for dtype in (np.float32, np.float64):
        x = np.array(article.X, dtype)
        query, key, value = (x @ np.array(w, dtype) for w in (article.W_QUERY, article.W_KEY, article.W_VALUE))
        output = attention(query, key, value, scale=1.0)
        exact = reference.attention(query, key, value, scale=1.0, dtype=np.float64).output
        worst = max(worst, float(np.abs(output - exact).max()))
    return worst <= 1e-6, f"off by at most {worst:.1e}"


def _drawn(cases: int) -> tuple[bool, str]:
    """Compare outputs, weights and logsumexps with float64, and halves with float32."""
    worst = 0.0
    for case in _draw(cases):
        dtype = case.arrays[0].dtype
        result = _attend(case)
        if dtype == np.float16:
            query, key, value = (array.astype(np.float32) for array in case.arrays)
            wide = _attend(case._replace(arrays=(query, key, value)))
            rounded = [part.astype(dtype) for part in (wide.output, wide.weights)]
            if not all(map(np.array_equal, (result.output, result.weights, result.lse), (*rounded, wide.lse))):
                return False, f"{case}: not what float32 gives, rounded"
            continue
        exact = bounds.expect(*case.arrays, dtype, **case.arguments)
        ratios = bounds.output_ratios(result.output, exact) / bounds.output_bars(exact)
        ratio = max(
            float(ratios.max(initial=0)),
            bounds.weights_ratio(result.weights, exact),
            bounds.lse_ratio(result.lse, exact),
        )
        worst = max(worst, ratio)
        if not ratio <= 1:
            return False, f"{case}: {ratio:.2f} times the error that its bound allows"
    return True, f"{cases} against float64, at most {worst:.2f} of what rounding allows"


def _threads() -> tuple[bool, str]:
    """Call from several threads at once, each with workers."""
    cases = list(_draw(24))
    expected = [_attend(case, num_threads=1).output for case in cases]
    wrong: list[str] = []

    def call() -> None:
        for case, output in zip(cases, expected, strict=True):
            if not _equal(_attend(case, num_threads=3).output, output):
                wrong.append(str(case))

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return not wrong, wrong[0] if wrong else f"{CALLERS} callers, 1 and 3 workers: the same bits"


def _fork() -> tuple[bool, str]:
    """Call in the child of a fork, whose pool of workers is gone."""
    if not hasattr(os, "fork"):
        return True, "not on this system"
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 8, 300, 64)).astype(np.float32)
    case = Case(-1, (query, key, value), {})  # large enough for several workers
    expected = _attend(case, num_threads=2).output
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own threads are not used in the child
        child = os.fork()
    if child == 0:
        os._exit(0 if _equal(_attend(case, num_threads=2).output, expected) else 1)
    until = time.monotonic() + CHILD_SECONDS
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False, f"a child did not answer within {CHILD_SECONDS} s"
    return done[1] == 0, "a child gives the same bits" if done[1] == 0 else f"a child ended with status {done[1]}"


def _same_bits(cases: int) -> tuple[bool, str]:
    """Compare levels with each other: all but scalar, which lacks fused multiply-adds, have the same bits."""
    levels = [level for level in _core._levels() if level != "scalar"]
    for case in _draw(cases):
        outputs = []
        for level in levels:
            _core._set_isa(level)
            outputs.append(_attend(case).output)
        if not all(_equal(output, outputs[0]) for output in outputs):
            return False, f"{case}: other bits at {', '.join(levels)}"
    return True, f"{cases} cases at {', '.join(levels) or 'scalar alone'}"


# The cases


def _draw(count: int) -> Iterator[Case]:
    """Draw cases, which are the same in every run."""
    for number in range(count):
        rng = np.random.default_rng(number)
        heads, kv_heads = [(1, 1), (2, 2), (4, 2), (6, 1)][rng.integers(4)]
        q_len, kv_len = rng.choice([1, 2, 3, 9, 16, 33, 70]), rng.choice([1, 5, 31, 64, 65, 130, 300])
        dim, v_dim = rng.choice([1, 3, 8, 40, 64, 80]), rng.choice([1, 8, 16, 33, 64])
        dtype = [np.float32, np.float32, np.float64, np.float16][rng.integers(4)]
        shapes = (2, heads, q_len, dim), (2, kv_heads, kv_len, dim), (2, kv_heads, kv_len, v_dim)
        query, key, value = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        yield Case(number, (query, key, value), _draw_arguments(rng, (2, heads, q_len, kv_len)))


def _draw_arguments(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    kind = rng.integers(4)
    if kind == 1:
        arguments["attn_mask"] = rng.random(shape[-2:]) < 0.7
    elif kind == 2:
        arguments["attn_mask"] = rng.standard_normal((shape[0], 1, *shape[-2:])).astype(np.float32)
    if rng.random() < 0.4:
        arguments |= {"is_causal": True, "align": str(rng.choice(["upper_left", "lower_right"]))}
    elif rng.random() < 0.3:
        arguments |= {"window": (int(rng.integers(40)), int(rng.integers(40))), "align": "lower_right"}
    if rng.random() < 0.3:
        arguments["key_lengths"] = rng.integers(shape[-1] + 1, size=shape[0])
    if rng.random() < 0.3:
        arguments["score"] = str(rng.choice(["cosine", "distance"]))
    return arguments


def _attend(case: Case, num_threads: int | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # drawn masks may look inverted, or hide all keys
        return attention(*case.arrays, **case.arguments, need_weights=True, need_lse=True, num_threads=num_threads)


def _equal(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()
