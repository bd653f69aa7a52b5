"""pyattn.interop.torch.scaled_dot_product_attention with gradients: torch's checks, its samples, and its compiler."""

from __future__ import annotations

import numpy as np
import pytest
from support.torch_samples import import_internal

import pyattn
from pyattn import functional
from pyattn.interop.torch.tensors import view_as_array, view_as_tensor

pytestmark = pytest.mark.peers


@pytest.fixture
def ours(torch):
    return pyattn.interop.torch.scaled_dot_product_attention


@pytest.fixture
def leaf(torch):
    def make(*shape, dtype=None):
        return torch.randn(*shape, dtype=dtype or torch.float64).requires_grad_()

    return make


def case_plain(torch, leaf):
    return {}


def case_causal(torch, leaf):
    return {"is_causal": True, "scale": 1.3}


def case_bool_mask(torch, leaf):
    mask = torch.rand(2, 1, 5, 6) > 0.3
    mask[0, 0, 1] = False  # a query that sees nothing
    return {"attn_mask": mask}


def case_float_mask(torch, leaf):
    return {"attn_mask": leaf(2, 4, 5, 6)}


def case_float_mask_and_causal(torch, leaf):
    return {"attn_mask": leaf(5, 6), "is_causal": True}


def case_broadcast_float_mask(torch, leaf):
    return {"attn_mask": leaf(4, 1, 6), "scale": 0.4}


def case_dropout(torch, leaf):
    return {"dropout_p": 0.4}


def case_dropout_and_mask(torch, leaf):
    return {"dropout_p": 0.2, "attn_mask": leaf(1, 6), "is_causal": True}


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


@pytest.mark.parametrize("name", CASES)
def test_gradcheck_and_gradgradcheck(name, torch, ours, leaf):
    """With query heads that share keys."""
    query, key, value = leaf(2, 4, 5, 3), leaf(2, 2, 6, 3), leaf(2, 2, 6, 2)
    options = CASES[name](torch, leaf)
    mask = options.get("attn_mask")
    is_input = mask is not None and mask.requires_grad

    def attend(query, key, value, *more):
        torch.manual_seed(3)  # the same weights are dropped
        given = {**options, "attn_mask": more[0]} if more else options
        return ours(query, key, value, enable_gqa=True, **given)

    inputs = (query, key, value, *([mask] if is_input else []))
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, inputs, fast_mode=True)


def test_one_tensor_may_be_all_three(torch, ours, leaf):
    """Also of a third order: gradients of gradients of gradients."""
    x = leaf(2, 5, 3)
    found = []
    for attend in (ours, torch.nn.functional.scaled_dot_product_attention):
        loss = attend(x, x, x).sum() ** 2
        for _ in range(3):
            (grad,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = grad.square().sum()
        found.append(grad.detach())
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


def test_only_what_requires_grad_is_computed(torch, ours, leaf, monkeypatch):
    asked, backward = [], functional.attention_backward

    def ask(*args, need, **options):
        asked.append(list(need))
        return backward(*args, need=need, **options)

    monkeypatch.setattr(functional, "attention_backward", ask)
    tensors = [leaf(4, 3), leaf(5, 3), leaf(5, 2), leaf(4, 5)]
    names = "query", "key", "value", "attn_mask"
    for wanted in range(1, 16):
        chosen = [n for n in range(4) if wanted >> n & 1]
        given = [x if n in chosen else x.detach() for n, x in enumerate(tensors)]
        torch.autograd.grad(ours(*given).sum(), [given[n] for n in chosen])
        assert asked.pop() == [names[n] for n in chosen]


def test_calls_without_gradients_keep_nothing(torch, ours, leaf):
    x = leaf(3, 4)
    with torch.no_grad():
        assert ours(x, x, x).grad_fn is None
    with torch.inference_mode():
        assert ours(x, x, x).grad_fn is None
    assert ours(x.detach(), x.detach(), x.detach()).grad_fn is None


def test_a_change_in_place_before_backward_is_an_error_of_torchs(torch, ours, leaf):
    x = leaf(3, 4)
    y = x * 1
    output = ours(y, y, y)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_backward_may_run_twice(torch, ours, leaf):
    x = leaf(3, 4)
    output = ours(x, x, x, dropout_p=0.5).sum()
    (one,) = torch.autograd.grad(output, x, retain_graph=True)
    (two,) = torch.autograd.grad(output, x)
    assert torch.equal(one, two)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_drops_the_same_weights(reentrant, torch, ours, leaf):
    from torch.utils.checkpoint import checkpoint

    def attend(x):
        return ours(x, x, x, dropout_p=0.5)

    x, found = leaf(6, 4), []
    for call in (attend, lambda x: checkpoint(attend, x, use_reentrant=reentrant)):
        torch.manual_seed(1)
        call(x).sum().backward()
        found.append(x.grad)
        x.grad = None
    assert torch.equal(*found)


@pytest.mark.parametrize("layout", ["rows", "heads within rows", "reversed", "expanded"])
def test_gradients_of_views_are_those_of_copies(layout, torch, ours):
    base = torch.randn(2, 5, 3, 8)
    view = {
        "rows": base,
        "heads within rows": base.transpose(1, 2),
        "reversed": base.flip(0)[..., ::2],
        "expanded": base[:1].expand(2, 5, 3, 8),
    }[layout]
    found = []
    for x in (view, view.contiguous()):
        x = x.detach().requires_grad_()
        output = ours(x, x, x, is_causal=True)
        found.append(torch.autograd.grad(output, x, torch.ones(()).expand(output.shape)))
    assert torch.equal(*(one[0] for one in found))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_gradients_have_the_bits_of_functional(dtype, torch, ours):
    """Whose errors are held against their bounds in tests/functional."""
    inputs = [torch.randn(2, 3, 70, 16).to(getattr(torch, dtype)).requires_grad_() for _ in range(3)]
    arrays = [view_as_array(x.detach(), "x") for x in inputs]
    grad = torch.randn(2, 3, 70, 16).to(inputs[0].dtype)
    output, lse = functional.attention(*arrays, is_causal=True, need_lse=True)
    expected = functional.attention_backward(view_as_array(grad, "x"), *arrays, output, lse, is_causal=True)
    found = torch.autograd.grad(ours(*inputs, is_causal=True), inputs, grad)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == inputs[0].dtype
        assert torch.equal(one, view_as_tensor(other))


@pytest.mark.threads
def test_the_number_of_threads_changes_no_bit(torch, ours):
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            generator = torch.Generator().manual_seed(5)
            x = torch.randn(2, 3, 300, 16, generator=generator).requires_grad_()
            found.append(torch.autograd.grad(ours(x, x, x, is_causal=True).sum(), x)[0])
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(found[0], x) for x in found)


def test_zero_sizes(torch, ours, leaf):
    for shapes in (((0, 3), (2, 3), (2, 4)), ((2, 3), (0, 3), (0, 4)), ((0, 2, 3), (0, 5, 3), (0, 5, 3))):
        inputs = [leaf(*shape) for shape in shapes]
        found = torch.autograd.grad(ours(*inputs).sum(), inputs)
        assert [x.shape for x in found] == [x.shape for x in inputs]
        assert not any(x.count_nonzero() for x in found)


@pytest.mark.parametrize("shape", [(2, 0, 3, 4), (2, 3, 4, 0), (2, 3, 0, 4)], ids=["heads", "head_dim", "length"])
def test_gradients_of_gradients_of_zero_sizes(shape, torch, ours):
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    value = torch.ones(*shape[:-1], 4, dtype=torch.float64, requires_grad=True)
    output = ours(x, x, value, enable_gqa=True)
    (grad,) = torch.autograd.grad(output.square().sum(), value, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), value)
    assert (again.shape, output.shape) == (value.shape, value.shape)


def test_bad_input(torch, ours, leaf):
    x = leaf(2, 3)
    with pytest.raises(TypeError, match="key has dtype float32, expected float64"):
        ours(x, x.float(), x)
    with pytest.raises(ValueError, match="dropout_p is 2, expected a probability"):
        ours(x, x, x, dropout_p=2)
    with pytest.raises(TypeError, match="is_causal is of type int, expected True or False"):
        ours(x, x, x, is_causal=1)
    with pytest.raises(TypeError, match=r"value is on device 'meta'; pass value\.cpu\(\)"):
        ours(x, x, x.to("meta"))
    with pytest.raises(TypeError, match=r"key is a sparse tensor; pass key\.to_dense\(\)"):
        ours(x, x.detach().to_sparse(), x)
    with pytest.raises(TypeError, match=r"attn_mask is of type ndarray, expected torch\.Tensor"):
        ours(x, x, x, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="enable_gqa=True"):
        ours(leaf(1, 4, 2, 3), leaf(1, 2, 2, 3), leaf(1, 2, 2, 3))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_messages_propose_casts_of_tensors(requires_grad, torch, ours):
    x = torch.randn(2, 3).requires_grad_(requires_grad)
    with pytest.raises(TypeError, match=r"pass key\.to\(torch\.float32\)$"):
        ours(x, x.double(), x)
    with pytest.raises(TypeError, match=r"pass value\.to\(torch\.bfloat16\)$"):
        ours(x.bfloat16(), x.bfloat16(), x)
    with pytest.raises(
        TypeError, match=r"attn_mask\.to\(torch\.bool\) \(True = attend\) or attn_mask\.to\(torch\.float32"
    ):
        ours(x, x, x, torch.ones(2, 2, dtype=torch.int64))


# What torch's operations compute: batches of gradients, torch.func, and forward mode


@pytest.fixture
def theirs(torch):
    """Torch's own function, computed by operations that have derivatives of every kind."""

    def attend(*args, **options):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(*args, enable_gqa=True, **options)

    return attend


@pytest.fixture
def own(ours):
    return lambda *args, **options: ours(*args, enable_gqa=True, **options)


def inputs_of(torch):
    """Two query heads share a key head; the mask is of floats."""
    generator = torch.Generator().manual_seed(4)
    shapes = (2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2), (4, 5, 6)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def jacobian_in_batches(torch, attend, inputs):
    return torch.autograd.functional.jacobian(attend, tuple(inputs), vectorize=True)


def hessian_in_batches(torch, attend, inputs):
    return torch.autograd.functional.hessian(lambda *x: attend(*x).square().sum(), tuple(inputs), vectorize=True)


def hessian_by_forward_mode(torch, attend, inputs):
    more = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
    return torch.autograd.functional.hessian(lambda *x: attend(*x).square().sum(), tuple(inputs), **more)


def grad_of_func(torch, attend, inputs):
    return torch.func.grad(lambda *x: attend(*x).square().sum(), (0, 1, 2, 3))(*inputs)


def vjp_of_func(torch, attend, inputs):
    output, backward = torch.func.vjp(attend, *inputs)
    return output, backward(output**2)


def jacobians_of_func(torch, attend, inputs):
    return [jacobian(attend, (0, 1, 2, 3))(*inputs) for jacobian in (torch.func.jacrev, torch.func.jacfwd)]


def vmap_of_grads(torch, attend, inputs):
    gradient = torch.func.grad(lambda *x: attend(*x).square().sum(), (0, 1, 2, 3))
    return torch.func.vmap(gradient, (0, 0, 0, None))(*inputs)


def jvp_of_func(torch, attend, inputs):
    return torch.func.jvp(attend, tuple(inputs), tuple(x**2 for x in inputs))


def tangent_of_one(torch, attend, inputs):
    """Only one input has a tangent, and all require gradients; torch itself does not differentiate that of softmax."""
    forward_ad, found = torch.autograd.forward_ad, []
    with forward_ad.dual_level():
        for n in range(len(inputs)):
            leaves = [x.clone().requires_grad_() for x in inputs]
            given = [forward_ad.make_dual(x, x**2) if i == n else x for i, x in enumerate(leaves)]
            output, tangent = forward_ad.unpack_dual(attend(*given))
            found += [output, tangent, *torch.autograd.grad(output.square().sum(), leaves)]
    return found


def tangent_of_the_gradient(torch, attend, inputs):
    """The output is computed before forward mode begins."""
    forward_ad, leaves = torch.autograd.forward_ad, [x.clone().requires_grad_() for x in inputs]
    output = attend(*leaves)
    with forward_ad.dual_level():
        grad = forward_ad.make_dual(torch.ones_like(output), output.detach())
        return [tuple(forward_ad.unpack_dual(x)) for x in torch.autograd.grad(output, leaves, grad)]


def subclass_and_lazy_negative(torch, attend, inputs):
    class Grad(torch.Tensor):
        pass

    leaves = [x.clone().requires_grad_() for x in inputs]
    output = attend(*leaves)
    grads = output.detach().as_subclass(Grad), torch._neg_view(output.detach())
    found = [torch.autograd.grad(output, leaves, one, retain_graph=True) for one in grads]
    return [x.as_subclass(torch.Tensor) for one in found for x in one]


WAYS = (
    jacobian_in_batches,
    hessian_in_batches,
    hessian_by_forward_mode,
    grad_of_func,
    vjp_of_func,
    jacobians_of_func,
    vmap_of_grads,
    jvp_of_func,
    tangent_of_one,
    tangent_of_the_gradient,
    subclass_and_lazy_negative,
)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_differentiate_gives_torchs_results(way, is_causal, torch, own, theirs):
    hidden = torch.zeros(5, 6).masked_fill(~torch.ones(5, 6, dtype=torch.bool).tril(), -torch.inf)
    found = way(torch, lambda q, k, v, mask: own(q, k, v, mask, is_causal=is_causal), inputs_of(torch))
    expected = way(torch, lambda q, k, v, mask: theirs(q, k, v, mask + hidden if is_causal else mask), inputs_of(torch))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_vmap_with_dropout(torch, ours):
    x = torch.ones(3, 2, 4, 4)
    drop = torch.func.vmap(lambda x: ours(x, x, x, dropout_p=0.5), randomness="different")
    one, *others = drop(x)
    assert not any(torch.equal(one, other) for other in others)
    found = torch.func.vmap(lambda x: ours(x, x, x, dropout_p=0.5), randomness="same")(x)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_row_that_sees_nothing_has_no_derivative_either(torch, ours):
    mask, x = torch.tensor([[True, False], [False, False]]), torch.randn(2, 3)
    output, tangent = torch.func.jvp(lambda x: ours(x, x, x, mask), (x,), (x,))
    torch.testing.assert_close(output, torch.stack([x[0], torch.zeros(3)]))
    assert not output[1].any()
    assert not tangent[1].any()
    jacobian = torch.func.jacrev(lambda x: ours(x, x, x, mask))(x)
    torch.testing.assert_close(jacobian[0, :, 0], torch.eye(3))
    assert not jacobian[1].any()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_transformers_has_a_tangent(need_weights, torch, theirs):
    from pyattn.interop.torch.attention import attend_as_transformers

    query, key, value, mask = inputs_of(torch)

    def call(query, mask):
        return attend_as_transformers(query, key, value, mask, 0.0, False, None, need_weights)[0].transpose(1, 2)

    found = torch.func.jvp(call, (query, mask), (query**2, mask**2))
    expected = torch.func.jvp(lambda q, m: theirs(q, key, value, m), (query, mask), (query**2, mask**2))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_same_weights_are_dropped_with_gradients_and_without(torch):
    """As checkpointing needs, which calls both ways."""
    from pyattn.interop.torch.attention import attend_as_transformers

    query, key, value, mask = inputs_of(torch)
    found = []
    for need_weights in (False, True):
        for x in (query, query.clone().requires_grad_()):
            torch.manual_seed(2)
            output, _ = attend_as_transformers(x, key, value, mask, 0.5, False, None, need_weights)
            found.append(output.detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)


# What torch tests its own with


def samples(torch, dtype):
    operations = import_internal("common_methods_invocations").op_db
    (info,) = [one for one in operations if one.name == "nn.functional.scaled_dot_product_attention"]
    yield from info.sample_inputs("cpu", dtype, requires_grad=True)


def with_gradients(torch, attend, sample):
    """Return the output, and the gradients of what requires one; torch's weights are dropped at random."""
    tensors = [x.detach().clone() for x in (sample.input, *sample.args)]
    options = {name: x.detach().clone() if isinstance(x, torch.Tensor) else x for name, x in sample.kwargs.items()}
    mask = options.get("attn_mask")
    inputs = [*tensors, *([mask] if mask is not None and mask.is_floating_point() else [])]
    for x in inputs:
        x.requires_grad_()
    output = attend(*tensors, **options)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    return output.detach(), torch.autograd.grad(output, inputs, grad)


def test_samples_of_torchs_own_tests(torch, ours):
    count = 0
    theirs = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for sample in samples(torch, torch.float64):
            if sample.kwargs.get("dropout_p", 0.0):
                continue
            output, found = with_gradients(torch, ours, sample)
            expected_output, expected = with_gradients(torch, theirs, sample)
            torch.testing.assert_close(output, expected_output, rtol=1e-12, atol=1e-12)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
            count += 1
    assert count >= 10


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_operation_is_as_torch_library_wants_it(dtype, layout, torch):
    import_internal("common_utils")
    operation = torch.ops.pyattn.scaled_dot_product_attention.default
    kind = getattr(torch, dtype)
    query, key, value = (torch.randn(2, heads, 5, 4, dtype=kind) for heads in (4, 2, 2))
    if layout == "bshd":
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    mask = torch.randn(1, 5, 5, dtype=kind)
    for more in ((None, None, 0.0, True, None), (mask, torch.tensor(3), 0.25, False, 0.3)):
        tensors = [x.detach().requires_grad_() for x in (query, key, value)]
        given = (*tensors, None if more[0] is None else more[0].requires_grad_(), *more[1:])
        torch.library.opcheck(operation, (*given, True, layout))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_sees_one_operation(backend, torch, ours, leaf):
    def function(query, key, value, mask):
        return torch.tanh(ours(2 * query, key, value, mask, dropout_p=0.3, scale=0.5)).sum(-1)

    inputs = [leaf(2, 5, 3), leaf(2, 6, 3), leaf(2, 6, 2), leaf(6)]
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    found = []
    for call in (function, compiled):
        torch.manual_seed(1)
        output = call(*inputs)
        found.append([output, *torch.autograd.grad(output.sum(), inputs)])
        with torch.no_grad():
            assert call(*inputs).shape == output.shape
    assert all(map(torch.equal, *found))


def test_torch_export_sees_one_operation(torch, ours):
    class Model(torch.nn.Module):
        def forward(self, x):
            return ours(x, x, x, is_causal=True)

    x = torch.randn(2, 5, 3)
    exported = torch.export.export(Model(), (x,))
    assert "pyattn.scaled_dot_product_attention" in str(exported.graph)
    assert torch.equal(exported.module()(x), Model()(x))
