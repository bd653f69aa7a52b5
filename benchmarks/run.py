"""One case at one thread count: who takes part, do they agree, how long did they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.cases import AttentionCase, AttentionInputs, Bar, Case, unusual
from benchmarks.measure import Effort, Sample, Times, fma_peak, measure, pure_read, repeated
from benchmarks.peers import PEERS, Peer, PeerMissingError, Pyattn, UnsupportedError, enter

OURS = "pyattn"
READ = "read"
AGREEMENT = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-6}
"""How far outputs may differ, on values near 1: enough to tell that the work is the same. ONNX Runtime is 1e-7 away in
float64 too, for its scale is a float32."""


@dataclass
class Result:
    """What was found out about one case."""

    name: str
    threads: int
    bars: tuple[Bar, ...]
    operation: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    """What the bars ask for; for a peer the ratio of minima, the peer's time / pyattn's, of its fastest way."""
    median_ratios: dict[str, float] = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Who or what could not be measured, and why, as ``WORD: reason``."""
    dtype: str = "float32"
    flops: float = 0.0
    read_bytes: int = 0
    """Of K and V or of the weights, where reading them is what takes the time."""
    core_peak: float | None = None
    """GFLOP/s of one core that did nothing but fused multiply-adds of float32, just before."""

    def verdicts(self) -> dict[str, str]:
        """Each bar, and whether it was passed, missed, or not shown."""
        return {str(bar): bar.verdict(self.figures.get(bar.figure)) for bar in self.bars}


def run_case(case: Case, threads: int, peers: Mapping[str, Peer], absent: Mapping[str, str], effort: Effort) -> Result:
    """Measure a case.

    Parameters
    ----------
    case : Case
        What to measure.
    threads : int
        What the peers were made with.
    peers : mapping of str to Peer
        Those to compare with.
    absent : mapping of str to str
        Those that were wanted too, and why they are not there. A peer that nobody wanted has no bars.
    effort : Effort
        How long to measure.
    """
    inputs = case.inputs()
    bars = tuple(bar for bar in case.bars(threads) if bar.figure not in PEERS.keys() - peers.keys() - absent.keys())
    result = Result(case.name, threads, bars, case.operation, dtype=case.dtype, flops=case.flops, core_peak=fma_peak())
    if isinstance(case, AttentionCase) and case.torch is None:
        measure_cost(case, inputs, threads, result, effort)
        return result
    wanted = [bar.figure for bar in case.peer_bars(threads)]
    result.absent.update({name: absent[name] for name in wanted if name in absent})
    samples, ways = _enter(case, inputs, {name: peers[name] for name in wanted if name in peers}, result)
    read_once = case.read_once(inputs)
    if read_once:
        result.read_bytes = sum(array.nbytes for array in read_once)
        read = pure_read(read_once, threads)
        if read is None:
            result.absent[READ] = "MISSING: this build has no reading probe"
        else:
            samples[READ] = read
    result.times = measure(samples, threads, effort)
    ours = result.times[OURS]
    for name, labels in ways.items():
        fastest = min((result.times[label] for label in labels), key=lambda times: times.minimum)
        result.figures[name] = fastest.minimum / ours.minimum
        result.median_ratios[name] = fastest.median / ours.median
    if READ in result.times:
        result.figures["of a read"] = result.times[READ].minimum / ours.minimum
    result.figures["microseconds"] = 1e6 * ours.minimum
    return result


def _enter(
    case: Case, inputs: Any, peers: Mapping[str, Peer], result: Result
) -> tuple[dict[str, Sample], dict[str, list[str]]]:
    """The samples of pyattn and of every peer that gets the same output; and the labels of each peer's ways to it."""
    ours = Pyattn.enter(case, inputs)
    samples, ways = {OURS: ours.sample}, {}
    expected = ours.output()
    for name, peer in peers.items():
        try:
            contenders = enter(peer, case, inputs)
            distance = float(np.max([np.abs(one.output() - expected).max() for one in contenders]))
        except (PeerMissingError, UnsupportedError) as error:
            result.absent[name] = f"UNABLE: {error}"
            continue
        if distance <= AGREEMENT[case.dtype]:
            labelled = {f"{name} {one.way}".rstrip(): one.sample for one in contenders}
            samples |= labelled
            ways[name] = list(labelled)
        else:
            result.absent[name] = f"DIFFERS: its output is {distance:.1e} away"
    return samples, ways


def measure_cost(case: AttentionCase, inputs: AttentionInputs, threads: int, result: Result, effort: Effort) -> None:
    """Compare pyattn with itself: what do weights, pages, masks, scores, halves or odd numbers cost?"""
    wide = {name: getattr(inputs, name).astype(np.float32) for name in ("query", "key", "value") if case.is_half}
    plain = Pyattn.attention(replace(case, score="dot"), replace(inputs, mask=None, **wide)).sample
    if case.family == "weights":
        asked = Pyattn.attention(case, inputs, need_weights=True).sample
        shape = case.shape[:4]
        write = repeated(lambda: np.empty(shape, np.float32).fill(1.0))  # fresh memory, as the caller gets weights in
        result.times = measure({OURS: asked, "plain": plain, "write": write}, threads, effort)
        writing = result.times["write"].minimum
    elif case.score != "dot" or case.mask or case.is_half or case.family == "cache":
        ours = Pyattn.cached(case, inputs) if case.family == "cache" else Pyattn.attention(case, inputs)
        result.times = measure({OURS: ours.sample, "plain": plain}, threads, effort)
        writing = 0.0
    else:
        asked = Pyattn.attention(case, unusual(inputs, case.family)).sample
        result.times = measure({OURS: asked, "plain": plain}, threads, effort)
        writing = 0.0
    result.figures["cost"] = (result.times[OURS].minimum - writing) / result.times["plain"].minimum
