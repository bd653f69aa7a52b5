"""accelerate(training=True): torch's modules with pyattn's gradients, which are torch's but for rounding."""

from __future__ import annotations

import copy
import warnings
import weakref

import pytest
from support.torch_samples import import_internal

import pyattn
from pyattn import functional
from pyattn.interop.torch import accelerate, multi_head_attention_forward, restore

pytestmark = pytest.mark.peers

DIM, HEADS, HIDDEN, LENGTH = 8, 2, 16, 5


@pytest.fixture
def strictly():
    """Accelerate so that a call which torch would compute is an error."""
    return lambda module: accelerate(module, training=True, strict=True)


def without_dropout(torch, module):
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def gradients(torch, module, args, options):
    """Return the outputs, and the gradients of floating-point arguments and of all parameters."""
    module.zero_grad()
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in args]
    output = module(*inputs, **options)
    output = output[0] if isinstance(output, tuple) else output
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).to(output.dtype)
    (output * weight).sum().backward()
    tensors = {f"argument {n}": x for n, x in enumerate(inputs)} | dict(module.named_parameters())
    return {"output": output.detach()} | {name: x.grad for name, x in tensors.items()}


def check(torch, module, args, options=None, *, bound=1e-12):
    expected = gradients(torch, module, args, options or {})
    with accelerate(module, training=True, strict=True) as report:
        found = gradients(torch, module, args, options or {})
    assert report.replaced
    for name, other in expected.items():
        one = found[name]
        if other is None:
            assert one is None, name
            continue
        assert one.dtype == other.dtype, name
        assert one.stride() == other.stride(), name
        torch.testing.assert_close(one, other, rtol=0, atol=bound * max(1.0, float(other.abs().max())), msg=name)


def rows(torch, *shape):
    return torch.randn(*(shape or (2, LENGTH, DIM)), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


LEAVES = {
    "linear": lambda nn: nn.Linear(DIM, 3),
    "linear without bias": lambda nn: nn.Linear(DIM, 3, bias=False),
    "layer norm": lambda nn: nn.LayerNorm(DIM),
    "layer norm without bias": lambda nn: nn.LayerNorm(DIM, bias=False),
    "layer norm without parameters": lambda nn: nn.LayerNorm(DIM, elementwise_affine=False),
    "rms norm": lambda nn: nn.RMSNorm(DIM),
    "rms norm with eps": lambda nn: nn.RMSNorm(DIM, eps=0.1),
    "gelu": lambda nn: nn.GELU(),
    "gelu tanh": lambda nn: nn.GELU("tanh"),
    "silu": lambda nn: nn.SiLU(),
    "feed forward": lambda nn: nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM)),
}


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("name", LEAVES)
def test_leaves(name, mode, torch):
    check(torch, LEAVES[name](torch.nn).double().train(mode), [rows(torch)])


@pytest.mark.parametrize("name", LEAVES)
def test_gradients_of_gradients(name, torch, strictly):
    module, x = LEAVES[name](torch.nn).double(), rows(torch, 2, DIM).requires_grad_()
    parameters = list(module.parameters())

    strictly(module)
    assert torch.autograd.gradgradcheck(lambda x: module(x), (x,), fast_mode=True)
    grads = torch.autograd.grad(module(x).square().sum(), [x, *parameters], create_graph=True)
    again = torch.autograd.grad(sum(g.square().sum() for g in grads), [x, *parameters], allow_unused=True)
    restore(module)
    grads = torch.autograd.grad(module(x).square().sum(), [x, *parameters], create_graph=True)
    expected = torch.autograd.grad(sum(g.square().sum() for g in grads), [x, *parameters], allow_unused=True)
    for one, other in zip(again, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def gradients_of_all_kinds(torch, module, x):
    """Return gradients of batches and of tensors that pyattn cannot read, of the input and of all parameters."""

    class Grad(torch.Tensor):
        pass

    forward_ad, x = torch.autograd.forward_ad, x.clone().requires_grad_()
    output, inputs = module(x), [x, *module.parameters()]
    grads = torch.randn(3, *output.shape, generator=torch.Generator().manual_seed(2), dtype=output.dtype)

    def differentiate(grad, **options):
        return torch.autograd.grad(output, inputs, grad, retain_graph=True, **options)

    found = {
        "batch": differentiate(grads, is_grads_batched=True),
        "batch of a graph": differentiate(grads, is_grads_batched=True, create_graph=True),
        "vmap": torch.func.vmap(differentiate)(grads),
        "lazy negative": differentiate(torch._neg_view(grads[0])),
        "subclass": [one.as_subclass(torch.Tensor) for one in differentiate(grads[0].as_subclass(Grad))],
        "jacobian": torch.autograd.functional.jacobian(module, x.detach(), vectorize=True),
        "hessian": torch.autograd.functional.hessian(lambda x: module(x).square().sum(), x.detach(), vectorize=True),
    }
    if not any(isinstance(part, torch.nn.SiLU) for part in module.modules()):  # torch lacks that one
        with forward_ad.dual_level():
            duals = differentiate(forward_ad.make_dual(*grads[:2]))
            found["tangent"] = [forward_ad.unpack_dual(one) for one in duals]
    return found


def attention_of(torch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    return Model()


def embedding_of(torch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(4, DIM)

        def forward(self, x):
            return x * self.embedding(torch.tensor([[1, 1, 3, 0, 1]]))

    return Model()


WHOLE = {"attention": attention_of, "embedding": embedding_of} | {
    name: lambda torch, make=make: make(torch.nn) for name, make in LEAVES.items()
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", WHOLE)
def test_gradients_of_batches_and_of_what_pyattn_cannot_read(name, torch):
    torch.manual_seed(0)
    module, x = WHOLE[name](torch).double(), rows(torch)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have one derivative
        expected = gradients_of_all_kinds(torch, module, x)
    with accelerate(module, training=True):
        found = gradients_of_all_kinds(torch, module, x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_the_gradient_of_a_row(torch):
    module, x = torch.nn.Linear(DIM, 3).double(), rows(torch, DIM)
    expected = torch.autograd.functional.jacobian(module, x)
    with accelerate(module, training=True, strict=True):
        for vectorize in (False, True):
            found = torch.autograd.functional.jacobian(module, x, vectorize=vectorize)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding_idx", [None, 1])
def test_embedding(padding_idx, torch):
    ids = torch.tensor([[0, 1, 1], [4, 0, 0]])
    check(torch, torch.nn.Embedding(5, DIM, padding_idx=padding_idx).double(), [ids])
    weight = torch.nn.Embedding(5, DIM, padding_idx=padding_idx).double()
    accelerate(weight, training=True)
    (grad,) = torch.autograd.grad(weight(ids).square().sum(), weight.weight, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), weight.weight)
    expected = 2.0 * torch.tensor([3, 0 if padding_idx else 2, 0, 0, 1])
    assert torch.equal(again, expected[:, None].expand(5, DIM).double())


def test_sparse_gradients_are_torchs(torch):
    embedding = torch.nn.Embedding(5, DIM, sparse=True)
    assert "sparse" in accelerate(embedding, training=True).kept[""]


def options_of_attention(torch, batch, heads):
    blocked = torch.zeros(batch, LENGTH, dtype=torch.bool)
    blocked[0, 3:] = True
    causal = torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1)
    each = torch.zeros(batch * heads, LENGTH, LENGTH, dtype=torch.bool)
    each[:, 1:, 0] = True
    return {
        "plain": {},
        "causal": {"attn_mask": causal, "is_causal": True},
        "padding": {"key_padding_mask": blocked},
        "causal and padding": {"attn_mask": causal, "is_causal": True, "key_padding_mask": blocked},
        "two bools": {"attn_mask": causal < 0, "key_padding_mask": blocked},
        "two floats": {"attn_mask": causal, "key_padding_mask": torch.where(blocked, -2.0, 0.5).double()},
        "of heads": {"attn_mask": each},
    }


MASKS = "plain", "causal", "padding", "causal and padding", "two bools", "two floats", "of heads"
ATTENTIONS = {
    "batch first": {"batch_first": True},
    "length first": {},
    "without bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True, "batch_first": True},
    "bias_kv and zero": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name, masks, torch):
    if masks == "causal" and ("bias_kv" in name or "zero" in name):
        return  # torch differs: see the next test
    module = torch.nn.MultiheadAttention(DIM, HEADS, **ATTENTIONS[name]).double()
    x = rows(torch) if module.batch_first else rows(torch).transpose(0, 1)
    options = options_of_attention(torch, 2, HEADS)[masks]
    check(torch, module, [x, 2 * x, x - 1], {**options, "need_weights": False})
    (x,) = [x.detach().requires_grad_()]
    expected = torch.autograd.grad(module(x, x, x, **options, need_weights=False)[0].square().sum(), x)
    with accelerate(module, training=True, strict=True):
        found = torch.autograd.grad(module(x, x, x, **options, need_weights=False)[0].square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["bias_kv", "zero", "bias_kv and zero"])
def test_extra_keys_are_seen_as_in_torch_with_weights(name, torch):
    """The documentation says so: without weights, torch applies the causal mask to them."""
    module = torch.nn.MultiheadAttention(DIM, HEADS, **ATTENTIONS[name]).double()
    x, options = rows(torch), options_of_attention(torch, 2, HEADS)["causal"]
    x = x if module.batch_first else x.transpose(0, 1)
    expected, without = (module(x, x, x, **options, need_weights=need)[0] for need in (True, False))
    assert not torch.allclose(without, expected)
    with accelerate(module, training=True, strict=True):
        torch.testing.assert_close(module(x, x, x, **options, need_weights=False)[0], expected, rtol=0, atol=1e-12)
        with torch.no_grad():
            found, _ = module.eval()(x, x, x, **options, need_weights=False)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_attention_without_a_batch_and_of_other_sizes(torch):
    x = rows(torch)
    check(torch, torch.nn.MultiheadAttention(DIM, HEADS).double(), [x[0]] * 3, {"need_weights": False})
    module = torch.nn.MultiheadAttention(DIM, HEADS, kdim=6, vdim=4, batch_first=True).double()
    check(torch, module, [x, x[..., :6], x[..., :4]], {"need_weights": False})


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_layers(kind, norm_first, mode, torch):
    make = getattr(torch.nn, f"Transformer{kind}Layer")
    layer = make(DIM, HEADS, HIDDEN, batch_first=True, norm_first=norm_first, activation="gelu").double()
    x = rows(torch)
    check(torch, without_dropout(torch, layer).train(mode), [x] if kind == "Encoder" else [x, x + 1])


SAMPLED = "MultiheadAttention", *(f"Transformer{x}" for x in ("EncoderLayer", "DecoderLayer", "Encoder", ""))


def test_a_transformer(torch):
    model = torch.nn.Transformer(DIM, HEADS, 1, 1, HIDDEN, batch_first=True).double()
    mask = model.generate_square_subsequent_mask(LENGTH).double()
    check(torch, without_dropout(torch, model), [rows(torch), rows(torch)], {"tgt_mask": mask})


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("name", SAMPLED)
def test_samples_of_torchs_own_tests(name, torch):
    """torch computes those that return weights."""
    modules = import_internal("common_modules").module_db
    (info,) = [one for one in modules if one.module_cls.__name__ == name]
    count = 0
    for training in (True, False):
        for sample in info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        ):
            torch.manual_seed(0)
            given, called = sample.constructor_input, sample.forward_input
            module = info.module_cls(*given.args, **given.kwargs).double().train(training)
            without_dropout(torch, module)
            args = [x.detach().clone() for x in called.args if isinstance(x, torch.Tensor)]
            if len(args) < len(called.args):
                continue
            expected = gradients(torch, module, args, called.kwargs)
            if any(x is not None and x.isnan().any() for x in expected.values()):
                continue  # a row that sees nothing: pyattn gives 0
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "PyTorch computes MultiheadAttention itself: attention weights")
                with accelerate(module, training=True):
                    found = gradients(torch, module, args, called.kwargs)
            for key, other in expected.items():
                if other is not None:
                    torch.testing.assert_close(found[key], other, rtol=1e-10, atol=1e-10, msg=key)
            count += 1
    assert count >= 4


def test_returned_weights_have_torchs_gradients(torch):
    module, x = torch.nn.MultiheadAttention(DIM, HEADS).double(), rows(torch)
    expected = torch.autograd.grad(module(x, x, x)[1].square().sum(), module.in_proj_weight)
    accelerate(module, training=True)
    with pytest.warns(RuntimeWarning, match="attention weights are returned, with gradients or dropout; pass need_w"):
        found = torch.autograd.grad(module(x, x, x)[1].square().sum(), module.in_proj_weight)
    assert torch.equal(found[0], expected[0])


def model_of(torch):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Linear(DIM, DIM), encoder, torch.nn.LayerNorm(DIM)).double()


def test_hooks_run_as_in_torch(torch, strictly):
    model, x = without_dropout(torch, model_of(torch)), rows(torch)
    seen = []
    for name, part in model.named_modules():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
        part.register_full_backward_hook(lambda *_, name=name: seen.append(f"{name} backward"))
    model(x.requires_grad_()).sum().backward()
    expected = seen.copy()
    seen.clear()
    strictly(model)
    model(x).sum().backward()
    assert seen == expected


def test_frozen_parameters_cost_nothing(torch, strictly, monkeypatch):
    model, x = without_dropout(torch, model_of(torch)), rows(torch)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    expected = gradients(torch, model, [x], {})
    from pyattn.interop.torch import differentiable

    def refuse(*_):
        raise AssertionError("the gradient of a frozen weight")

    monkeypatch.setattr(differentiable, "_of_weight", refuse)
    strictly(model)
    found = gradients(torch, model, [x], {})
    for name, other in expected.items():
        assert (found[name] is None) == (other is None), name
        if other is not None:
            torch.testing.assert_close(found[name], other, rtol=0, atol=1e-12)


def test_a_frozen_linear_keeps_no_input(torch, strictly):
    module = torch.nn.Linear(DIM, DIM).double().requires_grad_(False)
    strictly(module)
    x = rows(torch).requires_grad_() * 1
    output, kept = module(x), weakref.ref(x)
    del x
    assert kept() is None
    output.sum().backward()


def test_tied_parameters(torch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(7, DIM)
            self.head = torch.nn.Linear(DIM, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    check(torch, Model().double(), [torch.tensor([[1, 2, 2], [6, 0, 1]])])


def test_a_module_called_twice_adds_its_gradients(torch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(DIM, DIM)

        def forward(self, x):
            return self.layer(self.layer(x))

    check(torch, Model().double(), [rows(torch)])


def test_dropout_in_training(torch, strictly):
    """Weights of attention are dropped, the same ones in both directions, and torch's seed decides."""
    layer, x = torch.nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, 0.5, batch_first=True).double(), rows(torch)
    strictly(layer)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(layer(x).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    attention = layer.self_attn

    def attend(x):
        torch.manual_seed(3)
        return attention(x, x, x, need_weights=False)[0]

    assert torch.autograd.gradcheck(attend, (x[:1].requires_grad_(),), fast_mode=True)


def test_steps_of_training_follow_torchs(torch, strictly):
    x, target, losses = rows(torch), rows(torch) ** 2, []
    for acceleration in (False, True):
        model = without_dropout(torch, model_of(torch))
        if acceleration:
            strictly(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        losses.append([])
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-8)


def test_evaluation_between_steps_drops_nothing(torch, strictly):
    model, x = model_of(torch), rows(torch)
    strictly(model)
    model(x).sum().backward()
    model.eval()
    with torch.no_grad():
        found = model(x)
        restore(model)
        torch.testing.assert_close(found, model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes(dtype, torch, monkeypatch):
    from pyattn.interop.torch import reading

    monkeypatch.setattr(reading, "_MULTIPLIES_BFLOAT16", False)
    kind = getattr(torch, dtype)
    layer = without_dropout(torch, torch.nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, batch_first=True)).to(kind)
    bound = {"float32": 2**-18, "float16": 2**-6, "bfloat16": 2**-3}[dtype]
    check(torch, layer, [rows(torch).to(kind)], bound=bound)


def test_autocast_stays_torchs(torch):
    module, x = torch.nn.Linear(DIM, DIM), rows(torch).float()
    accelerate(module, training=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(RuntimeWarning, match="autocast is on"):
        assert module(x).dtype == torch.bfloat16


def test_memory_order_of_weights_is_that_of_gradients(torch):
    module, x = torch.nn.Linear(DIM, 3).double(), rows(torch)
    expected = gradients(torch, module, [x], {})
    with accelerate(module, training=True, order="in_out", strict=True):
        found = gradients(torch, module, [x], {})
        assert found["weight"].stride() == module.weight.stride() == (1, 3)
    for name, other in expected.items():
        torch.testing.assert_close(found[name], other, rtol=0, atol=1e-12)


def test_compiled_models_are_torchs(torch, strictly):
    model, x = without_dropout(torch, model_of(torch)), rows(torch)
    expected = gradients(torch, model, [x], {})
    strictly(model)
    compiled = torch.compile(model, backend="aot_eager")
    found = gradients(torch, compiled, [x], {})
    for name, other in expected.items():
        torch.testing.assert_close(found.get(name, found.get(f"_orig_mod.{name}")), other, rtol=0, atol=1e-12)


def test_copies_and_restored_models_are_torchs(torch, strictly):
    model = model_of(torch)
    kinds = [type(part) for part in model.modules()]
    strictly(model)
    model(rows(torch)).sum().backward()
    assert [type(part) for part in copy.deepcopy(model).modules()] == kinds
    restore(model)
    assert [type(part) for part in model.modules()] == kinds


def test_a_model_is_freed_when_it_is_no_longer_used(torch, strictly):
    model = model_of(torch)
    strictly(model)
    model(rows(torch)).sum().backward()
    kept, model = weakref.ref(model), None
    assert kept() is None


def test_without_training_torch_computes_gradients(torch):
    module = torch.nn.Linear(DIM, DIM)
    accelerate(module)
    with pytest.warns(RuntimeWarning, match=r"in training mode; call model\.eval\(\), or pass training=True"):
        module(torch.ones(DIM))
    with pytest.warns(RuntimeWarning, match=r"gradients are enabled; .* or pass training=True to accelerate"):
        module.eval()(torch.ones(DIM))
    with pytest.raises(TypeError, match="training is of type int, expected True or False"):
        accelerate(module, training=1)


# multi_head_attention_forward


def arguments_of(torch, **more):
    torch.manual_seed(2)
    module = torch.nn.MultiheadAttention(DIM, HEADS).double()
    x = rows(torch).transpose(0, 1)
    given = {"query": x, "key": x + 1, "value": x - 1, "embed_dim_to_check": DIM, "num_heads": HEADS}
    given |= {"in_proj_weight": module.in_proj_weight, "in_proj_bias": module.in_proj_bias, "bias_k": None}
    given |= {"bias_v": None, "add_zero_attn": False, "dropout_p": 0.0}
    given |= {"out_proj_weight": module.out_proj.weight, "out_proj_bias": module.out_proj.bias}
    return given | more


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_the_function_computes_what_torchs_does(need_weights, static, torch):
    more = {"static_k": rows(torch, 2 * HEADS, 7, DIM // HEADS), "static_v": rows(torch, 2 * HEADS, 7, DIM // HEADS)}
    given = arguments_of(torch, need_weights=need_weights, **(more if static else {}))
    leaves = [x.requires_grad_() for x in given.values() if isinstance(x, torch.Tensor) and x.is_leaf]
    found = []
    for function in (multi_head_attention_forward, torch.nn.functional.multi_head_attention_forward):
        output, weights = function(**given)
        grads = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
        found.append((output, weights, grads))
        with torch.no_grad():
            plain, plain_weights = function(**given)
        torch.testing.assert_close(plain, output, rtol=1e-12, atol=1e-12)
        assert (plain_weights is None) == (not need_weights)
    torch.testing.assert_close(*(one[0] for one in found), rtol=1e-12, atol=1e-12)
    for one, other in zip(found[0][2], found[1][2], strict=True):
        assert (one is None or not one.any()) == (other is None or not other.any())
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_the_function_is_compiled_in_one_piece(torch):
    given = arguments_of(torch, need_weights=False)
    leaf = given["in_proj_weight"]

    def call(x):
        return multi_head_attention_forward(**{**given, "query": x})[0].sum()

    x = given["query"]
    expected = torch.autograd.grad(call(x), leaf)[0]
    found = torch.autograd.grad(torch.compile(call, fullgraph=True, backend="aot_eager")(x), leaf)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("masks", ["plain", "causal", "two bools", "two floats"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_the_function_under_torch_func(need_weights, masks, torch):
    options = {"attn_mask": None} | options_of_attention(torch, 2, HEADS)[masks]
    given = arguments_of(torch, need_weights=need_weights, **options)
    x, weight = given["query"], given["in_proj_weight"].detach()
    functions, found = (multi_head_attention_forward, torch.nn.functional.multi_head_attention_forward), []
    for function in functions:

        def call(x, weight, function=function):
            return function(**{**given, "query": x, "in_proj_weight": weight})[0]

        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found.append(
                (
                    torch.func.grad(lambda *x, call=call: call(*x).square().sum(), (0, 1))(x, weight),
                    torch.func.jvp(call, (x, weight), (x**2, weight**2)),
                    torch.func.vmap(call, (0, None))(torch.stack([x, x + 1]), weight),
                    torch.func.jacrev(call)(x, weight),
                )
            )
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_the_function_takes_subclasses(torch):
    class Own(torch.Tensor):
        pass

    given = arguments_of(torch, need_weights=False)
    expected, _ = multi_head_attention_forward(**given)
    found, _ = multi_head_attention_forward(**{**given, "query": given["query"].as_subclass(Own)})
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=0, atol=1e-12)


def test_bad_input_of_the_function(torch):
    for grad in (torch.no_grad(), torch.enable_grad()):
        with (
            grad,
            pytest.raises(TypeError, match=r"in_proj_weight has dtype .*; pass in_proj_weight\.to\(torch\.float64\)$"),
        ):
            multi_head_attention_forward(**arguments_of(torch, in_proj_weight=torch.ones(3 * DIM, DIM)))
    with pytest.raises(TypeError, match=r"query is of type list, expected torch\.Tensor"):
        multi_head_attention_forward(**arguments_of(torch, query=[1.0]))
    with pytest.raises(ValueError, match="dropout_p is 2, expected a probability"):
        multi_head_attention_forward(**arguments_of(torch, dropout_p=2))
    for shapes, message in (
        ({"num_heads": 3}, "num_heads is 3, expected a multiple"),
        ({"embed_dim_to_check": 99}, "embed_dim_to_check is 99"),
        ({"key": (5, 1, DIM), "value": (5, 1, DIM)}, "key has shape"),
        ({"query": (2, 4, 2, DIM)}, "query has shape"),
        ({"attn_mask": (1, 5)}, "attn_mask has shape"),
        ({"key_padding_mask": (1, 5)}, "key_padding_mask has shape"),
        ({"static_k": (5, 5, 4)}, "static_k has shape"),
    ):
        wrong = {name: torch.ones(x).double() if isinstance(x, tuple) else x for name, x in shapes.items()}
        for grad in (torch.no_grad(), torch.enable_grad()):
            with grad, pytest.raises(ValueError, match=message):
                multi_head_attention_forward(**arguments_of(torch, **wrong, need_weights=False))
    with torch.no_grad(), pytest.raises(ValueError, match=r"out_proj_weight has shape \(8, 3\), expected"):
        multi_head_attention_forward(**arguments_of(torch, out_proj_weight=torch.ones(8, 3).double()))


def test_attention_computes_in_pyattn(torch, strictly, monkeypatch):
    calls, attention = [], functional.attention
    monkeypatch.setattr(functional, "attention", lambda *args, **more: calls.append(1) or attention(*args, **more))
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, batch_first=True).double()
    strictly(layer)
    layer(rows(torch)).sum().backward()
    assert calls
    assert pyattn.interop.torch.multi_head_attention_forward is multi_head_attention_forward
