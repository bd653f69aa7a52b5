"""accelerate and restore: modules of torch computed by pyattn, on the same memory and with torch's behaviour."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import os
import pickle
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
from support.helpers import run_python

import pyattn
from pyattn import _core, functional
from pyattn.interop.torch import accelerate, reading, restore

pytestmark = pytest.mark.peers

DIM, HEADS, HIDDEN, LENGTH = 16, 4, 32, 9
SIZES = {"d_model": DIM, "nhead": HEADS, "dim_feedforward": HIDDEN}


def rows(torch, dtype="float32", *shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape or (2, LENGTH, DIM), generator=generator).to(getattr(torch, dtype))


def make(torch, name, *args, **options):
    torch.manual_seed(0)
    return getattr(torch.nn, name)(*args, **options).eval()


def stack(torch, kind, layers=2, **options):
    layer = make(torch, f"Transformer{kind}Layer", **SIZES, batch_first=True, **options)
    return make(torch, f"Transformer{kind}", layer, layers)


def causal_mask(torch):
    return torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)


def padding(torch):
    blocked = torch.zeros(2, LENGTH, dtype=torch.bool)
    blocked[1, 6:] = True
    return blocked


def case_linear(torch):
    return make(torch, "Linear", DIM, 5), [], {}


def case_layer_norm(torch):
    return make(torch, "LayerNorm", DIM), [], {}


def case_layer_norm_without_parameters(torch):
    return make(torch, "LayerNorm", DIM, elementwise_affine=False), [], {}


def case_rms_norm(torch):
    return make(torch, "RMSNorm", DIM), [], {}


def case_gelu(torch):
    return make(torch, "GELU"), [], {}


def case_gelu_tanh(torch):
    return make(torch, "GELU", "tanh"), [], {}


def case_silu(torch):
    return make(torch, "SiLU"), [], {}


def case_feed_forward(torch):
    parts = make(torch, "Linear", DIM, HIDDEN), torch.nn.GELU(), torch.nn.Dropout(), make(torch, "Linear", HIDDEN, DIM)
    return make(torch, "Sequential", *parts), [], {}


def case_attention(torch):
    return make(torch, "MultiheadAttention", DIM, HEADS, batch_first=True), ["x", "x"], {}


def case_attention_causal(torch):
    module = make(torch, "MultiheadAttention", DIM, HEADS)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(2)
    return module, ["x", "x"], {"attn_mask": mask, "is_causal": True, "need_weights": False}


def case_attention_padding(torch):
    module = make(torch, "MultiheadAttention", DIM, HEADS, batch_first=True)
    return module, ["x", "x"], {"key_padding_mask": padding(torch), "average_attn_weights": False}


def case_attention_masks_of_heads(torch):
    """One of each head of each batch, in one axis."""
    module = make(torch, "MultiheadAttention", DIM, HEADS, batch_first=True)
    return module, ["x", "x"], {"attn_mask": rows(torch, "float32", 2 * HEADS, LENGTH, LENGTH) > 0}


def case_encoder_masks_of_heads(torch):
    mask = rows(torch, "float32", 2 * HEADS, LENGTH, LENGTH) > 0
    return stack(torch, "Encoder"), [], {"mask": mask & ~torch.eye(LENGTH, dtype=torch.bool)}


def case_encoder_layer(torch):
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    return layer, [], {"src_key_padding_mask": padding(torch)}


def case_encoder_layer_norm_first(torch):
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True, norm_first=True, activation="gelu")
    return layer, [], {"src_mask": causal_mask(torch), "is_causal": True}


def case_decoder_layer(torch):
    layer = make(torch, "TransformerDecoderLayer", **SIZES, batch_first=True)
    return layer, ["x"], {"tgt_mask": causal_mask(torch), "tgt_is_causal": True}


def case_encoder(torch):
    return stack(torch, "Encoder"), [], {}


def case_encoder_padding(torch):
    return stack(torch, "Encoder"), [], {"src_key_padding_mask": padding(torch)}


def case_decoder(torch):
    return stack(torch, "Decoder"), ["x"], {"memory_key_padding_mask": padding(torch)}


def case_transformer(torch):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "batch_first": True}
    return make(torch, "Transformer", **SIZES, **sizes), ["x"], {"tgt_mask": causal_mask(torch)}


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


def flat(result):
    return [x for x in (result if isinstance(result, tuple) else (result,)) if x is not None]


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_torchs_but_for_rounding(name, dtype, torch, monkeypatch):
    monkeypatch.setattr(reading, "_MULTIPLIES_BFLOAT16", False)
    module, more, options = CASES[name](torch)
    kind = getattr(torch, dtype)
    module.to(kind)
    options = {
        n: x.to(kind) if hasattr(x, "is_floating_point") and x.is_floating_point() else x for n, x in options.items()
    }
    x = rows(torch, dtype)
    args = [x, *(x for _ in more)]
    with torch.inference_mode():
        expected = flat(module(*args, **options))
        with accelerate(module) as report, no_warning():
            found = flat(module(*args, **options))
        again = flat(module(*args, **options))
    assert report.replaced
    assert not report.kept
    for ours, theirs, after in zip(found, expected, again, strict=True):
        assert ours.dtype == kind
        assert ours.shape == theirs.shape
        most = float(theirs.abs().max())
        bound = {"float32": 1e-5, "float64": 1e-13, "float16": 2**-8, "bfloat16": 2**-5}[dtype]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=bound * most)
        assert torch.equal(theirs, after)


def test_many_rows_of_bfloat16_are_torchs_where_it_multiplies_them(torch, monkeypatch):
    """Silently, as nothing is amiss; fewer rows are pyattn's."""
    linear, seen = functional.linear, []
    monkeypatch.setattr(functional, "linear", lambda *args: seen.append(1) or linear(*args))
    for native, number in ((True, 1), (False, 2)):
        monkeypatch.setattr(reading, "_MULTIPLIES_BFLOAT16", native)
        for dtype, count in ((torch.bfloat16, number), (torch.float16, 2)):
            module = make(torch, "Linear", DIM, DIM).to(dtype)
            seen.clear()
            with torch.inference_mode(), accelerate(module, strict=True):
                for length in (7, 8):
                    module(rows(torch, "float32", 1, length, DIM).to(dtype))
            assert len(seen) == count


def test_rows_left_to_torch_are_refused_as_others_are(torch, monkeypatch):
    """With strict, what torch has to compute anyway is an error."""
    monkeypatch.setattr(reading, "_MULTIPLIES_BFLOAT16", True)
    module, x = make(torch, "Linear", DIM, DIM).bfloat16(), torch.ones(8, DIM, dtype=torch.bfloat16)
    accelerate(module, strict=True)
    with pytest.raises(RuntimeError, match="gradients are enabled"):
        module(x)
    with torch.inference_mode():
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="autocast is on"):
            module(x)
        with pytest.raises(RuntimeError, match="training mode"):
            module.train()(x)


def test_parameters_of_subclasses_are_not_read_as_numbers(torch):
    class Doubled(torch.nn.Parameter):
        pass

    module, x = make(torch, "Linear", DIM, DIM), rows(torch)
    module.weight = Doubled(module.weight.detach())
    report = accelerate(torch.nn.Sequential(module, make(torch, "TransformerEncoderLayer", **SIZES)))
    assert report.kept == {"0": "weight is a Doubled, not a Parameter"}
    module = make(torch, "Linear", DIM, DIM)
    accelerate(module)
    with torch.inference_mode():
        module(x)
        module.weight = Doubled(module.weight.detach())
        with pytest.warns(RuntimeWarning, match="weight is a Doubled, not a Parameter"):
            module(x)


def test_replaced_parameters_are_not_kept_alive(torch):
    """Also where torch has computed a layer, and with that pyattn its parts."""
    layer, x = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True), rows(torch)
    accelerate(layer)
    hook = layer.norm1.register_forward_hook(lambda *_: None)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        layer(x)
        hook.remove()
        layer(x)
        old = [weakref.ref(parameter) for parameter in layer.parameters()]
        layer.load_state_dict({name: x.clone() for name, x in layer.state_dict().items()}, assign=True)
        layer(x)
    assert not [one for one in old if one() is not None]


def test_norms_without_weights_take_what_torchs_take(torch):
    norm = make(torch, "LayerNorm", DIM, elementwise_affine=False)
    with torch.inference_mode(), accelerate(norm), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for x in (torch.ones(2, DIM + 1), torch.ones(2, DIM, dtype=torch.int64)):
            with pytest.raises(RuntimeError):
                norm(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_torchs(torch):
    module = make(torch, "Linear", DIM, 3)
    nested = torch.nested.nested_tensor([torch.ones(2, DIM), torch.ones(3, DIM)])
    with (
        torch.inference_mode(),
        accelerate(module),
        pytest.warns(RuntimeWarning, match="input is a nested tensor; pass"),
    ):
        assert module(nested).is_nested


@pytest.mark.filterwarnings("ignore:.*it has too many arguments:RuntimeWarning")
def test_wrong_arguments_get_torchs_error(torch):
    x, layer = rows(torch), make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    for args, options in (((x, None, None, False, 3), {}), ((x,), {"src": x})):
        with torch.inference_mode(), accelerate(layer), pytest.raises(TypeError, match=r"forward\(\)"):
            layer(*args, **options)


@pytest.mark.parametrize("mask", [[[0.0]], np.zeros((LENGTH, LENGTH))], ids=["list", "array"])
def test_masks_of_other_types_get_torchs_error(mask, torch):
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    refused = pytest.raises(RuntimeError, match=r"must be None or torch\.Tensor")
    with (
        torch.no_grad(),
        accelerate(layer),
        pytest.warns(RuntimeWarning, match="src_mask is a (list|ndarray)"),
        refused,
    ):
        layer(rows(torch), src_mask=mask)


def test_an_embedding_looks_up_ids_of_any_integer_type(torch):
    embedding = make(torch, "Embedding", 10, DIM, padding_idx=0)
    with torch.inference_mode(), accelerate(embedding), no_warning():
        for dtype in (torch.int64, torch.int32):
            ids = torch.tensor([[0, 3], [9, 1]], dtype=dtype)
            assert torch.equal(embedding(ids), embedding.weight[ids.long()])
    with torch.inference_mode(), accelerate(embedding), pytest.raises(IndexError), pytest.warns(RuntimeWarning):
        embedding(torch.tensor([10]))  # the error is torch's


def model_of(torch):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(**SIZES, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Linear(DIM, DIM), encoder, torch.nn.LayerNorm(DIM)).eval()


def expect_fallback(torch, model, reason, *, call=None, atol=0.0):
    """Check that torch computes a call, to the bit if all of it, and that one warning says why."""
    x = rows(torch)
    run = call or (lambda module: module(x))
    restore(model)
    expected = run(model)
    accelerate(model)
    with pytest.warns(RuntimeWarning, match=reason) as seen:
        found = run(model)
    assert len([w for w in seen if issubclass(w.category, RuntimeWarning)]) == 1
    assert seen[0].filename == __file__
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    with no_warning():
        run(model)
    return found


def test_gradients_are_torchs(torch):
    model = model_of(torch)
    found = expect_fallback(torch, model, r"computes Linear itself: gradients are enabled; call it within torch\.inf")
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    x = rows(torch).requires_grad_()
    expect_fallback(torch, model, "gradients are enabled", call=lambda module: module(x))
    with no_warning():
        accelerate(model)
        model(rows(torch))  # nothing requires a gradient
        with torch.no_grad():
            model(x)
            model(torch.nn.Parameter(x))


def test_training_autocast_and_tracing_are_torchs(torch):
    model = model_of(torch)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        for layer in model[1].layers:
            layer.self_attn.dropout = 0.0
        expect_fallback(torch, model.train(), r"it is in training mode; call model\.eval\(\)")
        model.eval()
        model[1].layers[0].dropout.train()
        expect_fallback(torch, model, "a part of it is in training mode", atol=1e-5)
        model.eval()

        def cast(module):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return module(rows(torch))

        expect_fallback(torch, model, "autocast is on", call=cast)


def test_hooks_within_a_module_run(torch):
    model, seen = model_of(torch), []
    part = model[1].layers[0].linear1
    part.register_forward_hook(lambda *_: seen.append("after"))
    part.register_forward_pre_hook(lambda *_: seen.append("before"))
    with torch.no_grad():
        expect_fallback(torch, model, "TransformerEncoder itself: a part of it has a hook", atol=1e-5)
    assert seen == ["before", "after"] * 3


def test_hooks_of_a_replaced_module_run(torch):
    model, seen = model_of(torch), []
    model[1].register_forward_hook(lambda *_: seen.append("after"))
    with torch.no_grad(), accelerate(model), no_warning():
        model(rows(torch))
    assert seen == ["after"]


def test_hooks_of_all_modules_run(torch):
    model, seen = model_of(torch), []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        with torch.no_grad():
            expect_fallback(torch, model, "a hook is registered for all modules", atol=1e-5)
    finally:
        hook.remove()
    once = seen[: len(seen) // 3]
    assert {"Linear", "TransformerEncoderLayer", "Sequential"} <= set(once)
    assert seen == 3 * once


class Doubling:
    """A forward of a user's own, in a subclass of a part."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("part", ["linear1", "dropout", "norm2"])
def test_forwards_of_others_run(part, torch):
    model = model_of(torch)
    layer = model[1].layers[0]
    kind = type(getattr(layer, part))
    getattr(layer, part).__class__ = type("Doubled", (Doubling, kind), {})
    kept = accelerate(model).kept
    assert kept["1.layers.0"] == f"a Doubled in it comes from {__name__}"
    assert "1.layers.1" not in kept


def test_parts_that_torch_allows_to_differ(torch):
    """Such a layer stays torch's, and the others do not."""
    model = model_of(torch)
    model[1].layers[0].dropout1 = torch.nn.Identity()
    report = accelerate(model)
    assert set(report.kept) == {"1", "1.layers.0"}
    assert report.replaced["1.layers.1"] == "TransformerEncoderLayer"


def replace_method(layer, torch, monkeypatch):
    layer._ff_block = lambda x: x + 1


def replace_forward_of_a_class(layer, torch, monkeypatch):
    forward = torch.nn.Linear.forward
    twice = functools.wraps(forward)(lambda self, x: 2 * forward(self, x))
    monkeypatch.setattr(torch.nn.Linear, "forward", twice)


def replace_forward_by_a_wrapper_of_torch(layer, torch, monkeypatch):
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", torch.no_grad()(lambda self, x: 2 * forward(self, x)))


def replace_dropout(layer, torch, monkeypatch):
    layer.dropout1 = torch.nn.Tanh()


def replace_forward(layer, torch, monkeypatch):
    layer.norm2.forward = torch.tanh


def test_patches_of_what_computes_nothing(torch, monkeypatch):
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    layer.train = lambda mode=True: layer
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: None)
    assert not accelerate(layer).kept


EARLY = replace_forward_of_a_class, replace_forward_by_a_wrapper_of_torch
REPLACED = [(one, late) for one in (replace_method, replace_dropout, replace_forward) for late in (False, True)]


@pytest.mark.parametrize(("replace", "late"), [*((one, False) for one in EARLY), *REPLACED])
def test_replaced_code_runs(replace, late, torch, monkeypatch):
    """Before a model is accelerated, or later; classes are looked at before."""
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    layer.activation = torch.nn.GELU()  # torch has no fast path that leaves code out
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if late:
            accelerate(layer)
        replace(layer, torch, monkeypatch)
        if not late:
            assert "" in accelerate(layer).kept
        found = layer(rows(torch))
        restore(layer)
        torch.testing.assert_close(found, layer(rows(torch)), rtol=0, atol=1e-5)


def test_modes_of_torch_see_its_functions(torch):
    class Doubled(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return 2 * result if function is torch.nn.functional.linear else result

    module, x = make(torch, "Linear", DIM, DIM), rows(torch)
    with torch.no_grad():
        expected = 2 * module(x)
        accelerate(module)
        with Doubled(), pytest.warns(RuntimeWarning, match="a mode of torch see"):
            assert torch.equal(module(x), expected)
        with torch.device("cpu"), no_warning():
            module(x)


@pytest.mark.parametrize("more", [[], ["Linear"], ["Tanh"], ["ReLU", "Linear"], ["Linear", "ReLU", "Linear"]])
def test_chains_of_layers_of_any_length(more, torch):
    parts = [make(torch, name, *[DIM, DIM] * (name == "Linear")) for name in ("Linear", "ReLU", *more)]
    chain = make(torch, "Sequential", *parts)
    with torch.no_grad():
        expected = chain(rows(torch))
        assert accelerate(chain, strict=True).replaced["0"] == "Linear"
        torch.testing.assert_close(chain(rows(torch)), expected, rtol=0, atol=1e-5)


def test_results_are_contiguous(torch):
    """As torch's are with batch_first=False: users call view on them."""
    layer = make(torch, "TransformerEncoderLayer", **SIZES)
    with torch.no_grad(), accelerate(layer, strict=True):
        assert layer(rows(torch)).is_contiguous()


def test_what_writes_to_its_input_stays_torchs(torch):
    assert accelerate(torch.nn.SiLU(inplace=True)).kept == {"": "it writes to its input"}


def test_rms_norms_without_eps(torch):
    """Small rows show what torch adds."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for affine in (True, False):
            norm = make(torch, "RMSNorm", DIM, elementwise_affine=affine, dtype=dtype)
            x = 1e-4 * rows(torch).to(dtype)
            with torch.no_grad():
                expected = norm(x)
                with accelerate(norm), no_warning():
                    torch.testing.assert_close(norm(x), expected)


def test_left_padding_is_not_taken_for_a_mistake(torch):
    layer = make(torch, "TransformerEncoderLayer", **SIZES, batch_first=True)
    blocked = padding(torch).flip(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = layer(rows(torch), src_key_padding_mask=blocked)
        accelerate(layer)
        torch.testing.assert_close(layer(rows(torch), src_key_padding_mask=blocked), expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_functions_of_torch_see_each_step(torch):
    module, x = make(torch, "Linear", DIM, DIM), rows(torch)
    weights = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in module.named_parameters()}
    call = torch.func.vmap(lambda weights: torch.func.functional_call(module, weights, x))
    with torch.no_grad():
        expected = call(weights)
        accelerate(module)
        with pytest.warns(RuntimeWarning, match=r"torch\.func sees each of its steps"):
            assert torch.equal(call(weights), expected)
        gradient = torch.func.grad(lambda x: module(x).sum())
        restore(module)
        expected = gradient(x)
        accelerate(module)
        with torch.enable_grad(), pytest.warns(RuntimeWarning, match=r"torch\.func sees"):
            assert torch.equal(gradient(x), expected)
        with torch.autograd.forward_ad.dual_level():
            with pytest.warns(RuntimeWarning, match="forward-mode gradients"):
                y = module(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
            assert torch.autograd.forward_ad.unpack_dual(y).tangent is not None


def test_tracing_and_compiling_see_torchs_code(torch):
    module, x = make(torch, "Linear", DIM, DIM), rows(torch)
    accelerate(module, strict=True)
    with torch.no_grad():
        with pytest.warns(DeprecationWarning, match="jit.trace"):
            traced = torch.jit.trace(module, x)
        assert "aten::linear" in str(traced.inlined_graph)
        assert torch.equal(traced(x), torch.nn.functional.linear(x, module.weight, module.bias))


def test_strict_raises(torch):
    model = model_of(torch)
    with accelerate(model, strict=True), pytest.raises(RuntimeError, match=r"cannot compute this call of Linear: grad"):
        model(rows(torch))


def test_parameters_may_change(torch):
    model, x = model_of(torch), rows(torch)
    linear = model[1].layers[0].linear1

    def check():
        with torch.no_grad(), no_warning():
            found = model(x)
            restore(model)
            torch.testing.assert_close(found, model(x), rtol=0, atol=1e-5)
            accelerate(model)
            model(x)

    accelerate(model)
    with torch.no_grad():
        model(x)
        linear.weight.mul_(2)  # in place
        check()
        linear.weight = torch.nn.Parameter(-linear.weight)
        check()
        linear.weight.data = linear.weight.data.clone() * 3
        check()
        model[1].layers[0].linear1 = make(torch, "Linear", DIM, HIDDEN)
        check()
        layer = model[1].layers[0]
        for weight in (layer.linear1.weight, layer.linear2.weight, layer.linear1.bias):
            weight.data = (
                weight.data[..., : HIDDEN // 2] if weight is layer.linear2.weight else weight.data[: HIDDEN // 2]
            )
        check()  # at the same addresses
        model[1].layers.append(copy.deepcopy(model[1].layers[0]))
        model[1].num_layers += 1
        check()
        model.load_state_dict({name: x / 2 for name, x in model.state_dict().items()}, assign=True)
        check()


def test_dtype_may_change(torch):
    model, x = model_of(torch), rows(torch)
    with torch.no_grad():
        accelerate(model)
        model(x)
        with no_warning():
            assert model.double()(x.double()).dtype == torch.float64
            assert model.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
        with (
            pytest.raises(RuntimeError, match="dtype"),
            pytest.warns(RuntimeWarning, match="has dtype float32 and the"),
        ):
            model(x)  # the error is torch's


def test_a_parametrization_while_accelerated(torch):
    module, x = make(torch, "Linear", DIM, DIM), rows(torch)
    accelerate(module)
    torch.nn.utils.parametrizations.weight_norm(module)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="a _WeightNorm in it comes from torch.nn.utils"):
        found = module(x)
    restore(module)
    assert torch.equal(found, module(x))
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert type(module) is torch.nn.Linear


def test_copies_and_files_are_of_torchs_classes(torch):
    model, x = model_of(torch), rows(torch)
    plain, text, names = [type(m) for m in model.modules()], repr(model), [n for n, _ in model.named_modules()]
    file = io.BytesIO()
    accelerate(model)
    with torch.no_grad():
        model(x)
    torch.save(model, file)
    file.seek(0)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)
    assert repr(model) == text
    assert [name for name, _ in model.named_modules()] == names
    assert all(isinstance(m, kind) for m, kind in zip(model.modules(), plain, strict=True))
    restore(model)
    for one in (model, *copies):
        assert [type(m) for m in one.modules()] == plain
        assert not any("pyattn" in name for m in one.modules() for name in vars(m))
        with torch.no_grad():
            assert torch.equal(one(x), model(x))


def test_restoring_gives_back_the_same_model(torch):
    model, x = model_of(torch), rows(torch)
    parameters, state = list(model.parameters()), {n: t.clone() for n, t in model.state_dict().items()}
    expected = model(x)
    with pytest.raises(ZeroDivisionError), accelerate(model):
        raise ZeroDivisionError
    assert torch.equal(model(x), expected)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    restore(model)  # nothing to do
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.eval()(x), expected)


def test_memory_order(torch):
    model, x = model_of(torch), rows(torch)
    model.append(torch.nn.Embedding(DIM, DIM))
    model[0].weight = model[-1].weight  # a shared weight stays as it is
    model[-1].forward = lambda x: x
    with torch.no_grad():
        expected = model(x)
        accelerate(model, order="in_out")
        weight = model[1].layers[0].linear1.weight
        assert weight.T.is_contiguous()
        assert model[0].weight.is_contiguous()
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
        restore(model)
        assert weight.is_contiguous()
        assert weight is model[1].layers[0].linear1.weight
        assert torch.equal(model(x), expected)
    with pytest.raises(ValueError, match=r"^order is 'out_in', expected 'in_out'"):
        accelerate(model, order="out_in")


def test_the_order_of_replaced_parameters_is_restored(torch):
    module = make(torch, "Linear", DIM, 5)
    accelerate(module, order="in_out")
    module.weight = torch.nn.Parameter(module.weight.detach().clone())
    restore(module)
    assert module.weight.is_contiguous()


def test_memory_of_others_keeps_its_order(torch):
    """Of buffers on the same memory, and of other processes."""
    module, shared = make(torch, "Linear", DIM, 5), make(torch, "Linear", DIM, 5).share_memory()
    module.register_buffer("alias", module.weight.detach())
    accelerate(torch.nn.Sequential(module, shared).eval(), order="in_out")
    assert module.weight.is_contiguous()
    assert shared.weight.is_contiguous()


def test_parameters_without_memory_are_not_read(torch):
    module, sparse, lazy = make(torch, "Linear", DIM, 5), make(torch, "Linear", DIM, 5), make(torch, "LazyLinear", 5)
    module.weight.untyped_storage().resize_(0)
    sparse.weight = torch.nn.Parameter(sparse.weight.detach().to_sparse())
    model = torch.nn.ModuleList([module, sparse, lazy, None])
    model.register_buffer("graph", torch.eye(3).to_sparse())
    assert accelerate(model, order="in_out").kept == {
        "0": "weight has no memory: torch has resized its storage to nothing",
        "1": "weight is sparse; pass weight.to_dense()",
    }
    restore(model)


def test_a_model_made_in_inference_mode_can_be_laid_out(torch):
    """torch computes it meanwhile, and later."""
    with torch.inference_mode():
        module = make(torch, "Linear", DIM, 5)
        expected = module(rows(torch))
        accelerate(module, order="in_out")
        torch.testing.assert_close(torch.nn.Linear.forward(module, rows(torch)), expected)
        restore(module)
        assert torch.equal(module(rows(torch)), expected)


def test_a_model_laid_out_in_inference_mode_can_be_trained(torch):
    model = model_of(torch)
    with torch.inference_mode():
        accelerate(model, order="in_out")
        model(rows(torch))
        restore(model[1])  # a part alone
    weight = model[0].weight
    assert not weight.is_contiguous()
    assert all(layer.linear1.weight.is_contiguous() for layer in model[1].layers)
    restore(model)
    assert weight.is_contiguous()
    model.train()(rows(torch)).sum().backward()
    assert not any(parameter.is_inference() for parameter in model.parameters())


def test_a_model_is_freed_when_it_is_no_longer_used(torch):
    model = model_of(torch)
    report = accelerate(model)
    del model[0]
    assert repr(report).startswith("replaced: ")
    kept, model = weakref.ref(model), None
    assert kept() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux tells a process's memory there")
def test_weights_are_not_copied(torch):
    size = 2048
    layer = make(torch, "TransformerEncoderLayer", size, 16, 2 * size, batch_first=True)
    weights = sum(parameter.nbytes for parameter in layer.parameters())
    x = rows(torch, "float32", 1, 2, size)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with torch.no_grad():
        layer(x)
        before = resident()
        accelerate(layer)
        layer(x)
        assert resident() - before < weights / 8
        restore(layer)


def test_report(torch):
    model = torch.nn.Sequential(
        make(torch, "Linear", DIM, DIM), torch.nn.ReLU(), make(torch, "LayerNorm", (LENGTH, DIM))
    )
    report = accelerate(model)
    assert report.replaced == {"0": "Linear"}
    assert report.kept == {"2": "normalized_shape has 2 axes, and pyattn normalises one"}
    assert (
        repr(report)
        == "replaced: 1 Linear\nkept: 1 LayerNorm, as normalized_shape has 2 axes, and pyattn normalises one"
    )
    with pytest.raises(TypeError, match=r"^model is the class Linear, expected an instance: Linear\(\.\.\.\)$"):
        accelerate(torch.nn.Linear)
    with pytest.raises(TypeError, match=r"^model is a string, .*: load it, as by transformers' from_pretrained$"):
        accelerate("bert")
    with pytest.raises(TypeError, match=r"^model is of type int, expected torch\.nn\.Module$"):
        accelerate(3)


@pytest.mark.threads
def test_report_of_what_is_not_known(torch):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make(torch, "Linear", DIM, DIM)

    report = accelerate(torch.nn.ModuleList([Block(), Block(), torch.nn.Tanh()]))
    assert report.kept == dict.fromkeys("01", "pyattn does not know this class, at most its parts")
    assert str(report).splitlines() == [
        "replaced: 2 Linear",
        "kept: 2 Block, as pyattn does not know this class, at most its parts",
    ]
    assert str(accelerate(torch.nn.Tanh())) == "replaced: nothing, as pyattn knows none of its modules"


def test_threads_share_a_model(torch):
    model, x = model_of(torch), rows(torch)
    accelerate(model)
    with torch.no_grad():
        expected = model(x)
    wrong = []

    def call():
        with torch.no_grad():
            wrong.extend(1 for _ in range(50) if not torch.equal(model(x), expected))

    workers = [threading.Thread(target=call) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_torchs_number_of_threads_is_taken_over(torch, monkeypatch):
    """In a call of the model alone, and where none is set for pyattn, by threadpoolctl or another way."""
    module, x, before = make(torch, "Linear", DIM, DIM), rows(torch), torch.get_num_threads()
    linear, seen = functional.linear, []
    monkeypatch.setattr(functional, "linear", lambda *args: seen.append(pyattn.get_num_threads()) or linear(*args))
    accelerate(module)
    try:
        for own, expected in ((None, 5), (3, 3)):
            pyattn.set_num_threads(own)
            outside = pyattn.get_num_threads()
            torch.set_num_threads(5)
            with torch.no_grad():
                module(x)
            assert seen.pop() == expected
            assert pyattn.get_num_threads() == outside
    finally:
        torch.set_num_threads(before)
        pyattn.set_num_threads(None)


def test_suggested_threads_end_with_the_call():
    """Of an error and of a call within a call, too."""
    before, own = pyattn.get_num_threads(), pyattn.get_num_threads
    call = _core.call_on_threads

    def call_within():
        return own(), call(6, None, own, (), {}), own()

    assert call(5, None, call_within, (), {}) == (5, 6, 5)
    with pytest.raises(ZeroDivisionError):
        call(5, None, divmod, (1, 0), {})
    assert own() == before


ONE_POOL = """
import os, signal, warnings
import torch, pyattn

signal.alarm(60)  # what hangs, hangs
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads

def count_threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
before = count_threads()
module, x = torch.nn.Linear(512, 512).eval(), torch.ones(512, 512)
with torch.inference_mode():
    module(x)
    assert count_threads() > before, "torch computes on one thread"
    before = count_threads()
    pyattn.interop.torch.accelerate(module, strict=True)
    y = module(x)
    assert count_threads() == before, "pyattn has started threads beside torch's"
    child = os.fork()
    if child == 0:
        os._exit(not (module(x).numpy() == y.numpy()).all())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has failed"
"""

FIRST_CALL_IN_A_CHILD = """
import os, signal, warnings
import torch, pyattn

signal.alarm(60)
warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(2)
module, x = torch.nn.Linear(512, 512).eval(), torch.ones(512, 512)
with torch.inference_mode():
    y = module(x)
    pyattn.interop.torch.accelerate(module, strict=True)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(not abs(module(x).numpy() - y.numpy()).max() < 1e-4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

FORK_BY_A_HANDLER = """
import os, signal, warnings
import torch, pyattn

warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(2)
module, x = torch.nn.Linear(2000, 2000).eval(), torch.ones(8000, 2000)
pyattn.interop.torch.accelerate(module, strict=True)
parent, children = os.getpid(), []

def fork(*_):
    child = os.fork()
    if child:
        children.append(child)
    else:
        signal.alarm(60)

signal.signal(signal.SIGVTALRM, fork)
with torch.inference_mode():
    y = module(x)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)
    try:
        right = bool((module(x).numpy() == y.numpy()).all())
    except RuntimeError as error:
        right = os.getpid() != parent and "fork" in str(error)
    if os.getpid() != parent:
        os._exit(not right)
    assert right
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0]
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch's threads are those of GCC's OpenMP on Linux")
@pytest.mark.parametrize(
    "script", [ONE_POOL, FIRST_CALL_IN_A_CHILD, FORK_BY_A_HANDLER], ids=["one pool", "child", "handler"]
)
def test_torchs_threads_compute(script, torch):
    """Two pools would starve each other. A child cannot use those of its parent."""
    run_python(script)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_attention_of_tensors(torch):
    q, k, v = torch.randn(3, 2, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7)[:, None] >= torch.arange(7) - 2
    ours, theirs = pyattn.interop.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.3}):
        torch.testing.assert_close(ours(q, k, v, **options), theirs(q, k, v, **options), rtol=0, atol=1e-6)
    torch.manual_seed(1)
    one = ours(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(ours(q, k, v, dropout_p=0.5), one)
    q.requires_grad_()
    with torch.no_grad():
        assert ours(q, k, v).shape == q.shape
    with pytest.raises(TypeError, match=r"key is on device 'meta'; pass key\.cpu\(\)"):
        ours(q.detach(), k.to("meta"), v)
    with pytest.raises(TypeError, match=r"value is of type ndarray, expected torch\.Tensor"):
        ours(q.detach(), k, np.zeros(3))
