"""How two calls are compared: side by side in the same minute, never one after the other.

One thread: the contenders take turns call by call, A B A B, so that a machine that slows down slows all of them.
More threads: they take turns in blocks, with a pause before each. Worker threads of most pools spin for a while after
their work is done, and two pools that spin on the same cores starve each other.
Tiny calls: a clock can't see one of them, so a turn is a loop.
"""

from __future__ import annotations

import importlib
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Sample = Callable[[int], float]
"""Makes a number of calls and returns the seconds that one of them took."""

BLOCK_SECONDS = 0.3
PAUSE_SECONDS = 0.05
LONGEST_PAUSE = 10  # in units of the above
WARM_UP_CALLS = 3
TINY_SECONDS = 20e-6
TINY_LOOP = 20_000
LONG_SECONDS = 2.0
CLEARLY_SLOWER = 4.0
ENOUGH_SECONDS = 0.6


@dataclass(frozen=True)
class Effort:
    """How long to measure a case.

    At one thread `seconds` and at least `turns` calls of each contender; at more threads, or where a call takes
    seconds, `blocks`; of a tiny call `tiny_turns` loops at one thread.
    """

    seconds: float
    turns: int
    tiny_turns: int
    blocks: int


FULL = Effort(seconds=2.0, turns=7, tiny_turns=9, blocks=3)
QUICK = Effort(seconds=0.3, turns=3, tiny_turns=2, blocks=1)


@dataclass(frozen=True)
class Times:
    """Seconds of one call: the minimum and the median over `count` samples."""

    minimum: float
    median: float
    count: int


def repeated(call: Callable[..., object], *arguments: object, **options: object) -> Sample:
    """Time a call by `timeit`, as a caller would write it: a function around it would add 0.04 microseconds."""
    names = {f"argument{index}": argument for index, argument in enumerate(arguments)}
    text = ", ".join([*names, *(f"{name}={name}" for name in options)])
    timer = timeit.Timer(f"call({text})", globals={"call": call, **names, **options})
    return lambda number: timer.timeit(number) / number


def measure(samples: Mapping[str, Sample], threads: int, effort: Effort) -> dict[str, Times]:
    """Let contenders take turns and return the times of each.

    Parameters
    ----------
    samples : mapping of str to Sample
        The first is the one that the others are compared with; it takes part to the end. One that has had 0.6 seconds
        and is more than four times slower leaves: its verdict is clear, and the time is better spent on close ones.
    threads : int
        How many threads each of them uses.
    effort : Effort
        When to stop.
    """
    began = time.perf_counter()
    once = {name: _first_look(sample) for name, sample in samples.items()}
    long = time.perf_counter() - began > LONG_SECONDS * len(samples)
    tiny = min(once.values()) < TINY_SECONDS
    loops = {name: _loop_length(seconds) if tiny else 1 for name, seconds in once.items()}
    turns = effort.tiny_turns if tiny else effort.turns
    if threads > 1 or long:
        turns = effort.blocks
    seconds = effort.seconds if threads == 1 and not tiny else 0.0
    seen = _take_turns(samples, loops, threads, turns, seconds)
    return {name: Times(min(times), statistics.median(times), len(times)) for name, times in seen.items()}


def _first_look(sample: Sample) -> float:
    """About how long a call takes; the first one also maps pages and starts threads."""
    began = time.perf_counter()
    first = sample(1)
    if time.perf_counter() - began > BLOCK_SECONDS:
        return first
    return min(sample(1) for _ in range(WARM_UP_CALLS))


def _loop_length(seconds: float) -> int:
    """20,000 calls; fewer for one that is slow beside a tiny one, so that its turn stays under half a second."""
    return max(1, min(TINY_LOOP, int(0.5 / seconds)))


def _take_turns(
    samples: Mapping[str, Sample], loops: Mapping[str, int], threads: int, turns: int, seconds: float
) -> dict[str, list[float]]:
    """At least `turns`, and go on for `seconds`."""
    seen: dict[str, list[float]] = {name: [] for name in samples}
    first = next(iter(samples))
    start = time.perf_counter()
    turn = 0
    while turn < turns or time.perf_counter() - start < seconds:
        for name, sample in samples.items():
            enough = loops[name] == 1 and sum(seen[name]) >= ENOUGH_SECONDS
            if enough and min(seen[name]) > CLEARLY_SLOWER * min(seen[first]):
                continue
            if threads == 1:
                seen[name].append(sample(loops[name]))
            else:
                seen[name] += _block(sample, loops[name])
        turn += 1
    return seen


def _pause() -> None:
    """Sleep 50 ms, and on while a pool of this process still spins: OpenBLAS and ONNX Runtime can do so for longer."""
    for _ in range(LONGEST_PAUSE):
        before = time.process_time()
        time.sleep(PAUSE_SECONDS)
        if time.process_time() - before < 0.1 * PAUSE_SECONDS:
            return


def _block(sample: Sample, loop: int) -> list[float]:
    """Warm up, with three calls or what a block has time for; then measure for a block, one call at least."""
    _pause()
    end = time.perf_counter() + BLOCK_SECONDS
    for _ in range(WARM_UP_CALLS):
        sample(1)
        if time.perf_counter() > end:
            break
    times: list[float] = []
    end = time.perf_counter() + BLOCK_SECONDS
    while not times or time.perf_counter() < end:
        times.append(sample(loop))
    return times


def _probe(name: str) -> Any:
    """A private measuring function of the extension, or None where this build has none."""
    return getattr(importlib.import_module("pyattn._core"), name, None)


def fma_peak(seconds: float = 0.05) -> float | None:
    """GFLOP/s that one core reaches when it does nothing but fused multiply-adds of float32; None if unknown."""
    probe = _probe("_fma_peak")
    return None if probe is None else float(probe(seconds))


def pure_read(arrays: Sequence[np.ndarray], threads: int) -> Sample | None:
    """The sample that reads the arrays once and does nothing else: the least time that a decode call can take."""
    probe = _probe("_read_speed")
    if probe is None:
        return None
    flat = [array.ravel(order="K").view(np.float32) for array in arrays]  # as they lie in memory

    def sample(_: int) -> float:
        return sum(array.nbytes / 1e9 / float(probe(array, threads)) for array in flat)

    return sample
