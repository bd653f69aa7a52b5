"""Forward and backward, and whole training steps, in pyattn and in torch: `python -m benchmarks.training`.

Weights and inputs are the same. The bar is the least that torch's time over pyattn's must be; of attention and of BERT
it is higher where the forward pass alone leads by 2. The time of torch is that of its fastest way. Backward of
attention counts 10 B H L S D operations, half of them if causal, against the peak of the threads' multiply-adds.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pyattn
import pyattn._core as _core
from benchmarks.measure import FULL, QUICK, Effort, Times, measure, repeated
from pyattn import functional, nn, optim

HEADS = 12
LENGTHS, DIMS = (128, 512, 2048), (64, 128)
BEHIND_PEAK = 0.55
"""The least share of the peak at the longest length."""


BERT_LAYERS = 3
"""Of the 12: each takes the same time."""


class Case:
    """Two calls of the same work; more of them where a figure needs more, or torch has several ways.

    `leading` is the bar where the forward pass alone leads by 2.
    """

    def __init__(
        self, name: str, bar: float, make: Callable[[int], dict[str, Callable[[], Any]]], leading: float | None = None
    ) -> None:
        self.name, self.bar, self.make = name, bar, make
        self.leading = bar if leading is None else leading


def attention(length: int, dim: int, causal: bool) -> Case:
    """Attention of 12 heads, with all three gradients."""

    def make(threads: int) -> dict[str, Callable[[], Any]]:
        import torch

        rng = np.random.default_rng(0)
        shape = (1, HEADS, length, dim)
        query, key, value, grad = (rng.standard_normal(shape, np.float32) for _ in range(4))
        leaves = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
        tensor = torch.tensor(grad)
        options: Any = {"is_causal": causal, "num_threads": threads}

        def theirs() -> Any:
            output = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
            return torch.autograd.grad(output, leaves, tensor)

        def forward() -> Any:
            return functional.attention(query, key, value, need_lse=True, **options)

        output, lse = forward()

        def backward() -> Any:
            return functional.attention_backward(grad, query, key, value, output, lse, **options)

        def ours() -> Any:
            output, lse = forward()
            return functional.attention_backward(grad, query, key, value, output, lse, **options)

        def their_forward() -> Any:
            with torch.no_grad():
                return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)

        return {
            "pyattn": ours,
            "torch": theirs,
            "backward": backward,
            "forward": forward,
            "torch's forward": their_forward,
        }

    name = f"attention {HEADS} x {length} x {dim}{' causal' * causal}"
    if causal:
        return Case(name, 1.6, make, leading=2.0 if length > 512 else 2.5)
    return Case(name, 1.2, make, leading=1.6)


def training_step(name: str, make_torch: Callable[[], Any], inputs: tuple[np.ndarray, ...], **kwargs: Any) -> Case:
    """Forward, mean squared error, backward and a step of AdamW, without dropout."""

    def make(threads: int) -> dict[str, Callable[[], Any]]:
        import torch

        torch.manual_seed(0)
        theirs = make_torch()
        ours = pyattn.interop.torch.from_torch(theirs).to_order("in_out")
        tensors = [torch.from_numpy(x) for x in inputs]
        extra = {key: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for key, x in kwargs.items()}
        own = {key: x for key, x in kwargs.items() if not isinstance(x, np.ndarray)}
        optimizer, other = optim.AdamW(ours, lr=1e-4), torch.optim.AdamW(theirs.parameters(), lr=1e-4)
        target = np.zeros_like(inputs[-1])

        def step() -> float:
            output, backward = ours.vjp(*inputs, **own)
            loss, grad = nn.losses.mse_loss(output, target)
            optimizer.zero_grad()
            backward(grad)
            optimizer.step()
            return loss

        def their_step() -> Any:
            other.zero_grad()
            loss = torch.nn.functional.mse_loss(theirs(*tensors, **extra), torch.zeros_like(tensors[-1]))
            loss.backward()
            other.step()
            return loss

        return {"pyattn": step, "torch": their_step}

    return Case(name, 1.3, make)


def bert() -> Case:
    """Layers of transformers' BERT-base, accelerated or not: forward, mean squared error, backward and a step of AdamW.

    In evaluation mode, so that the forward pass alone is that of inference; without dropout, gradients are the same.
    """

    def make(threads: int) -> dict[str, Callable[[], Any]]:
        import torch
        from transformers import BertConfig, BertModel

        none: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(num_hidden_layers=BERT_LAYERS, **none)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(config.vocab_size, (16, 128), generator=generator)
        target = torch.randn(*ids.shape, config.hidden_size, generator=generator)  # zeros would have gradients of 0

        def model_of(way: str) -> Any:
            torch.manual_seed(0)
            return BertModel._from_config(config, attn_implementation=way, add_pooling_layer=False).eval()

        def step_of(model: Any) -> Callable[[], Any]:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

            def step() -> Any:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(ids).last_hidden_state, target)
                loss.backward()
                optimizer.step()
                return loss

            return step

        def forward_of(model: Any) -> Callable[[], Any]:
            return torch.inference_mode()(lambda: model(ids))

        ours, theirs, eager = (model_of(way) for way in ("sdpa", "sdpa", "eager"))
        pyattn.interop.torch.accelerate(ours, strict=True, training=True)
        return {
            "pyattn": step_of(ours),
            "torch": step_of(theirs),
            "torch, eager": step_of(eager),
            "forward": forward_of(ours),
            "torch's forward": forward_of(theirs),
        }

    name = f"a step of {BERT_LAYERS} layers of BERT-base, accelerated for training, 16 x 128"
    return Case(name, 1.0, make, leading=1.4)


def adamw() -> Case:
    """A step of AdamW over 10 million float32 parameters: 4 streams are read and 3 written."""

    def make(threads: int) -> dict[str, Callable[[], Any]]:
        import torch

        module = nn.Linear(2500, 4000, bias=False, rng=0)
        _, backward = module.vjp(np.ones((1, 2500), np.float32))
        backward(np.ones((1, 4000), np.float32))
        ours = optim.AdamW(module)
        parameter = torch.nn.Parameter(torch.randn(4000, 2500))
        parameter.grad = torch.ones_like(parameter)
        theirs = torch.optim.AdamW([parameter], fused=True)
        streams = [np.ones(10_000_000, np.float32) for _ in range(4)]

        def memory() -> None:
            for one in streams[:3]:
                np.add(one, 1, out=one)
            streams[3].max()

        return {"pyattn": ours.step, "torch": theirs.step, "memory": memory}

    return Case("a step of AdamW, 10 million parameters", 1.0, make)


def cases() -> Iterator[Case]:
    """All of them."""
    import torch

    for dim in DIMS:
        for length in LENGTHS:
            for causal in (False, True):
                yield attention(length, dim, causal)
    rng = np.random.default_rng(1)
    pair = (rng.standard_normal((16, 32, 512), np.float32), rng.standard_normal((16, 32, 512), np.float32))
    yield training_step(
        "a step of a Transformer, d 512, 6 + 6 layers, 16 x 32",
        lambda: torch.nn.Transformer(512, 8, 6, 6, 2048, 0.0, batch_first=True),
        pair,
    )
    causal = torch.nn.Transformer.generate_square_subsequent_mask(256)
    yield training_step(
        "a step of a layer of GPT-2 small, 4 x 256",
        lambda: torch.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True),
        (rng.standard_normal((4, 256, 768), np.float32),),
        src_mask=causal.numpy(),
        is_causal=True,
    )
    yield bert()
    yield adamw()


def row(case: Case, threads: int, found: dict[str, Times], peak: float) -> str:
    """A line of the table."""
    seconds = {name: one.minimum for name, one in found.items()}
    theirs = min(seconds["torch"], seconds.get("torch, eager", math.inf))
    ratio, notes, bar = theirs / seconds["pyattn"], [], case.bar
    if "forward" in seconds:
        lead = seconds["torch's forward"] / seconds["forward"]
        bar = case.leading if lead >= 2 else case.bar
        notes.append(f"forward {lead:.2f}")
    if "backward" in seconds:
        length, dim = map(int, case.name.split(" causal")[0].split(" x ")[1:])
        causal = "causal" in case.name
        flops = 10.0 * HEADS * length**2 * dim / (2 if causal else 1)
        share = flops / seconds["backward"] / (peak * threads)
        notes.append(f"backward {share:.0%} of the peak")
    if "memory" in seconds:
        notes.append(f"{seconds['memory'] / seconds['pyattn']:.2f} of plain passes over the same memory")
    verdict = "passed" if ratio >= bar else "missed"
    times = [f"{one * 1e3:.2f} ms" for one in (theirs, seconds["pyattn"])]
    return f"| {case.name} | {threads} | {' | '.join(times)} | {ratio:.2f} | {bar} {verdict} | {', '.join(notes)} |"


def main() -> None:
    """Print a table."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    options = parser.parse_args()
    effort: Effort = QUICK if options.quick else FULL
    peak = 1e9 * _core._fma_peak(0.3)
    print("| case | threads | torch | pyattn | torch / pyattn | bar | |")
    print("|---|---:|---:|---:|---:|---|---|")
    for case in cases():
        if not re.search(options.only, case.name):
            continue
        for threads in map(int, options.threads.split(",")):
            torch.set_num_threads(threads)
            pyattn.set_num_threads(threads)
            try:
                samples = {name: repeated(call) for name, call in case.make(threads).items()}
            except ImportError as missing:
                print(f"| {case.name} | {threads} | | | | skipped | {missing} |", flush=True)
                continue
            print(row(case, threads, measure(samples, threads, effort), peak), flush=True)


if __name__ == "__main__":
    main()
