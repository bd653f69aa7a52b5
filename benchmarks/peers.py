"""Whom pyattn is compared with, each in its best form for the same work at the same number of threads.

Every peer gets its inputs in its own array type before the clock starts, and what it can only do with an expanded mask
or repeated heads is expanded before the clock starts too.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

import pyattn
from benchmarks import jax_worker, models, onnx_modules
from benchmarks.cases import (
    AdditiveCase,
    AdditiveInputs,
    AttentionCase,
    AttentionInputs,
    Case,
    EncoderLayerCase,
    EncoderLayerInputs,
    LinearCase,
    LinearInputs,
    MultiHeadCase,
    MultiHeadInputs,
    SelfAttentionCase,
    SelfAttentionInputs,
)
from benchmarks.measure import Sample, repeated
from benchmarks.onnx_model import Graph, attention_model
from pyattn.interop.torch import to_torch
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.models.bert import Bert


class PeerMissingError(Exception):
    """This peer is not installed or cannot run on this machine."""


class UnsupportedError(Exception):
    """This peer has no such operation."""


@dataclass(frozen=True)
class Contender:
    """One that takes part in a measurement."""

    sample: Sample
    output: Callable[[], np.ndarray]
    """Makes one call and returns its output, with pyattn's axes."""
    way: str = ""
    """Which one, of a peer that has several to the same output."""


class Peer(Protocol):
    """A library at a fixed number of threads. Making one raises PeerMissingError.

    It has a method for each operation that it takes part in, named so.
    """

    def close(self) -> None:
        """Give back processes and settings."""


def enter(peer: Peer, case: Case, inputs: Any) -> list[Contender]:
    """Prepare a case in every way that the peer has to it; raises UnsupportedError."""
    contenders: list[Contender] = getattr(peer, case.operation)(case, inputs)
    return contenders


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PeerMissingError(f"{module} is not installed") from error


class Pyattn:
    """pyattn itself."""

    @staticmethod
    def set_threads(threads: int) -> None:
        pyattn.set_num_threads(threads)

    @staticmethod
    def enter(case: Case, inputs: Any) -> Contender:
        contender: Contender = getattr(Pyattn, case.operation)(case, inputs)
        return contender

    @staticmethod
    def attention(case: AttentionCase, inputs: AttentionInputs, **more: Any) -> Contender:
        """Prepare a case; `more` are further arguments of `pyattn.attention`."""
        options: dict[str, Any] = {"is_causal": True} if case.causal else {}
        if inputs.mask is not None:
            options["attn_mask"] = inputs.mask
        if case.score != "dot":
            options |= {"score": case.score, "score_weight": inputs.score_weight}
        return _contender(pyattn.attention, inputs.query, inputs.key, inputs.value, **options, **more)

    @staticmethod
    def cached(case: AttentionCase, inputs: AttentionInputs) -> Contender:
        """The same keys and values in the pages of a cache."""
        batch, _, _, _, head_dim = case.shape
        cache = pyattn.KVCache(1, inputs.key.shape[1], head_dim, batch_size=batch, dtype=case.dtype)
        cache.append(0, inputs.key, inputs.value)
        return _contender(cache.attend, 0, inputs.query)

    @staticmethod
    def additive(case: AdditiveCase, inputs: AdditiveInputs) -> Contender:
        weights = inputs.w_query, inputs.w_key, inputs.w_score
        return _contender(pyattn.additive_attention, inputs.query, inputs.states, inputs.states, *weights)

    @staticmethod
    def self_attention(case: SelfAttentionCase, inputs: SelfAttentionInputs) -> Contender:
        return _contender(pyattn.self_attention, inputs.x, *inputs.weights)

    @staticmethod
    def linear(case: LinearCase, inputs: LinearInputs) -> Contender:
        return _contender(pyattn.functional.linear, inputs.x, inputs.weight, inputs.bias)

    @staticmethod
    def modules(case: MultiHeadCase, inputs: MultiHeadInputs) -> list[pyattn.MultiheadAttention]:
        """On the inputs' own arrays."""
        make = partial(pyattn.MultiheadAttention.from_arrays, num_heads=case.shape[-1], batch_first=True)
        return [make(parameters).eval() for parameters in inputs.parameters]

    @staticmethod
    def multi_head(case: MultiHeadCase, inputs: MultiHeadInputs) -> Contender:
        options = {"need_weights": case.variant == "weights", "is_causal": case.variant == "causal"}
        call = _stacked(Pyattn.modules(case, inputs))
        return _contender(call, inputs.x, inputs.x, inputs.x, **options, key_padding_mask=inputs.padding)

    @staticmethod
    def encoder(case: EncoderLayerCase) -> pyattn.nn.TransformerEncoderLayer:
        """The same numbers for everyone."""
        _, _, d_model, heads, hidden = case.shape
        return pyattn.nn.TransformerEncoderLayer(d_model, heads, hidden, batch_first=True, rng=0).eval()

    @staticmethod
    def encoder_layer(case: EncoderLayerCase, inputs: EncoderLayerInputs) -> Contender:
        return _contender(Pyattn.encoder(case), inputs.x)

    @staticmethod
    def generate(case: models.GenerateCase, inputs: models.GenerateInputs) -> Contender:
        return _writing(models.our_writer(case, inputs))

    @staticmethod
    def sentences(case: models.SentencesCase, inputs: models.SentencesInputs) -> Contender:
        return _contender(models.our_encoder(case, inputs))


def _stacked(modules: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Each module on the output of the one before."""
    if len(modules) == 1:
        return modules[0]

    def call(query: Any, key: Any, value: Any, **options: Any) -> Any:
        for module in modules:
            query = key = value = module(query, key, value, **options)[0]
        return query

    return call


def _contender(call: Callable[..., Any], *arguments: Any, **options: Any) -> Contender:
    return Contender(repeated(call, *arguments, **options), lambda: _as_array(call(*arguments, **options)))


def _writing(write: models.Write, way: str = "") -> Contender:
    return Contender(models.token_sample(write), lambda: write([]), way)


def _as_array(result: Any) -> np.ndarray:
    """The output; where there are weights, too, the numbers of both."""
    parts = [part for part in result if part is not None] if isinstance(result, tuple) else [result]
    arrays = [np.asarray(part.float() if str(part.dtype) == "torch.bfloat16" else part) for part in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate([array.ravel() for array in arrays])


class Torch:
    """PyTorch in inference mode: without gradients, and a little ahead of `no_grad` in modules."""

    def __init__(self, threads: int) -> None:
        self.torch = _import("torch")
        self.mode = ExitStack()
        self.mode.enter_context(self.torch.inference_mode())
        self.mode.callback(self.torch.set_num_threads, self.torch.get_num_threads())
        self.torch.set_num_threads(threads)

    def attention(self, case: AttentionCase, inputs: AttentionInputs) -> list[Contender]:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        query, key, value = (view_as_tensor(a) for a in (inputs.query, inputs.key, inputs.value))
        options: dict[str, Any] = {"is_causal": True} if case.causal else {}
        if inputs.mask is not None:  # its fused path wants 2 or 4 axes
            mask = inputs.mask[np.newaxis] if inputs.mask.ndim == 3 else inputs.mask
            options["attn_mask"] = self.torch.from_numpy(mask)
        if case.kv_heads:
            options["enable_gqa"] = True
        return [_contender(attention, query, key, value, **options)]

    def additive(self, case: AdditiveCase, inputs: AdditiveInputs) -> list[Contender]:
        """The eager formula, with the one large array that it needs used twice."""
        torch = self.torch
        weights = inputs.w_query, inputs.w_key, inputs.w_score
        query, states, w_query, w_key, w_score = map(torch.from_numpy, (inputs.query, inputs.states, *weights))

        def call() -> Any:
            pairs = (query @ w_query)[:, :, None] + (states @ w_key)[:, None]
            return torch.softmax(pairs.tanh_() @ w_score, dim=-1) @ states

        return [_contender(call)]

    def linear(self, case: LinearCase, inputs: LinearInputs) -> list[Contender]:
        arrays = inputs.x, np.ascontiguousarray(inputs.weight), inputs.bias
        return [_contender(self.torch.nn.functional.linear, *map(self.torch.from_numpy, arrays))]

    def multi_head(self, case: MultiHeadCase, inputs: MultiHeadInputs) -> list[Contender]:
        """Modules on pyattn's memory, as they come and without their fast path, which is not always the faster one.

        The causal mask is of floats, as torch makes it: with a bool one the fast path would compute what is hidden.
        """
        modules = [to_torch(module, share=True) for module in Pyattn.modules(case, inputs)]
        x = self.torch.from_numpy(inputs.x)
        options: dict[str, Any] = {"need_weights": case.variant == "weights"}
        if case.variant == "causal":
            mask = self.torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            options |= {"is_causal": True, "attn_mask": mask}
        if inputs.padding is not None:
            options["key_padding_mask"] = self.torch.from_numpy(inputs.padding)
        usual = _contender(_stacked(modules), x, x, x, **options)
        return [usual, self._without_fast_path(usual)]

    def encoder_layer(self, case: EncoderLayerCase, inputs: EncoderLayerInputs) -> list[Contender]:
        usual = _contender(to_torch(Pyattn.encoder(case), share=True).eval(), self.torch.from_numpy(inputs.x))
        return [usual, self._without_fast_path(usual)]

    def generate(self, case: models.GenerateCase, inputs: models.GenerateInputs) -> list[Contender]:
        """Transformers, on PyTorch."""
        _import("transformers")
        return [
            _writing(models.their_writer(self.torch, case, inputs, way), f"transformers {way}") for way in models.WAYS
        ]

    def sentences(self, case: models.SentencesCase, inputs: models.SentencesInputs) -> list[Contender]:
        """Transformers, on PyTorch."""
        _import("transformers")
        both = [(way, _contender(models.their_encoder(self.torch, case, inputs, way))) for way in models.WAYS]
        return [Contender(one.sample, one.output, way=f"transformers {way}") for way, one in both]

    def _without_fast_path(self, usual: Contender) -> Contender:
        switch = self.torch.backends.mha.set_fastpath_enabled

        def switched(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*arguments: Any) -> Any:
                switch(False)
                try:
                    return call(*arguments)
                finally:
                    switch(True)

            return wrapper

        return Contender(switched(usual.sample), switched(usual.output), way="without fast path")

    def close(self) -> None:
        self.mode.close()


class OnnxRuntime:
    """ONNX Runtime, on models that hold their weights, whose shapes are fixed except those of `generate`.

    It is called as its users do, from and to ndarrays.
    """

    def __init__(self, threads: int) -> None:
        self.runtime = _import("onnxruntime")
        self.threads = threads

    def attention(self, case: AttentionCase, inputs: AttentionInputs) -> list[Contender]:
        batch, heads, q_len, kv_len, head_dim = case.shape
        arrays = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        attributes = {"is_causal": 1} if case.causal else {}
        if case.strided:  # its own form of these views: (batch, length, heads * head_dim)
            arrays = {name: a.swapaxes(1, 2).reshape(batch, -1, heads * head_dim) for name, a in arrays.items()}
            attributes |= {"q_num_heads": heads, "kv_num_heads": heads}
        if inputs.mask is not None:  # it broadcasts a mask over batch and heads, not over queries
            axes = (*inputs.mask.shape[:-2], q_len, kv_len)
            arrays["mask"] = np.ascontiguousarray(np.broadcast_to(inputs.mask, axes))
        session = self._session(attention_model(arrays, attributes))

        def output() -> np.ndarray:
            array: np.ndarray = session.run(None, arrays)[0]
            return array.reshape(batch, q_len, heads, head_dim).swapaxes(1, 2) if case.strided else array

        return [Contender(repeated(session.run, None, arrays), output)]

    def linear(self, case: LinearCase, inputs: LinearInputs) -> list[Contender]:
        graph, arrays = Graph(), {"x": inputs.x}
        (x,) = graph.inputs(arrays)
        return [self._contender(graph.model(onnx_modules.linear(graph, x, inputs.weight, inputs.bias)), arrays)]

    def multi_head(self, case: MultiHeadCase, inputs: MultiHeadInputs) -> list[Contender]:
        modules = Pyattn.modules(case, inputs)
        if case.variant == "weights":
            graph, arrays = Graph(), {"x": inputs.x}
            (x,), (module,) = graph.inputs(arrays), modules
            return [self._contender(graph.model(*onnx_modules.attend_with_weights(graph, x, module)), arrays)]

        def build(graph: Graph, x: str, attend: onnx_modules.Attend) -> str:
            for module in modules:
                x = attend(graph, x, module)
            return x

        return self._ways(build, inputs.x, causal=case.variant == "causal", padding=inputs.padding)

    def encoder_layer(self, case: EncoderLayerCase, inputs: EncoderLayerInputs) -> list[Contender]:
        layer = Pyattn.encoder(case)
        return self._ways(lambda graph, x, attend: onnx_modules.encoder_layer(graph, x, layer, attend), inputs.x)

    def generate(self, case: models.GenerateCase, inputs: models.GenerateInputs) -> list[Contender]:
        """With GroupQueryAttention, which adds to its cache in place."""
        batch, prompt, tokens, *_ = case.shape
        session = self._session(onnx_modules.gpt2_step(inputs.model, batch, prompt + tokens))
        return [_writing(models.onnx_writer(self.runtime, session, case, inputs))]

    def sentences(self, case: models.SentencesCase, inputs: models.SentencesInputs) -> list[Contender]:
        return self.bert(models.our_bert(case, inputs), inputs.ids)

    def bert(self, model: Bert, ids: np.ndarray) -> list[Contender]:
        """The same weights."""
        length = ids.shape[1]
        return self._ways(lambda graph, ids, attend: onnx_modules.bert(graph, ids, length, model, attend), ids)

    def _ways(
        self,
        build: Callable[[Graph, str, onnx_modules.Attend], str],
        x: np.ndarray,
        *,
        causal: bool = False,
        padding: np.ndarray | None = None,
    ) -> list[Contender]:
        """A model for each operator that computes attention; `build` goes from x to the output."""
        contenders = []
        for way in onnx_modules.WAYS:
            graph, arrays = Graph(), {"x": x}
            if padding is not None:
                arrays["mask"] = onnx_modules.as_mask(way, padding)
            name, *mask = graph.inputs(arrays)
            output = build(graph, name, onnx_modules.attend(way, *mask, causal=causal))
            contenders.append(self._contender(graph.model(output), arrays, way))
        return contenders

    def _contender(self, model: bytes, arrays: dict[str, np.ndarray], way: str = "") -> Contender:
        session = self._session(model)
        return Contender(repeated(session.run, None, arrays), lambda: _as_array(tuple(session.run(None, arrays))), way)

    def _session(self, model: bytes) -> Any:
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # its errors arrive as exceptions too
        try:
            return self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no public base class
            raise UnsupportedError(str(error)) from error

    def close(self) -> None:
        pass


class Jax:
    """JAX, jitted, in a process of its own that may use as many cores as there are threads."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child would inherit pools without their threads
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=jax_worker.serve, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self._ask("start")
        except UnsupportedError as error:
            self.close()
            raise PeerMissingError(str(error)) from error

    def _ask(self, *request: Any) -> Any:
        try:
            self.pipe.send(request)
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise UnsupportedError("its process ended") from error
        if isinstance(answer, Exception):
            raise UnsupportedError(f"{type(answer).__name__}: {answer}")
        return answer

    def attention(self, case: AttentionCase, inputs: AttentionInputs) -> list[Contender]:
        self._ask("enter", case)

        def output() -> np.ndarray:
            array: np.ndarray = self._ask("output")
            return array.swapaxes(1, 2) if case.strided else array

        return [Contender(lambda number: float(self._ask("sample", number)), output)]

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        self.process.kill()


def _softmax(scores: np.ndarray) -> np.ndarray:
    """In place, along the last axis."""
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


class NumPy:
    """What one writes in NumPy, with the temporaries that can be saved saved."""

    def __init__(self, threads: int) -> None:
        try:  # the only way to set the threads of NumPy's BLAS
            self.limits = _import("threadpoolctl").threadpool_limits(threads, user_api="blas")
        except PeerMissingError as error:
            raise PeerMissingError(
                "threadpoolctl is not installed, and NumPy's threads can't be set without it"
            ) from error

    def attention(self, case: AttentionCase, inputs: AttentionInputs) -> list[Contender]:
        groups = case.shape[1] // (case.kv_heads or case.shape[1])
        query = inputs.query
        key, value = (a.repeat(groups, axis=1) if groups > 1 else a for a in (inputs.key, inputs.value))
        scale = query.dtype.type(1 / np.sqrt(query.shape[-1]))
        mask = np.tri(query.shape[-2], key.shape[-2], dtype=bool) if case.causal else inputs.mask

        def call() -> np.ndarray:
            scores = query @ key.swapaxes(-1, -2)
            scores *= scale
            if mask is not None:
                scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
            output: np.ndarray = _softmax(scores) @ value
            return output

        return [Contender(repeated(call), call)]

    def additive(self, case: AdditiveCase, inputs: AdditiveInputs) -> list[Contender]:
        def call() -> np.ndarray:
            pairs = (inputs.query @ inputs.w_query)[:, :, np.newaxis] + (inputs.states @ inputs.w_key)[:, np.newaxis]
            scores = np.tanh(pairs, out=pairs) @ inputs.w_score
            output: np.ndarray = _softmax(scores) @ inputs.states
            return output

        return [Contender(repeated(call), call)]

    def self_attention(self, case: SelfAttentionCase, inputs: SelfAttentionInputs) -> list[Contender]:
        scale = np.float32(1 / np.sqrt(case.shape[1]))

        def call() -> np.ndarray:
            query, key, value = (inputs.x @ weight for weight in inputs.weights)
            scores = query @ key.T
            scores *= scale
            output: np.ndarray = _softmax(scores) @ value
            return output

        return [Contender(repeated(call), call)]

    def linear(self, case: LinearCase, inputs: LinearInputs) -> list[Contender]:
        def call() -> np.ndarray:
            output: np.ndarray = inputs.x @ inputs.weight.T
            output += inputs.bias
            return output

        return [Contender(repeated(call), call)]

    def close(self) -> None:
        self.limits.restore_original_limits()


PEERS: dict[str, Callable[[int], Peer]] = {"torch": Torch, "onnxruntime": OnnxRuntime, "jax": Jax, "numpy": NumPy}
