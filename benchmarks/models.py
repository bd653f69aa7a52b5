"""Whole models: a decoder that writes, and an encoder of sentences, of published shapes with drawn weights."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import pyattn
from benchmarks.cases import AHEAD_OF_ONNX_RUNTIME, Bar, Case
from benchmarks.measure import Sample
from pyattn import nn
from pyattn.generation import CachedDecoding
from pyattn.io.config import Config
from pyattn.models.bert import Bert, plan_bert
from pyattn.models.gpt2 import GPT2

WAYS = ("eager", "sdpa")
"""Of transformers to compute attention."""

GPT2_WORDS, GPT2_POSITIONS = 50257, 1024
MINILM_WORDS, MINILM_POSITIONS = 30522, 512


@dataclass(frozen=True)
class GenerateInputs:
    """prompt (batch, length) of ids; the weights are the model's."""

    prompt: np.ndarray
    model: GPT2


@dataclass(frozen=True)
class GenerateCase(Case):
    """Greedy decoding with a GPT-2, float32. The time is that of a token after the first, which comes of the prompt."""

    least: float | None = None
    """The bar on transformers."""

    operation = "generate"
    axes = "batch,prompt,tokens,d_model,heads,layers"

    @property
    def flops(self) -> float:
        batch, prompt, tokens, d_model, _, layers = self.shape
        weights = layers * 12 * d_model * d_model + GPT2_WORDS * d_model
        return 2.0 * batch * (weights + layers * 2 * d_model * (prompt + tokens / 2))

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return () if self.least is None else (Bar("torch", self.least), AHEAD_OF_ONNX_RUNTIME)

    def inputs(self) -> GenerateInputs:
        batch, prompt, *_ = self.shape
        rng = self._generator()
        return GenerateInputs(rng.integers(0, GPT2_WORDS, (batch, prompt)), draw_gpt2(self, rng))

    def read_once(self, inputs: GenerateInputs) -> tuple[np.ndarray, ...]:
        """All weights but the vectors of positions, of which a token reads one."""
        arrays = inputs.model.parameters()
        return tuple(array for array in arrays if array is not inputs.model.positions.weight)


def draw_gpt2(case: GenerateCase, rng: np.random.Generator) -> GPT2:
    """A model of parts of `pyattn.nn`, its head the embedding."""
    *_, d_model, heads, layers = case.shape
    words, positions = (
        rng.standard_normal((count, d_model), np.float32) * np.float32(0.3) for count in (GPT2_WORDS, GPT2_POSITIONS)
    )
    sizes: dict[str, Any] = {"activation": "gelu_tanh", "batch_first": True, "norm_first": True, "rng": rng}
    blocks = [nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, 0.0, **sizes) for _ in range(layers)]
    decoder = nn.TransformerEncoder.from_layers(blocks, nn.LayerNorm(d_model))
    embedding = nn.Embedding.from_pretrained(words)
    head = nn.Linear.from_arrays(words)
    return GPT2(embedding, nn.Embedding.from_pretrained(positions), decoder, head).eval()


class Timed:
    """A model for `pyattn.generate` that notes when each of its steps has ended."""

    is_encoder_decoder = False
    max_length = GPT2_POSITIONS

    def __init__(self, model: GPT2, ends: list[float]) -> None:
        self.model = model
        self.ends = ends

    def begin(self, source: None, source_lengths: None, *, need_weights: bool) -> Timed:
        self.state = CachedDecoding(self.model, need_weights=need_weights)
        self.reorder = self.state.reorder
        return self

    @property
    def lengths(self) -> np.ndarray:
        return self.state.lengths

    def step(self, ids: Any, lengths: Any = None) -> Any:
        result = self.state.step(ids, lengths)
        self.ends.append(time.perf_counter())
        return result


def seconds_of_a_token(ends: list[float]) -> float:
    """Between the step that reads the prompt and the last one, with all that is done between steps."""
    return (ends[-1] - ends[0]) / (len(ends) - 1)


Write = Callable[[list[float]], np.ndarray]
"""Returns all tokens (batch, tokens), and adds to the list when each of its steps has ended."""


def token_sample(write: Write) -> Sample:
    """Seconds of a token."""

    def sample(number: int) -> float:
        times = []
        for _ in range(number):
            ends: list[float] = []
            write(ends)
            times.append(seconds_of_a_token(ends))
        return sum(times) / number

    return sample


def our_writer(case: GenerateCase, inputs: GenerateInputs) -> Write:
    """What pyattn writes."""

    def write(ends: list[float]) -> np.ndarray:
        timed: Any = Timed(inputs.model, ends)
        return pyattn.generate(timed, inputs.prompt, max_new_tokens=case.shape[2]).tokens

    return write


def their_writer(torch: Any, case: GenerateCase, inputs: GenerateInputs, way: str) -> Write:
    """What transformers writes, with its usual cache."""
    model = their_gpt2(torch, case, inputs.model, way)
    prompt = torch.from_numpy(inputs.prompt)

    def write(ends: list[float]) -> np.ndarray:
        options = {"max_new_tokens": case.shape[2], "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        hook = model.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
        tokens: np.ndarray = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options).numpy()
        hook.remove()
        return tokens[:, prompt.shape[1] :]

    return write


def onnx_writer(runtime: Any, session: Any, case: GenerateCase, inputs: GenerateInputs) -> Write:
    """What ONNX Runtime writes with a session of `onnx_modules.gpt2_step`, whose caches are used in place."""
    batch, _, new, *_ = case.shape
    token, *caches_out = session.get_outputs()
    caches_in = session.get_inputs()[-len(caches_out) :]
    binding = session.io_binding()
    binding.bind_output(token.name, "cpu")
    for before, after in zip(caches_in, caches_out, strict=True):
        cache = runtime.OrtValue.ortvalue_from_shape_and_type(before.shape, np.float32)
        binding.bind_ortvalue_input(before.name, cache)
        binding.bind_ortvalue_output(after.name, cache)

    def write(ends: list[float]) -> np.ndarray:
        tokens, ids, total = [], inputs.prompt, 0
        for _ in range(new):
            start, total = total, total + ids.shape[1]
            last, counted = np.full(batch, total - 1, np.int32), np.array(total, np.int32)
            step = {"ids": ids, "positions": np.arange(start, total), "last": last, "total": counted}
            for name, array in step.items():
                binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
            ids = binding.get_outputs()[0].numpy().copy()  # the next step writes to the same memory
            tokens.append(ids)
            ends.append(time.perf_counter())
        return np.concatenate(tokens, axis=1)

    return write


def their_gpt2(torch: Any, case: GenerateCase, ours: GPT2, way: str) -> Any:
    """The same numbers, in the layout that they are published in."""
    transformers = importlib.import_module("transformers")
    *_, d_model, heads, layers = case.shape
    sizes = {"vocab_size": GPT2_WORDS, "n_positions": GPT2_POSITIONS, "n_embd": d_model, "n_head": heads}
    config = transformers.GPT2Config(**sizes, n_layer=layers)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation=way)
    state = {"wte.weight": ours.embedding.weight, "wpe.weight": ours.positions.weight}
    state |= {f"ln_f.{name}": array for name, array in ours.decoder.norm.state_dict().items()}
    for n, layer in enumerate(ours.decoder.layers):
        state |= {f"h.{n}.{name}": array for name, array in gpt2_names(layer.state_dict()).items()}
    tensors = {f"transformer.{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in state.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def gpt2_names(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names and layout of published files, whose weights are (in, out)."""
    names = {
        "self_attn.in_proj_weight": "attn.c_attn.weight",
        "self_attn.in_proj_bias": "attn.c_attn.bias",
        "self_attn.out_proj": "attn.c_proj",
        "linear1": "mlp.c_fc",
        "linear2": "mlp.c_proj",
        "norm1": "ln_1",
        "norm2": "ln_2",
    }
    renamed = {}
    for name, array in state.items():
        old = next(old for old in names if name.startswith(old))
        renamed[name.replace(old, names[old])] = array.T if array.ndim == 2 else array
    return renamed


@dataclass(frozen=True)
class SentencesInputs:
    """ids (batch, length), and weights by published names."""

    ids: np.ndarray
    weights: dict[str, np.ndarray]


@dataclass(frozen=True)
class SentencesCase(Case):
    """A BERT, float32, on sentences of one length: of MiniLM's sizes, or the base size in four layers."""

    least: float | None = None
    """The bar on transformers."""

    operation = "sentences"
    axes = "batch,length,d_model,heads,layers,hidden"

    @property
    def flops(self) -> float:
        batch, length, d_model, _, layers, hidden = self.shape
        return 4.0 * batch * length * layers * d_model * (2 * d_model + hidden + length)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return () if self.least is None else (Bar("torch", self.least), AHEAD_OF_ONNX_RUNTIME)

    def config(self) -> dict[str, Any]:
        """As config.json has it."""
        *_, d_model, heads, layers, hidden = self.shape
        sizes = {"hidden_size": d_model, "num_attention_heads": heads, "num_hidden_layers": layers}
        sizes |= {"vocab_size": MINILM_WORDS, "max_position_embeddings": MINILM_POSITIONS}
        return sizes | {"intermediate_size": hidden}

    def inputs(self) -> SentencesInputs:
        rng = self._generator()
        ids = rng.integers(0, MINILM_WORDS, self.shape[:2])
        shapes = plan_bert(Config(self.config(), "config")).shapes
        weights = {name: rng.standard_normal(shape, np.float32) * np.float32(0.05) for name, shape in shapes.items()}
        for name in weights:
            if name.endswith("LayerNorm.weight"):
                weights[name] += np.float32(1)
        return SentencesInputs(ids, weights)

    def read_once(self, inputs: SentencesInputs) -> tuple[np.ndarray, ...]:
        return ()


def our_bert(case: SentencesCase, inputs: SentencesInputs) -> Bert:
    """pyattn's model."""
    model: Bert = plan_bert(Config(case.config(), "config")).build(inputs.weights).eval()
    return model


def our_encoder(case: SentencesCase, inputs: SentencesInputs) -> Callable[[], np.ndarray]:
    """A call of pyattn."""
    model = our_bert(case, inputs)
    return lambda: model(inputs.ids).last_hidden_state


def their_encoder(torch: Any, case: SentencesCase, inputs: SentencesInputs, way: str) -> Callable[[], Any]:
    """A call of transformers."""
    transformers = importlib.import_module("transformers")
    model = transformers.BertModel._from_config(transformers.BertConfig(**case.config()), attn_implementation=way)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in inputs.weights.items()}, strict=False)
    ids = torch.from_numpy(inputs.ids)
    model.eval()
    return lambda: model(ids).last_hidden_state
