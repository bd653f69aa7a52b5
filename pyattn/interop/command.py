"""`python -m pyattn accelerate`: print how much faster a model of transformers becomes."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

__all__ = ["accelerate"]

ROUNDS = 5
SECONDS = 0.4  # of each side in a round


def accelerate(folder: str, batch: int, length: int, threads: int | None) -> int:
    """Print a model's times before and after; return 0, or 2 after printing an error."""
    import pyattn.interop as interop
    from pyattn.interop.torch.tensors import import_torch

    try:
        torch = import_torch()
        try:
            import transformers
        except ImportError as missing:
            raise ImportError("accelerate needs transformers: pip install transformers") from missing
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
        vocabulary = getattr(model.config, "vocab_size", None)
        if vocabulary is None:
            raise ValueError(f"{type(model).__name__} is not a model of text")
        if model.config.is_encoder_decoder:
            raise ValueError(f"{type(model).__name__} is an encoder with a decoder, which need two texts")
    except (ImportError, OSError, ValueError) as problem:
        print(f"python -m pyattn accelerate: {problem}", file=sys.stderr)
        return 2
    if threads is not None:
        torch.set_num_threads(threads)
    ids = torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))
    report = interop.torch.accelerate(model)
    count = torch.get_num_threads()
    print(f"{type(model).__name__}, {batch} x {length} tokens, {count} thread{'s' if count > 1 else ''}")
    print(report)
    before: list[float] = []
    after: list[float] = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            interop.torch.restore(model)
            before += _times(model, ids)
            interop.torch.accelerate(model)
            after += _times(model, ids)
        ours = model(ids)[0]
        interop.torch.restore(model)
        theirs = model(ids)[0]
    distance = float((ours - theirs).abs().max() / theirs.abs().max())
    fastest = min(before), min(after)
    print("PyTorch {:.2f} ms, pyattn {:.2f} ms".format(*(1e3 * seconds for seconds in fastest)), end=": ")
    print(f"{fastest[0] / fastest[1]:.2f} times as fast")
    print(f"medians {statistics.median(before) * 1e3:.2f} and {statistics.median(after) * 1e3:.2f} ms")
    print(f"largest difference of the hidden states: {distance:.1e} of the largest one")
    return 0


def _times(model: Any, ids: Any) -> list[float]:
    """Time calls for a while, after a pause in which the other side's threads go idle."""
    time.sleep(0.1)
    model(ids)
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 2:
        start = time.perf_counter()
        model(ids)
        times.append(time.perf_counter() - start)
    return times
