"""`python -m pyattn accelerate`: print how much faster a model of transformers becomes."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pyattn.interop as interop
import pyattn.runtime as runtime

__all__ = ["accelerate"]

ROUNDS = 5
SECONDS = 0.4  # of each side in a round
LENGTH = 128
BUSY = 2.0  # medians over minima


def accelerate(folder: str, batch: int, length: int | None, threads: int | None) -> int:
    """Print a model's times before and after; return 0, or 2 after printing an error."""
    try:
        torch, model = _load(folder)
        length = _fit(model.config, length)
        ids = torch.randint(model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            model(ids)
    except (ImportError, IndexError, RuntimeError, ValueError) as problem:
        print(f"python -m pyattn accelerate: {problem}", file=sys.stderr)
        return 2
    if threads is not None:
        torch.set_num_threads(threads)
        runtime.set_num_threads(threads)
    report = interop.torch.accelerate(model)
    print(f"{type(model).__name__}, {batch} x {length} tokens, {_threads(torch.get_num_threads())}")
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
    fastest, medians = (min(before), min(after)), (statistics.median(before), statistics.median(after))
    print("PyTorch {:.2f} ms, pyattn {:.2f} ms".format(*(1e3 * seconds for seconds in fastest)), end=": ")
    print(f"{fastest[0] / fastest[1]:.2f} times as fast")
    busy = max(median / least for median, least in zip(medians, fastest, strict=True)) > BUSY
    print("medians {:.2f} and {:.2f} ms".format(*(1e3 * seconds for seconds in medians)), end="")
    print(": other programs use the CPU, try again later" if busy else "")
    print(f"largest difference of the hidden states: {distance:.1e} of the largest one")
    return 0


def _load(folder: str) -> tuple[Any, Any]:
    """Load a model of text; raise ValueError with a line that says why that cannot be."""
    from pyattn.interop.torch.tensors import import_torch

    torch = import_torch()
    try:
        import transformers
    except ImportError as missing:
        raise ImportError("accelerate needs transformers: pip install transformers") from missing
    if not (Path(folder) / "config.json").is_file():
        raise ValueError(f"{folder!r} is not a folder with config.json and weights, as save_pretrained writes them")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    except Exception as error:  # of any kind, where a file is damaged
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"transformers cannot load {folder!r}: {type(error).__name__}: {reason}") from error
    if model.config.is_encoder_decoder or not hasattr(model.config, "vocab_size"):
        raise ValueError(f"{type(model).__name__} does not take one text: time it in Python, with accelerate(model)")
    return torch, model


def _fit(config: Any, length: int | None) -> int:
    """Return the number of tokens, which a model's positions limit."""
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and most < 1:  # XLNet's
        most = None
    if length is None:
        return LENGTH if most is None else min(LENGTH, most)
    if most is not None and length > most:
        raise ValueError(f"the model takes at most {most} tokens: pass --length {most}")
    return length


def _threads(count: int) -> str:
    """Name the number of threads, or both."""
    from pyattn.interop.torch.threads import call_on_torchs_threads

    own = call_on_torchs_threads(runtime.get_num_threads)
    text = f"{count} thread{'s' if count > 1 else ''}"
    return text if own == count else f"{text} in PyTorch, {own} in pyattn"


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
