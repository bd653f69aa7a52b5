"""Gradients of modules: torch's autograd, derivatives by differences, and the rules of vjp."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest
from support.derivatives import check_by_differences, first
from support.helpers import assert_same_bits

import pyattn
from pyattn import masks, nn

F64 = np.float64
RNG = np.random.default_rng(22)
X = RNG.standard_normal((2, 5, 8))
IDS = RNG.integers(1, 11, (2, 5))
PADDED = np.array([[3, 1, 7, 4, 2], [5, 9, 6, 0, 0]])
PAIRS = RNG.standard_normal((5, 5))
LATE = np.array([[False] * 5, [False] * 3 + [True] * 2])

# Derivatives by differences ---------------------------------------------------------------------------------------


def mha(**options):
    return nn.MultiheadAttention(8, 2, **{"batch_first": True, "dtype": F64, "rng": 1, **options})


QKV = (X, RNG.standard_normal((2, 5, 8)), RNG.standard_normal((2, 5, 8)))
MODULES = {
    "linear": (lambda: nn.Linear(8, 3, dtype=F64, rng=0), (X,), {}),
    "linear without bias, (out, in)": (lambda: nn.Linear(8, 3, False, dtype=F64).to_order("out_in"), (X,), {}),
    "linear of one row": (lambda: nn.Linear(8, 3, dtype=F64), (X[0, 0],), {}),
    "layer norm": (lambda: nn.LayerNorm(8, dtype=F64), (X,), {}),
    "layer norm, two axes": (lambda: nn.LayerNorm((5, 8), dtype=F64), (X,), {}),
    "layer norm, plain": (lambda: nn.LayerNorm(8, elementwise_affine=False), (X,), {}),
    "RMS norm": (lambda: nn.RMSNorm(8, dtype=F64), (X,), {}),
    "embedding": (lambda: nn.Embedding(11, 8, padding_idx=0, dtype=F64), (PADDED,), {}),
    "dropout": (lambda: nn.Dropout(0.5), (X,), {"rng": 3}),
    "positions": (lambda: nn.PositionalEncoding(8, dropout=0.2, dtype=F64), (X,), {"rng": 3}),
    "learned positions": (
        lambda: nn.PositionalEncoding(8, max_length=5, learned=True, dropout=0.0, batch_first=False, dtype=F64),
        (X[:, 0],),
        {"start": 3},
    ),
    "rotary": (lambda: nn.RotaryEmbedding(8), (RNG.standard_normal((2, 3, 5, 8)),), {"offset": 3}),
    "rotary, part": (
        lambda: nn.RotaryEmbedding(8, rotary_dim=4, interleaved=True, layout="bshd"),
        (RNG.standard_normal((2, 5, 3, 8)),),
        {"position_ids": np.array([5, 1, 2, 3, 9])},
    ),
    **{
        f"feed-forward, {name}{', gated' * gated}": (
            lambda name=name, gated=gated: nn.FeedForward(8, 16, 0.3, name, gated, dtype=F64, rng=2),
            (X,),
            {"rng": 5},
        )
        for name in ("relu", "gelu", "gelu_tanh", "silu")
        for gated in (False, True)
    },
    "self-attention, rows": (
        lambda: nn.SelfAttention(8, 3, 5, bias=True, dtype=F64, rng=3),
        (X,),
        {"is_causal": True, "need_weights": True},
    ),
    "self-attention, columns, context": (
        lambda: nn.SelfAttention(8, 3, 5, convention="column", scale=0.3, dtype=F64, rng=3),
        (X.mT.copy(), X[:, :3].mT.copy()),
        {"attn_mask": RNG.standard_normal((2, 5, 3)), "key_lengths": [2, 3]},
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.2, "gelu", gated=True, dtype=F64, rng=4),
        (X,),
        {"src_mask": RNG.standard_normal((2, 2)), "rng": 2},
    ),
    "encoder layer, norm first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.2, norm_first=True, rms_norm=True, dtype=F64, rng=4),
        (X,),
        {"is_causal": True, "window": 1, "need_weights": True, "rng": 2},
    ),
    "decoder layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.2, batch_first=True, dtype=F64, rng=4),
        (X, X[:, :3].copy()),
        {"tgt_is_causal": True, "memory_mask": RNG.standard_normal((5, 3)), "rng": 2},
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True, dtype=F64, rng=4),
        (X, X[:, :3].copy()),
        {"src_key_padding_mask": LATE, "memory_key_padding_mask": LATE, "tgt_is_causal": True, "rng": 2},
    ),
    "language model": (
        lambda: nn.TransformerLM(11, 8, 2, 2, 16, padding_idx=0, tie_weights=True, dtype=F64, rng=4),
        (PADDED,),
        {"rng": 2},
    ),
    "language model, length first": (
        lambda: nn.TransformerLM(11, 8, 2, 2, 16, batch_first=False, dtype=F64, rng=4),
        (IDS.T.copy(),),
        {"rng": 2},
    ),
    "encoder-decoder": (
        lambda: nn.Seq2SeqTransformer(11, 12, 8, 2, 2, 2, 16, dtype=F64, rng=4),
        (PADDED, IDS),
        {"rng": 2},
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_derivatives(name):
    make, args, kwargs = MODULES[name]
    check_by_differences(make(), tuple(np.array(x) for x in args), kwargs)


@pytest.mark.parametrize("name", ["transformer", "language model", "encoder-decoder"])
def test_checkpoint_gives_the_same_bits(name):
    make, args, kwargs = MODULES[name]
    found = []
    for checkpoint in (False, True):
        module = make()
        output, backward = module.vjp(*args, checkpoint=checkpoint, **kwargs)
        found.append([*backward(np.ones_like(output)), *module.grads.values()])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_same_bits(one, other)


def test_checkpoint_without_a_seed():
    """The recomputed layers drop what they dropped: the gradient of the last norm follows from the output."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True, dtype=F64), 2)
    last = model.layers[1].norm2
    last.weight[...], last.bias[...] = RNG.uniform(1, 2, 8), RNG.standard_normal(8)
    output, backward = model.vjp(X, checkpoint=True)
    backward(X)
    expected = (X * (output - last.bias) / last.weight).sum((0, 1))
    np.testing.assert_allclose(model.grads["layers.1.norm2.weight"], expected, rtol=1e-10)


HEADS = {
    "plain": {},
    "other sizes": {"num_kv_heads": 1, "head_dim": 6, "v_head_dim": 3, "out_dim": 5, "kdim": 8},
    "rotary": {"rotary": nn.RotaryEmbedding(4), "scale": 0.7},
    "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    "zero key": {"add_zero_attn": True, "bias": False},
    "dropout": {"dropout": 0.3},
}
HIDDEN = {
    "none": {},
    "causal": {"is_causal": True},
    "pairs of floats": {"attn_mask": PAIRS},
    "floats for each head": {"attn_mask": RNG.standard_normal((4, 5, 5)), "key_padding_mask": LATE},
    "floats twice": {"attn_mask": PAIRS, "key_padding_mask": RNG.standard_normal((2, 5))},
    "floats and a window": {"key_padding_mask": RNG.standard_normal((2, 5)), "window": (1, 2)},
    "an object and floats": {"attn_mask": masks.causal(5), "key_padding_mask": RNG.standard_normal((2, 5))},
    "objects": {"attn_mask": masks.causal(5), "key_padding_mask": masks.from_blocked(LATE)},
    "bools": {"attn_mask": PAIRS > 1, "key_padding_mask": np.array([[False, True, False, False, False], [False] * 5])},
    "lengths": {"key_lengths": [3, 5], "is_causal": True},
}


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("heads", HEADS)
def test_derivatives_of_heads(heads, hidden):
    check_by_differences(mha(**HEADS[heads]), tuple(x.copy() for x in QKV), {**HIDDEN[hidden], "rng": 9})


# torch ------------------------------------------------------------------------------------------------------------

TWINS = {
    "mha": ("MultiheadAttention", (8, 2), {}, "qkv"),
    "mha, other sizes": ("MultiheadAttention", (8, 2), {"kdim": 5, "vdim": 7, "add_bias_kv": True}, "qkv"),
    "encoder layer": ("TransformerEncoderLayer", (8, 2, 16, 0.0, "gelu"), {"norm_first": True}, "x"),
    "decoder layer": ("TransformerDecoderLayer", (8, 2, 16, 0.0), {}, "xm"),
    "transformer": ("Transformer", (8, 2, 2, 2, 16, 0.0), {}, "xm"),
    "layer norm": ("LayerNorm", ((5, 8),), {}, "x"),
    "RMS norm": ("RMSNorm", (8,), {}, "x"),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", TWINS)
def test_equals_torch(name, torch):
    """Every gradient in float64; in float32, it is as near to that as torch's is."""
    kind, sizes, options, inputs = TWINS[name]
    rng = np.random.default_rng(3)
    given = {"x": X, "m": X[:, :3], "q": X, "k": rng.standard_normal((2, 4, options.get("kdim", 8)))}
    given["v"] = rng.standard_normal((2, 4, options.get("vdim", 8)))
    found = {}
    batch = {} if "norm" in name.lower() else {"batch_first": True}
    seed = torch.manual_seed(1)
    state = getattr(torch.nn, kind)(*sizes, **batch, **options, dtype=torch.float64).state_dict()
    del seed
    for dtype in ("float64", "float32"):
        theirs = getattr(torch.nn, kind)(*sizes, **batch, **options, dtype=getattr(torch, dtype))
        theirs.load_state_dict(state)
        ours = getattr(nn, kind)(*sizes, **batch, **options, dtype=dtype)
        ours.load_state_dict(theirs.state_dict())
        arrays = [given[one].astype(dtype) for one in inputs]
        tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
        output, backward = ours.vjp(*arrays)
        grad = np.random.default_rng(4).standard_normal(first(output).shape).astype(dtype)
        first(theirs(*tensors)).backward(torch.tensor(grad))
        pairs = [(one, x.grad.numpy()) for one, x in zip(backward(grad), tensors, strict=True)]
        pairs += [(ours.grads[key], parameter.grad.numpy()) for key, parameter in theirs.named_parameters()]
        found[dtype] = pairs
    for (own, right), (single, theirs32) in zip(found["float64"], found["float32"], strict=True):
        size = np.abs(right).max()
        assert np.abs(own - right).max() <= 2e-13 * size  # some 1,000 roundings of 2**-53
        assert single.dtype == np.float32
        assert np.abs(single - right).max() <= 3 * np.abs(theirs32 - right).max() + 2.0**-20 * size


# Rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_rows(shape):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dtype=F64)
    output, backward = layer.vjp(np.zeros(shape), rng=0)
    (grad,) = backward(output)[:1]
    assert grad.shape == shape
    assert not any(one.any() for one in layer.grads.values())


def test_runs_once():
    _, backward = nn.Linear(2, 2).vjp(np.ones(2, np.float32))
    backward(np.ones(2))
    with pytest.raises(RuntimeError, match="runs once"):
        backward(np.ones(2))


def test_gradients_add_up_until_zero_grad():
    linear = nn.Linear(3, 2, dtype=F64, rng=0)
    assert linear.grads == {}
    for n in (1, 2):
        linear.vjp(X[..., :3])[1](np.ones((2, 5, 2)))
        np.testing.assert_array_equal(linear.grads["bias"], np.full(2, 10.0 * n))
    linear.zero_grad()
    assert linear.grads == {}


@pytest.mark.parametrize("order", ["in_out", "out_in"])
def test_gradients_have_the_memory_order(order):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dtype=F64).to_order(order)
    layer.vjp(X)[1](X)
    for name, array in layer.named_parameters():
        assert layer.grads[name].strides == array.strides, name


def test_replacing_a_parameter_drops_its_gradient():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dtype=F64)
    layer.vjp(X)[1](X)
    layer.linear1.weight = layer.linear1.weight.copy()
    assert "linear1.weight" not in layer.grads
    assert "linear1.bias" in layer.grads
    assert not layer.to(np.float32).grads


def test_copies_have_no_gradients():
    linear = nn.Linear(3, 2, dtype=F64)
    linear.vjp(np.ones(3))[1](np.ones(2))
    for other in (copy.copy(linear), copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
        assert other.grads == {}
    assert linear.grads


def test_tied_parameters_have_one_gradient():
    model = nn.TransformerLM(11, 8, 2, 1, 16, tie_weights=True, dtype=F64, rng=0)
    assert model.generator.weight is model.embedding.weight
    output, backward = model.vjp(IDS, rng=1)
    backward(np.ones_like(output))
    assert [name for name in model.grads if model.grads[name].shape == (11, 8)] == ["embedding.weight"]
    assert model.grads["embedding.weight"] is model.grads["embedding.weight"]


def test_an_argument_given_twice_has_two_gradients():
    module = mha()
    (_, _), backward = module.vjp(X, X, X)
    together = backward(X)
    (_, _), backward = module.vjp(X.copy(), X.copy(), X.copy())
    for one, other in zip(together, backward(X), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves(half):
    """The input's gradient is rounded to its dtype, parameters' are float32: those of the float32 numbers."""
    from pyattn._util.halves import as_dtype

    x = X.astype(as_dtype(half))
    stored = nn.TransformerEncoderLayer(8, 2, 16, 0.0, rng=0).to(half)
    wide = copy.deepcopy(stored).float()
    output, backward = stored.vjp(x)
    assert output.dtype == x.dtype
    expected, expected_back = wide.vjp(x.astype(np.float32))
    assert_same_bits(output, expected.astype(x.dtype))
    (grad,), (expected_grad,) = backward(X), expected_back(X)
    assert_same_bits(grad, expected_grad.astype(x.dtype))
    for name, one in stored.grads.items():
        assert_same_bits(one, wide.grads[name])


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_threads(threads):
    found, before = [], pyattn.get_num_threads()
    try:
        for count in (1, threads):
            pyattn.set_num_threads(count)
            model = nn.TransformerLM(50, 64, 4, 2, 96, rng=0)
            output, backward = model.vjp(np.arange(80).reshape(2, 40) % 50, rng=3)
            backward(np.sin(np.arange(output.size, dtype=np.float32)).reshape(output.shape))
            found.append(model.grads)
    finally:
        pyattn.set_num_threads(before)
    for name, one in found[0].items():
        assert_same_bits(one, found[1][name])


def test_nested_padding_is_computed_as_torch_does_with_gradients():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=F64, rng=0)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    output, _ = encoder.vjp(X, src_key_padding_mask=LATE)
    assert (encoder(X, src_key_padding_mask=LATE)[LATE] == 0).all()
    assert (output[LATE] != 0).any()
    assert_same_bits(output[~LATE], encoder(X, src_key_padding_mask=LATE)[~LATE])


def test_tied_parts_see_the_same_sum():
    pair = nn.ModuleList([nn.Linear(3, 3, dtype=F64), nn.Linear(3, 3, dtype=F64)])
    pair[1].weight = pair[0].weight
    for one in pair:
        one.vjp(np.ones(3))[1](np.ones(3))
    np.testing.assert_array_equal(pair.grads["0.weight"], np.full((3, 3), 2.0))
    assert pair[1].grads["weight"] is pair[0].grads["weight"]
    pair[1].vjp(np.ones(3))[1](np.ones(3))
    np.testing.assert_array_equal(pair.grads["0.weight"], np.full((3, 3), 3.0))


def test_augmented_assignment_keeps_the_gradient():
    linear = nn.Linear(3, 2, dtype=F64)
    linear.vjp(np.ones(3))[1](np.ones(2))
    linear.weight -= 0.1 * linear.grads["weight"]
    assert [*linear.grads] == ["weight", "bias"]


class Residual(nn.Module):
    """A module of a user, with its gradients."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=F64, rng=0)

    def forward(self, x):
        return x + self.linear(x)

    def vjp(self, x):
        y, backward = self.linear.vjp(x)
        return x + y, lambda grad: (grad + backward(grad)[0],)


class CallsNothing(nn.Module):
    """A vjp that hands on to a class that has none."""

    def forward(self, x):
        return x

    def vjp(self, x):
        return super().vjp(x)


class Forward(nn.Module):
    def forward(self, x):
        return 2 * x


def test_modules_of_users():
    check_by_differences_of_users = Residual()
    y, backward = check_by_differences_of_users.vjp(X)
    np.testing.assert_allclose(backward(X)[0], X + X @ check_by_differences_of_users.linear.weight, rtol=1e-13)
    assert [*check_by_differences_of_users.grads] == ["linear.weight", "linear.bias"]
    assert_same_bits(y, check_by_differences_of_users(X))
    for module in (Forward(), CallsNothing()):
        with pytest.raises(NotImplementedError, match=f"{type(module).__name__} defines forward alone"):
            module.vjp(X)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_modules_of_users_within_a_stack(checkpoint):
    """Also with checkpoint, which a vjp of the user's need not take."""
    encoder = nn.TransformerEncoder.from_layers([UserLayer(), UserLayer()], UserNorm())
    output, backward = encoder.vjp(X, checkpoint=checkpoint)
    assert_same_bits(output, encoder(X))
    (grad,) = backward(X)
    weight = [layer.linear.weight for layer in encoder.layers]
    step = X * 3.0
    for one in reversed(weight):
        step = step + step @ one
    np.testing.assert_allclose(grad, step, rtol=1e-12)
    assert len(encoder.grads) == 4


class UserLayer(Residual):
    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        return super().forward(src)

    def vjp(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        return super().vjp(src)


class Reversed(nn.Module):
    """Returns its input, and turns the gradient round."""

    def forward(self, x):
        return x

    def vjp(self, x):
        return x, lambda grad: (-grad,)


class Twice(nn.LayerNorm):
    """A layer of pyattn, extended."""

    def forward(self, x):
        return 2 * super().forward(x)

    def vjp(self, x):
        y, backward = super().vjp(x)
        return 2 * y, lambda grad: backward(2 * grad)


class Frozen(nn.LayerNorm):
    def vjp(self, x):
        return self.forward(x), lambda grad: (np.zeros_like(grad),)


class Wrong(Reversed):
    def __init__(self, result):
        super().__init__()
        self.result = result

    def vjp(self, x):
        return x, lambda grad: self.result


def test_what_users_define_counts_within_a_stack():
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, dtype=F64, rng=0)
    plain = nn.TransformerEncoder.from_layers([layer]).vjp(X)[1](X)[0]
    assert_same_bits(nn.TransformerEncoder.from_layers([layer], Reversed()).vjp(X)[1](X)[0], -plain)
    assert not nn.TransformerEncoder.from_layers([layer], Frozen(8, dtype=F64)).vjp(X)[1](X)[0].any()
    check_by_differences(nn.TransformerEncoder.from_layers([layer], Twice(8, dtype=F64)), (X.copy(),), {})
    check_by_differences(Twice(8, dtype=F64), (X.copy(),), {})
    for result, error in ((X, TypeError), ((), TypeError), ((X[0],), ValueError)):
        backward = nn.TransformerEncoder.from_layers([layer], Wrong(result)).vjp(X)[1]
        with pytest.raises(error, match=r"Wrong\.vjp"):
            backward(X)


class UserNorm(nn.Module):
    def forward(self, x):
        return 3 * x

    def vjp(self, x):
        return 3 * x, lambda grad: (3 * grad,)


def test_add_grad_refuses():
    linear = nn.Linear(3, 2, bias=False, dtype=F64)
    with pytest.raises(ValueError, match="name is 'bias', and the module's own parameters are weight"):
        linear.add_grad("bias", np.ones(2))
    with pytest.raises(ValueError, match=r"grad has shape \(2,\), expected \(2, 3\) as weight"):
        linear.add_grad("weight", np.ones(2))
    with pytest.raises(TypeError, match="grad"):
        linear.add_grad("weight", "x")
    assert linear.grads == {}
    grad = np.ones((2, 3))
    linear.add_grad("weight", grad)
    linear.add_grad("weight", grad)
    np.testing.assert_array_equal(linear.grads["weight"], 2 * grad)
    assert grad[0, 0] == 1


def test_refuses():
    linear = nn.Linear(3, 2, dtype=F64)
    output, backward = linear.vjp(np.ones(3))
    with pytest.raises(ValueError, match=r"grad_output has shape \(3,\), expected \(2,\)"):
        backward(np.ones(3))
    with pytest.raises(TypeError, match="grad_output"):
        backward(np.ones(2, complex))
    backward(np.ones_like(output))  # it has not run yet
    (_, weights), backward = mha().vjp(X, X, X)
    with pytest.raises(ValueError, match="no gradient; pass None"):
        backward((X, np.ones_like(weights)))
    with pytest.raises(NotImplementedError, match="derivative is unknown"):
        nn.FeedForward(8, 16, activation=np.tanh, dtype=F64).vjp(X)
    with pytest.raises(TypeError, match="grad_output"):
        nn.Linear(3, 2, dtype=F64).vjp(np.ones(3))[1](None)
    with pytest.raises(ValueError, match="out is given"):
        nn.RotaryEmbedding(8).vjp(np.ones((2, 8)), out=np.ones((2, 8)))
    with pytest.raises(NotImplementedError, match="Forward defines forward alone"):
        nn.TransformerEncoder.from_layers([Forward()]).vjp(X, checkpoint=True)
    with pytest.raises(AttributeError, match=r"module\.vjp"):
        linear.backward  # noqa: B018


@pytest.mark.threads
def test_threads_add_their_gradients_to_one_module():
    """As arguments of 1 and small whole numbers have exact sums, no addition may be lost."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=np.float64, rng=0)
    linear, x = nn.Linear(64, 64, dtype=np.float64, rng=0), np.ones((16, 64))

    def work():
        output, backward = linear.vjp(x)
        backward(np.ones_like(output))
        output, backward = layer.vjp(np.ones((1, 3, 8)))
        backward(np.ones_like(output))

    work()
    alone = {**linear.grads}, {**layer.grads}
    for _ in range(20):
        linear.zero_grad()
        layer.zero_grad()
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, grad in linear.grads.items():
            np.testing.assert_array_equal(grad, 8 * alone[0][name])
        for name, grad in layer.grads.items():
            np.testing.assert_allclose(grad, 8 * alone[1][name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask", [np.ones((2, 2), np.bool_), np.tril(np.ones((2, 2), np.bool_))])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}])
def test_vjp_doubts_a_mask_where_the_call_does(mask, options):
    attention = nn.MultiheadAttention(4, 1, batch_first=True, rng=0, **options)
    x, said = np.ones((1, 2, 4), np.float32), []
    for call in (attention, attention.vjp):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(x, x, x, attn_mask=mask, key_padding_mask=np.array([[False, True]]))
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1]


def test_vjp_takes_the_word_of_a_mask_object():
    attention, x = nn.SelfAttention(4, 3, 5, rng=0), np.ones((2, 4), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention.vjp(x, attn_mask=masks.from_array(np.triu(np.ones((2, 2), np.bool_), 1)))


@pytest.mark.parametrize(
    ("module", "name", "given"),
    [
        (nn.Linear(3, 2, rng=0), "weight", np.ones((3, 4), np.float32)),
        (nn.Linear(3, 2, rng=0), "weight", np.ones((2, 3))),
        (nn.Linear(3, 2, rng=0), "bias", np.ones(3, np.float32)),
    ],
)
def test_a_parameter_that_was_replaced_on_the_way_is_named(module, name, given):
    output, backward = module.vjp(np.ones((1, 3), np.float32))
    setattr(module, name, given)
    with pytest.raises(ValueError, match=f"^{name} has shape .* it was replaced after vjp; call vjp again"):
        backward(np.ones_like(output))
