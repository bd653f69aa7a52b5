"""``python -m pyattn test``: what an installed pyattn gives on this machine, as a bug report needs it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.runtime as runtime
import pyattn.tracing.article as article
from pyattn.functional import attention
from pyattn.testing import bounds

__all__ = ["Report", "examine"]

Array = npt.NDArray[Any]
CALLERS, MOST_SECONDS = 4, 60
WORTH_THREADS = 1_000_000  # multiply-adds from which the core takes several threads


class Finding(NamedTuple):
    """What one check found at a level."""

    check: str
    level: str
    passed: bool
    detail: str

    @property
    def verdict(self) -> str:
        """The text after check and level in a line of the report."""
        return f"{'passed' if self.passed else 'FAILED'}: {self.detail}"


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
        """Write the last line."""
        verdict = "Everything passed" if self.passed else "FAILED: please report it with all of the above"
        return f"{verdict}, after {self.seconds:.0f} s."

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
            "findings": [finding._asdict() for finding in self.findings],
        }


def examine(cases: int, tell: Callable[[str], object] = lambda text: None) -> Report:
    """Run all checks at every level; `tell` gets the report as it comes, so that a crash leaves a check's name."""
    began, before = time.perf_counter(), runtime.isa()
    checks = {"article": _article, "threads": _threads, "fork": _fork, "drawn cases": lambda: _drawn(cases)}
    plan = [(check, level, find) for level in _core._levels() for check, find in checks.items()]
    findings = []
    with warnings.catch_warnings():
        # Drawn masks may look inverted, or hide all keys; Python warns of a fork beside threads.
        warnings.simplefilter("ignore")
        try:
            for check, level, find in [*plan, ("same bits", "all", lambda: _same_bits(cases))]:
                tell(f"{check:12}{level:8}")
                if level != "all":
                    _core._set_isa(level)
                findings.append(_find(check, level, find))
                tell(f"{findings[-1].verdict}\n")
        finally:
            _core._set_isa(before)
    report = Report(findings, time.perf_counter() - began)
    tell(f"\n{report}\n")
    return report


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
        exact = bounds.expect(query, key, value, dtype, scale=1.0)
        ratio = bounds.output_ratio(attention(query, key, value, scale=1.0), exact) / bounds.OUTPUT_BAR
        if not ratio <= 1:
            return False, f"{dtype.__name__}: {ratio:.2f} times the error that its bound allows"
        worst = max(worst, ratio)
    return True, f"at most {worst:.2f} of what rounding allows"


def _drawn(cases: int) -> tuple[bool, str]:
    """Compare outputs, weights and logsumexps with float64; those of halves first with what float32 gives."""
    worst = 0.0
    for case in _draw(cases):
        given, result = case, _attend(case)
        if case.arrays[0].dtype == np.float16:
            query, key, value = (array.astype(np.float32) for array in case.arrays)
            given = case._replace(arrays=(query, key, value))
            wide = _attend(given)
            rounded = wide[0].astype(np.float16), wide[1].astype(np.float16), wide[2]
            if not _equal(result, rounded):
                return False, f"{case}: not what float32 gives, rounded"
            result = wide
        output, weights, lse = result
        exact = bounds.expect(*given.arrays, given.arrays[0].dtype, **case.arguments)
        ratios = bounds.output_ratios(output, exact) / bounds.output_bars(exact)
        all_ratios = float(ratios.max(initial=0)), bounds.weights_ratio(weights, exact), bounds.lse_ratio(lse, exact)
        if not all(ratio <= 1 for ratio in all_ratios):
            return False, f"{case}: {max(all_ratios):.2f} times the error that its bound allows"
        worst = max(worst, *all_ratios)
    return True, f"{cases} against float64, at most {worst:.2f} of what rounding allows"


def _threads() -> tuple[bool, str]:
    """Call from several threads at once, each with workers."""
    cases = [case for case in _draw(60) if _work(case) > WORTH_THREADS]
    expected = [_attend(case, num_threads=1) for case in cases]
    wrong: list[str] = []

    def call() -> None:
        try:
            for case, parts in zip(cases, expected, strict=True):
                if not _equal(_attend(case, num_threads=3), parts):
                    wrong.append(f"{case}: other bits")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    callers = [threading.Thread(target=call, daemon=True) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    until = time.monotonic() + MOST_SECONDS
    for caller in callers:
        caller.join(max(0.0, until - time.monotonic()))
    if any(caller.is_alive() for caller in callers):
        return False, f"no answer within {MOST_SECONDS} s"
    return not wrong, wrong[0] if wrong else f"{CALLERS} callers, {len(cases)} cases, 1 and 3 workers: the same bits"


def _fork() -> tuple[bool, str]:
    """Call in the child of a fork, whose pool of workers is gone."""
    if not hasattr(os, "fork"):
        return True, "not on this system"
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 8, 300, 64)).astype(np.float32)
    case = Case(-1, (query, key, value), {})
    expected = _attend(case, num_threads=2)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if _equal(_attend(case, num_threads=2), expected) else 1
        finally:
            os._exit(status)
    until = time.monotonic() + MOST_SECONDS
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False, f"a child did not answer within {MOST_SECONDS} s"
    status = os.waitstatus_to_exitcode(done[1])
    return status == 0, "a child gives the same bits" if status == 0 else f"a child ended with status {status}"


def _same_bits(cases: int) -> tuple[bool, str]:
    """Compare levels with each other: all but scalar, which lacks fused multiply-adds, have the same bits."""
    levels = [level for level in _core._levels() if level != "scalar"]
    if len(levels) < 2:
        return True, "one level besides scalar, or none: nothing to compare"
    for case in _draw(cases):
        results = []
        for level in levels:
            _core._set_isa(level)
            results.append(_attend(case))
        if not all(_equal(result, results[0]) for result in results):
            return False, f"{case}: other bits at {', '.join(levels)}"
    return True, f"{cases} cases at {', '.join(levels)}"


# The cases


def _draw(count: int) -> Iterator[Case]:
    """Draw cases, which are the same in every run."""
    for number in range(count):
        rng = np.random.default_rng(number)
        heads, kv_heads = [(1, 1), (2, 2), (4, 2), (6, 1)][rng.integers(4)]
        q_len, kv_len = rng.choice([1, 2, 3, 9, 16, 33, 150]), rng.choice([1, 5, 64, 65, 300, 600, 1100])
        dim, v_dim = rng.choice([1, 3, 8, 64, 80, 130, 200]), rng.choice([1, 8, 33, 64])
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


def _attend(case: Case, num_threads: int | None = None) -> tuple[Array, ...]:
    """Return output, weights and logsumexp."""
    options: dict[str, Any] = {**case.arguments, "need_weights": True, "need_lse": True, "num_threads": num_threads}
    return tuple(attention(*case.arrays, **options))


def _work(case: Case) -> int:
    """Count about as many multiply-adds as the call takes."""
    query, key, value = case.arrays
    return int(query[..., 0].size * key.shape[-2] * (key.shape[-1] + value.shape[-1]))


def _equal(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(one, other, strict=True))
