"""The core's layer of a Transformer: the bits of its steps, called one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core
from pyattn._util.typing import Rotation

E, HIDDEN, HEADS, EPS = 24, 50, 4, 1e-6


def attention_weights(rng, dtype, packed):
    weights = [rng.standard_normal((3 * E, E)), None, None] if packed else list(rng.standard_normal((3, E, E)))
    biases = [rng.standard_normal(3 * E), None, None] if packed else list(rng.standard_normal((3, E)))
    arrays = [*weights, rng.standard_normal((E, E)), *biases, rng.standard_normal(E)]
    return tuple(None if x is None else (x / 5).astype(dtype) for x in arrays)


OF_EACH_ENTRY = (
    {},
    {"attn_mask": lambda rng: rng.random((80, 1, 41, 41)) < 0.8},
    {
        "attn_mask": lambda rng: rng.standard_normal((80, HEADS, 41, 41)),
        "key_lengths": lambda rng: rng.integers(0, 42, 80),
    },
    {
        "attn_mask": lambda rng: rng.random((1, HEADS, 41, 41)) < 0.8,
        "query_lengths": lambda rng: rng.integers(0, 42, 80),
    },
    {"key_padding_mask": lambda rng: rng.random((80, 1, 1, 41)) < 0.8},
    {"memory_mask": lambda rng: rng.random((80, 1, 41, 7)) < 0.8},
    {
        "memory_key_padding_mask": lambda rng: rng.random((80, 1, 1, 7)) < 0.8,
        "memory_key_lengths": lambda rng: rng.integers(0, 8, 80),
    },
)
"""What entries of a batch have for themselves, and what is the same for all."""


class Drawn:
    """Inputs and weights of a layer."""

    def __init__(self, dtype, *, packed=True, gated=False, bias=True, seed=0):
        rng = np.random.default_rng(seed)
        draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
        self.x, self.memory = draw(3, 11, E), draw(3, 7, E)
        self.own, self.cross = (attention_weights(rng, dtype, packed) for _ in range(2))
        biases = (draw(HIDDEN), draw(E), draw(HIDDEN) if gated else None) if bias else (None,) * 3
        gate = draw(HIDDEN, E) if gated else None
        self.feed = (draw(HIDDEN, E), biases[0], draw(E, HIDDEN), biases[1], gate, biases[2])
        self.norms = tuple(draw(E) if bias or n % 2 == 0 else None for n in range(6))

    def whole(self, memory, **options):
        cross = None if memory is None else self.cross
        options = {"heads": HEADS, "eps": EPS} | options
        return _core.layer(self.x, memory, self.own, cross, self.feed, self.norms, **options)

    def steps(self, memory, *, norm_first=False, rms=False, activation=None, **options):
        """What `whole` is to give, with its three parts in turn."""
        norm = lambda x, n: _core.normalize(x, *self.norms[2 * n : 2 * n + 2], rms=rms, eps=EPS)  # noqa: E731

        def add(x, n, part):
            return x + part(norm(x, n)) if norm_first else norm(x + part(x), n)

        own = {name.removeprefix("own_"): option for name, option in options.items() if not name.startswith("memory_")}
        cross = {name.removeprefix("memory_"): x for name, x in options.items() if name.startswith("memory_")}
        cross = {{"mask": "attn_mask"}.get(name, name): option for name, option in cross.items()}
        y = add(self.x, 0, lambda x: attend(x, x, self.own, own))
        if memory is not None:
            y = add(y, 1, lambda x: attend(x, memory, self.cross, cross))
        in_weight, in_bias, out_weight, out_bias, *gate = self.feed
        gate = dict(zip(("gate_weight", "gate_bias"), gate, strict=True))
        return add(
            y,
            2,
            lambda x: pyattn.functional.feed_forward(
                x, in_weight, in_bias, out_weight, out_bias, activation=activation, **gate
            ),
        )


def attend(x, source, weights, options):
    options = {"align": "upper_left", **options}
    return _core.multi_head(x, source, source, *weights, heads=HEADS, **options)[0]


@for_each("activation", [None, "relu", "gelu"])
@for_each("norm_first", [False, True])
@for_each("with_memory", [False, True])
def test_has_the_bits_of_its_steps(with_memory, norm_first, activation, dtype, level):
    drawn = Drawn(dtype)
    memory, options = drawn.memory if with_memory else None, {"norm_first": norm_first, "activation": activation}
    assert_same_bits(drawn.whole(memory, **options), drawn.steps(memory, **options))


@pytest.mark.parametrize("norm_first", [False, True])
def test_of_today(norm_first, dtype, level):
    """RMS normalisation, a gate, no biases, separate weights: as Llama's layers."""
    drawn = Drawn(dtype, packed=False, gated=True, bias=False)
    options = {"norm_first": norm_first, "activation": "silu", "rms": True, "is_causal": True}
    assert_same_bits(drawn.whole(None, **options), drawn.steps(None, **options))


@pytest.mark.parametrize("norm_first", [False, True])
def test_masks_reach_their_attention(norm_first, dtype):
    drawn, rng = Drawn(dtype), np.random.default_rng(1)
    own, cross = rng.random((11, 11)) < 0.8, rng.standard_normal((11, 7)).astype(dtype)
    padding, memory_padding = (np.arange(n) < np.array([[n], [2], [5]]) for n in (11, 7))
    options = {"attn_mask": own, "key_padding_mask": padding[:, None, None], "is_causal": True}
    options |= {"memory_mask": cross, "memory_key_padding_mask": memory_padding[:, None, None]}
    options["norm_first"] = norm_first
    assert_same_bits(drawn.whole(drawn.memory, **options), drawn.steps(drawn.memory, **options))


def test_lengths_hide_what_padding_does(dtype):
    drawn, lengths = Drawn(dtype), {"key_lengths": [11, 2, 0], "memory_key_lengths": [0, 7, 5]}
    padding = {
        name.replace("lengths", "padding_mask"): (np.arange(n) < np.reshape(lengths[name], (3, 1)))[:, None, None]
        for name, n in zip(lengths, (11, 7), strict=True)
    }
    expected = drawn.whole(drawn.memory, **padding)
    assert_same_bits(drawn.whole(drawn.memory, **lengths), expected)
    assert not np.array_equal(expected, drawn.whole(drawn.memory))


@pytest.mark.parametrize("with_memory", [False, True])
def test_a_float_mask_of_zeros_and_ones_warns_by_torchs_names(with_memory):
    drawn = Drawn("f8")
    own, ones = "tgt" if with_memory else "src", np.tri(11)
    for name, message in {"attn_mask": f"{own}_mask", "key_padding_mask": f"{own}_key_padding_mask"}.items():
        with pytest.warns(pyattn.MaskWarning, match=f"^{message} is a float mask"):
            drawn.whole(drawn.memory if with_memory else None, blocked=True, **{name: ones[:, None, None, :][0]})
    if with_memory:
        for name in ("memory_mask", "memory_key_padding_mask"):
            with pytest.warns(pyattn.MaskWarning, match=f"^{name} is a float mask"):
                drawn.whole(drawn.memory, blocked=True, **{name: ones[None, :7, :7][:, :1]})


def test_weights_are_those_of_its_attentions(dtype):
    drawn = Drawn(dtype)
    output, own, cross = drawn.whole(drawn.memory, need_weights=True)
    assert_same_bits(output, drawn.whole(drawn.memory))
    assert own.shape == (3, HEADS, 11, 11)
    assert cross.shape == (3, HEADS, 11, 7)
    assert_same_bits(own, _core.multi_head(drawn.x, drawn.x, drawn.x, *drawn.own, heads=HEADS, need_weights=True)[1])
    np.testing.assert_allclose(cross.sum(axis=-1), 1, rtol=1e-6)
    averaged = drawn.whole(None, need_weights=True, average_weights=True)
    assert averaged[1].shape == (3, 11, 11)
    assert averaged[2] is None


def test_weights_that_nobody_asked_for_take_no_memory():
    layer, x = (
        pyattn.nn.TransformerEncoderLayer(E, HEADS, HIDDEN, batch_first=True, rng=0).eval(),
        np.ones((700, E), "f"),
    )
    tracemalloc.start()
    layer(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < HEADS * 700 * 700


def test_threads_batches_and_strides_give_the_same_bits(dtype, level):
    drawn = Drawn(dtype)
    first = drawn.whole(drawn.memory, num_threads=1)
    assert_same_bits(drawn.whole(drawn.memory, num_threads=2), first)
    x, memory = drawn.x, drawn.memory
    for n in range(3):
        drawn.x = x[n]
        assert_same_bits(drawn.whole(memory[n]), first[n])
    drawn.x = np.asfortranarray(x)
    assert_same_bits(drawn.whole(np.asfortranarray(memory)), first)
    drawn.x = np.repeat(x, 2, axis=1)[:, ::2]
    assert_same_bits(drawn.whole(memory), first)


@pytest.mark.threads
@pytest.mark.parametrize("norm_first", [False, True])
def test_several_threads_give_the_same_bits(norm_first, dtype):
    """Of as many rows as each of the loops is shared out for."""
    drawn, rng = Drawn(dtype, gated=True), np.random.default_rng(2)
    drawn.x, memory = (rng.standard_normal((50, n, E)).astype(dtype) for n in (200, 30))
    options = {"norm_first": norm_first, "activation": "silu", "is_causal": True}
    first = drawn.whole(memory, **options, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(drawn.whole(memory, **options, num_threads=threads), first)


@pytest.mark.sampled(3)
@pytest.mark.threads
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("options", OF_EACH_ENTRY, ids=" ".join)
def test_a_batch_of_many_groups_has_the_bits_of_its_entries(options, norm_first, dtype):
    """80 entries of 41 rows are four groups for one thread or two, two for four threads, and one for seven."""
    drawn, rng = Drawn(dtype), np.random.default_rng(3)
    x, memory = (rng.standard_normal((80, n, E)).astype(dtype) for n in (41, 7))
    options = {name: draw(rng) for name, draw in options.items()}
    same = {"norm_first": norm_first, "need_weights": True, "average_weights": norm_first}

    drawn.x = x
    together = [drawn.whole(memory, **options, **same, num_threads=threads) for threads in (1, 2, 4, 7)]
    for n in range(80):
        drawn.x = x[n : n + 1]
        own = {name: value[n : n + 1] if len(value) == 80 else value for name, value in options.items()}
        alone = drawn.whole(memory[n : n + 1], **own, **same)
        for results in together:
            for one, expected in zip(results, alone, strict=True):
                assert_same_bits(one[n : n + 1], expected)


def test_a_group_turns_by_its_own_positions(dtype):
    drawn, rng = Drawn(dtype), np.random.default_rng(4)
    x, ids = rng.standard_normal((80, 41, E)).astype(dtype), rng.integers(0, 1000, (80, 41))
    turning = lambda ids: Rotation(1 / 10.0 ** np.arange(E // HEADS // 2), 1.0, 0, ids, False)  # noqa: E731
    drawn.x = x
    together = drawn.whole(None, rotary=turning(ids), num_threads=1)
    same = drawn.whole(None, rotary=turning(ids[0]), num_threads=1)
    assert not np.array_equal(together, same)
    for n in range(80):
        drawn.x = x[n : n + 1]
        assert_same_bits(together[n : n + 1], drawn.whole(None, rotary=turning(ids[n : n + 1])))
        assert_same_bits(same[n : n + 1], drawn.whole(None, rotary=turning(ids[0])))


def test_groups_of_several_axes(dtype):
    drawn, rng = Drawn(dtype), np.random.default_rng(4)
    drawn.x, memory = (rng.standard_normal((5, 16, n, E)).astype(dtype) for n in (41, 7))
    mask = rng.random((16, 1, 41, 41)) < 0.8
    together = drawn.whole(memory, attn_mask=mask, num_threads=1)
    for n, x in enumerate(drawn.x.copy()):
        drawn.x = x
        assert_same_bits(together[n], drawn.whole(memory[n], attn_mask=mask))


def test_levels_give_the_same_bits(dtype, levels):
    drawn, results = Drawn(dtype, gated=True), []
    for level in [one for one in levels if one != "scalar"] or levels:
        _core._set_isa(level)
        results.append(drawn.whole(drawn.memory, activation="gelu", is_causal=True))
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_inputs_are_left_alone(dtype):
    drawn = Drawn(dtype)
    before = [x.copy() for x in (drawn.x, drawn.memory, *drawn.own[3::4], *drawn.norms)]
    drawn.whole(drawn.memory, norm_first=True)
    for x, y in zip((drawn.x, drawn.memory, *drawn.own[3::4], *drawn.norms), before, strict=True):
        assert_same_bits(x, y)


def test_empty_sizes(dtype):
    drawn = Drawn(dtype)
    drawn.x = drawn.x[:, :0]
    assert drawn.whole(drawn.memory).shape == (3, 0, E)
    drawn = Drawn(dtype)
    drawn.x, memory = drawn.x[:0], drawn.memory[:0]
    assert drawn.whole(memory).shape == (0, 11, E)
    drawn = Drawn(dtype)
    assert np.isfinite(drawn.whole(drawn.memory[:, :0])).all()  # nothing to attend to: the bias alone


@for_each(
    ("change", "options", "kind", "message"),
    [
        ({}, {"heads": 5}, ValueError, r"q_weight has shape \(24, 24\), expected \(5 \* head_dim, 24\)"),
        ({"x": np.ones(E)}, {}, ValueError, "query has shape"),
        ({"x": np.ones((3, 11, 5))}, {}, ValueError, "expected"),
        ({"feed": Drawn("f8").own[:6]}, {}, ValueError, "out_weight of the feed-forward part is missing"),
        (
            {"feed": (np.ones((9, 5)), None, np.ones((E, 9)), *[None] * 3)},
            {},
            ValueError,
            r"in_weight has shape \(9, 5\)",
        ),
        (
            {"feed": (np.ones((9, E)), None, np.ones((5, 9)), *[None] * 3)},
            {},
            ValueError,
            "feed-forward part has shape",
        ),
        ({"feed": ()}, {}, TypeError, "feed_forward must be a tuple of 6 arrays"),
        ({"norms": (np.ones(3),) * 6}, {}, ValueError, r"weight has shape \(3,\), expected \(24,\)"),
        (
            {"own": (*Drawn("f8").own[:3], None, *Drawn("f8").own[4:])},
            {},
            ValueError,
            "out_weight of the self-attention|out_bias comes with",
        ),
        ({}, {"activation": "swish"}, ValueError, "activation is 'swish'"),
        ({}, {"eps": -1}, ValueError, "eps is -1"),
        ({}, {"eps": "small"}, TypeError, "eps is of type str"),
        ({}, {"attn_mask": np.ones((11, 11), int)}, TypeError, "attn_mask has dtype int64"),
        ({}, {"key_padding_mask": np.ones((2, 11), bool)}, ValueError, "mask"),
        ({}, {"need_weights": "yes"}, TypeError, "need_weights is of type str"),
        ({}, {"num_threads": 0}, ValueError, "num_threads is 0"),
    ],
)
def test_mistakes_are_named(change, options, kind, message):
    drawn = Drawn("f8")
    vars(drawn).update(change)
    with pytest.raises(kind, match=message):
        drawn.whole(None, **options)
