"""Models of torch and transformers before and after `accelerate`: `python -m benchmarks.accelerate`.

Weights are drawn, and shapes are published ones. The ceiling is `pyattn.models` on the same weights, in the same turns.
ONNX Runtime, where it is installed, has its fastest form of the same graph. Ratios are of minima: torch's time, the
ceiling's and ONNX Runtime's over the accelerated model's, and torch's over that of one with order="in_out".
"""

from __future__ import annotations

import argparse
import copy
import re
from collections.abc import Callable
from typing import Any

import pyattn
from benchmarks.measure import FULL, QUICK, Sample, measure, repeated
from benchmarks.peers import OnnxRuntime, PeerMissingError

BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
}
PROMPT = 256


class Case:
    """A model and a call of it."""

    def __init__(self, name: str, make: Callable[[], Any], call: Callable[[Any], Any], ids: Any = None) -> None:
        self.name, self.make, self.call = name, make, call
        self.ids = ids  # of a BERT, which pyattn.models and ONNX Runtime have, too


def encoder(name: str, sizes: dict[str, int], shape: tuple[int, int]) -> Case:
    """A BERT from ids to hidden states."""
    import torch
    from transformers import BertConfig, BertModel

    ids = torch.randint(30522, shape, generator=torch.Generator().manual_seed(0))
    return Case(f"{name}, {shape[0]} x {shape[1]}", lambda: BertModel(BertConfig(**sizes)), lambda m: m(ids), ids)


def ours_of(model: Any) -> Any:
    """The model of pyattn with the weights of one of transformers."""
    from pyattn.io.config import Config
    from pyattn.models.bert import plan_bert

    plan = plan_bert(Config(model.config.to_dict(), "config.json"))
    return plan.build({name: tensor.numpy() for name, tensor in model.state_dict().items() if name in plan.shapes})


def writer(name: str, make: Callable[[], Any], dtype: str = "float32") -> list[Case]:
    """A decoder's prompt, and a token after it."""
    import torch

    ids = torch.randint(32000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    caches: dict[int, Any] = {}

    def made() -> Any:
        return make().to(getattr(torch, dtype))

    def token(model: Any) -> Any:
        if id(model) not in caches:
            caches[id(model)] = model(ids, use_cache=True).past_key_values
        cache = caches[id(model)]
        result = model(ids[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return result

    return [
        Case(f"{name}, {dtype}, prompt of {PROMPT}", made, lambda model: model(ids, use_cache=True)),
        Case(f"{name}, {dtype}, a token after {PROMPT}", made, token),
    ]


def plain_encoder() -> list[Case]:
    """torch.nn.TransformerEncoder, by its fast path and without."""
    import torch

    x = torch.randn(8, 128, 768, generator=torch.Generator().manual_seed(0))
    cases = []
    for fast in (True, False):

        def make() -> Any:
            layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
            return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        def call(model: Any, fast: bool = fast) -> Any:
            torch.backends.mha.set_fastpath_enabled(fast)
            return model(x)

        cases.append(Case(f"nn.TransformerEncoder, 8 x 128, {'fast path' if fast else 'slow path'}", make, call))
    return cases


def cases() -> list[Case]:
    """All of them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, ViTConfig, ViTModel

    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return [
        *(encoder("BERT-base", BERT_BASE, shape) for shape in ((16, 128), (1, 128), (1, 16))),
        encoder("MiniLM", MINILM, (32, 128)),
        *writer("GPT-2", lambda: GPT2LMHeadModel(GPT2Config())),
        *writer("Llama of 300 M", lambda: LlamaForCausalLM(LlamaConfig(**LLAMA))),
        *writer("Llama of 300 M", lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), "bfloat16"),
        *plain_encoder(),
        Case("ViT-base, one picture", lambda: ViTModel(ViTConfig()), lambda model: model(pixels)),
    ]


def samples_of(case: Case, threads: int) -> dict[str, Sample]:
    """The contenders: accelerated, plain, in another order, the ceiling, and ONNX Runtime in each of its forms."""
    import torch

    torch.manual_seed(0)
    plain = case.make().eval()
    model = copy.deepcopy(plain)
    pyattn.interop.torch.accelerate(model, strict=True)
    samples = {"pyattn": repeated(case.call, model), "torch": repeated(case.call, plain)}
    if "a token" in case.name:
        laid_out = copy.deepcopy(plain)
        pyattn.interop.torch.accelerate(laid_out, order="in_out", strict=True)
        samples["in_out"] = repeated(case.call, laid_out)
    if case.ids is not None:
        ours, ids = ours_of(plain), case.ids.numpy()
        samples["ceiling"] = repeated(ours, ids)
        try:
            samples |= {f"onnxruntime {one.way}": one.sample for one in OnnxRuntime(threads).bert(ours, ids)}
        except PeerMissingError as missing:
            print(missing)
    return samples


def row(name: str, threads: int, seconds: dict[str, float]) -> str:
    """A line of the table."""
    ours, theirs = seconds["pyattn"], seconds["torch"]
    others = [seconds.get("ceiling"), min((s for n, s in seconds.items() if n.startswith("onnx")), default=None)]
    ratios = [theirs / ours, *(other and other / ours for other in others)]
    ratios.append(theirs / seconds["in_out"] if "in_out" in seconds else None)
    cells = [name, threads, *(f"{s * 1e3:.2f} ms" for s in (theirs, ours)), *(f"{r:.2f}" if r else "" for r in ratios)]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print a table."""
    import torch

    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerate", description=__doc__)
    parser.add_argument("--threads", default="1,2", help="default: %(default)s")
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    options = parser.parse_args()
    print("| model | threads | torch | pyattn | torch / pyattn | ceiling / pyattn | ONNX Runtime / pyattn | in_out |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for case in cases():
        if not re.search(options.only, case.name):
            continue
        with torch.inference_mode():
            for threads in map(int, options.threads.split(",")):
                torch.set_num_threads(threads)
                pyattn.set_num_threads(threads)
                times = measure(samples_of(case, threads), threads, QUICK if options.quick else FULL)
                print(row(case.name, threads, {name: one.minimum for name, one in times.items()}), flush=True)


if __name__ == "__main__":
    main()
