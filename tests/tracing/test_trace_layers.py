"""TransformerEncoderLayer.trace and TransformerDecoderLayer.trace: stages are what the layer and PyTorch compute."""

from __future__ import annotations

import html
import json
import re
import warnings

import numpy as np
import pytest
from support.helpers import for_each
from test_trace_html import Reader

import pyattn
from pyattn import nn

RNG = np.random.default_rng(5)
# Normalised numbers are below 4 and pass through a dozen sums of at most 24 terms.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
POST = ["input", "self_attention", "add_norm_1", "feed_forward", "add_norm_2"]
PRE = ["input", "norm_1", "self_attention", "add_1", "norm_2", "feed_forward", "add_2"]
DECODER_POST = [*POST[:3], "cross_attention", "add_norm_2", "feed_forward", "add_norm_3"]
DECODER_PRE = [*PRE[:5], "cross_attention", "add_2", "norm_3", "feed_forward", "add_3"]


def layer(kind="Encoder", **options):
    made = getattr(nn, f"Transformer{kind}Layer")(**{"d_model": 12, "nhead": 3, "dim_feedforward": 24, **options})
    for _, array in made.named_parameters():
        array[...] = RNG.standard_normal(array.shape) / 2
    return made.eval()


BLOCKED = np.triu(np.ones((5, 5), bool), 1)
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "bool": {"src_mask": BLOCKED},
    "float": {"src_mask": np.where(BLOCKED, -np.inf, 0.5)},
    "mask of each head": {"src_mask": RNG.random((3, 5, 5)) < 0.4},
    "padding": {"src_key_padding_mask": np.arange(5) >= 3},
    "window": {"window": 1},
    "nothing to attend to": {"src_mask": np.arange(5)[:, np.newaxis] == [2] * 5},
}
OPTIONS = {
    "usual": {},
    "norm_first": {"norm_first": True},
    "no bias": {"bias": False, "activation": "gelu"},
    "gated": {"gated": True, "activation": "silu", "rms_norm": True, "num_kv_heads": 1},
    "own activation": {"activation": np.tanh, "layer_norm_eps": 0.25},
}


@for_each("options", OPTIONS.values())
@for_each("mask", MASKS.values())
def test_an_encoder_trace_ends_in_what_the_layer_computes(options, mask):
    made = layer(dtype=np.float64, **options)
    x = RNG.standard_normal((5, 12))
    traced = made.trace(x, **mask)
    output, weights, _ = made(x, need_weights=True, **mask)
    np.testing.assert_allclose(traced.outputs, output, **CLOSE)
    np.testing.assert_allclose([head.weights for head in traced.attentions["self_attention"].heads], weights, **CLOSE)
    assert [stage.name for stage in traced.stages] == (PRE if options.get("norm_first") else POST)


@for_each("options", OPTIONS.values())
def test_a_decoder_trace_ends_in_what_the_layer_computes(options):
    made = layer("Decoder", dtype=np.float64, **options)
    x, memory = RNG.standard_normal((5, 12)), RNG.standard_normal((7, 12))
    masks = {"tgt_is_causal": True, "memory_key_padding_mask": np.arange(7) >= 4}
    traced = made.trace(x, memory, **masks)
    output, own, cross = made(x, memory, need_weights=True, **masks)
    np.testing.assert_allclose(traced.outputs, output, **CLOSE)
    for name, weights in (("self_attention", own), ("cross_attention", cross)):
        np.testing.assert_allclose([head.weights for head in traced.attentions[name].heads], weights, **CLOSE)
    assert [stage.name for stage in traced.stages] == (DECODER_PRE if options.get("norm_first") else DECODER_POST)
    assert [stage.title for stage in traced.stages if "attention" in stage.name] == [
        "Masked self-attention",
        "Cross-attention",
    ]


@pytest.mark.peers
@pytest.mark.parametrize("norm_first", [False, True])
def test_every_stage_is_what_parts_of_torch_compute(norm_first, torch):
    theirs = torch.nn.TransformerDecoderLayer(12, 3, 24, activation="gelu", norm_first=norm_first).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.from_numpy(RNG.standard_normal(parameter.shape) / 2))
    x, memory = RNG.standard_normal((4, 12)), RNG.standard_normal((6, 12))
    arrays = pyattn.interop.torch.from_torch(theirs).trace(x, memory, tgt_is_causal=True).arrays
    later = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    expected = {"x": torch.from_numpy(x), "memory": torch.from_numpy(memory)}
    parts = {
        "self_attention": lambda y: theirs.self_attn(y, y, y, attn_mask=later)[0],
        "cross_attention": lambda y: theirs.multihead_attn(y, expected["memory"], expected["memory"])[0],
        "feed_forward": lambda y: theirs.linear2(torch.nn.functional.gelu(theirs.linear1(y))),
    }
    y = expected["x"]
    with torch.no_grad():
        for n, (name, part) in enumerate(parts.items(), 1):
            norm = getattr(theirs, f"norm{n}")
            if norm_first:
                expected[f"norm_{n}"] = norm(y)
                expected[name] = part(expected[f"norm_{n}"])
                y = expected[f"sum_{n}"] = y + expected[name]
            else:
                expected[name] = part(y)
                expected[f"sum_{n}"] = y + expected[name]
                y = expected[f"norm_{n}"] = norm(expected[f"sum_{n}"])
        whole = theirs(*(torch.from_numpy(one)[:, None] for one in (x, memory)), tgt_mask=later)
    np.testing.assert_allclose(y, whole[:, 0], **CLOSE)
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, **CLOSE, err_msg=name)


@for_each("options", OPTIONS.values())
def test_formulas_give_their_arrays(options):
    """Evaluated in NumPy with the arrays of the trace alone."""
    traced = layer(dtype=np.float64, **options).trace(RNG.standard_normal((5, 12)))
    functions = {"sqrt": np.sqrt, "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}
    functions |= {"gelu": pyattn.functional.gelu, "silu": pyattn.functional.silu}
    checked = set()
    for stage in traced.stages:
        for line in stage.formula.splitlines() if "attention" not in stage.name else ():
            name, formula = line.split(" = ")
            value = eval(formula, {**functions, **traced.arrays})
            np.testing.assert_allclose(value, traced.arrays[name], **CLOSE, err_msg=line)
            checked.add(name)
    assert {"sum_1", "norm_1", "hidden", "activated", "feed_forward", "sum_2", "norm_2"} == checked - {"gate"}


def test_mean_and_variance_are_those_of_the_sum():
    arrays = layer(dtype=np.float64).trace(RNG.standard_normal((5, 12))).arrays
    np.testing.assert_allclose(arrays["sum_2"].sum(axis=1) / 12, arrays["mean_2"][:, 0], **CLOSE)
    squares = ((arrays["sum_2"] - arrays["mean_2"]) ** 2).sum(axis=1) / 12
    np.testing.assert_allclose(squares, arrays["variance_2"][:, 0], **CLOSE)


def test_dropout_is_left_out_and_the_layer_is_unchanged():
    made = layer(dropout=0.9, dtype=np.float64)
    x = RNG.standard_normal((5, 12))
    expected = made(x)
    np.testing.assert_allclose(made.train().trace(x).outputs, expected, **CLOSE)
    assert made.training


def test_a_float32_layer_is_traced_in_float64():
    made = layer()
    traced = made.trace(np.ones((2, 12), int).tolist())
    assert {array.dtype for array in traced.arrays.values()} == {np.dtype(np.float64)}
    np.testing.assert_allclose(traced.outputs, made(np.ones((2, 12), np.float32)), rtol=0, atol=1e-5)


def test_arrays_are_read_only_and_copies():
    made = layer(dtype=np.float64)
    x = RNG.standard_normal((5, 12))
    traced = made.trace(x)
    before = traced.arrays["w_1"].copy()
    made.linear1.weight[:] = 0
    x[:] = 0
    np.testing.assert_array_equal(traced.arrays["w_1"], before)
    assert traced.arrays["x"].any()
    assert not any(array.flags.writeable for array in traced.arrays.values())


# Mistakes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer().trace(np.ones((2, 5, 12))), r"src has shape .2, 5, 12.; .* one entry, such as src\[:, 0\]"),
        (lambda: layer(batch_first=True).trace(np.ones((2, 5, 12))), r"such as src\[0\]"),
        (lambda: layer().trace(np.ones((5, 11))), "src"),
        (lambda: layer().trace(np.ones(12)), r"^src has shape \(12,\); it must be \(length, d_model\)$"),
        (lambda: layer().trace(np.ones((0, 12))), "must not be empty"),
        (lambda: layer().trace(np.ones((5, 12)), np.ones((4, 5), bool)), "src_mask"),
        (lambda: layer().trace(np.ones((5, 12)), tokens=["a"]), "tokens has 1 entry; it must have 5"),
        (lambda: layer("Decoder").trace(np.ones((5, 12)), np.ones((4, 11))), "memory"),
        (
            lambda: layer("Decoder").trace(np.ones((5, 12)), np.ones((4, 12)), memory_tokens=["a"]),
            "memory_tokens has 1 entry; it must have 4",
        ),
        (lambda: layer(rotary=nn.RotaryEmbedding(4)).trace(np.ones((5, 12))), "rotary"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@for_each("argument", ["tgt_mask", "memory_mask"])
def test_a_suspicious_mask_gets_one_warning_in_the_callers_words(argument):
    made, x = layer("Decoder"), np.ones((5, 12))
    with pytest.warns(pyattn.MaskWarning) as caught:
        made.trace(x, x, **{argument: np.tri(5, dtype=bool)})
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message).startswith(f"{argument} blocks each query's own key")


def test_numbers_too_large_for_the_layer_do_not_warn():
    x = np.full((2, 12), 1e200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = layer(dtype=np.float32).trace(x)
    np.testing.assert_array_equal(traced.arrays["x"], x)


def test_a_formula_names_an_activation_that_has_a_name():
    def cut_off(x):
        return np.maximum(x, 0)

    for activation, name in ((cut_off, "cut_off"), (lambda x: cut_off(x), "activation"), ("relu", "relu")):
        formula = layer(activation=activation).trace(np.ones((2, 12))).stages[3].formula
        assert f"activated = {name}(hidden)" in formula.splitlines()


def test_custom_parts_are_refused_by_name():
    class Own(nn.Module):
        def forward(self, x, *others, **options):
            return x

    for name, kind in (("linear2", "Linear"), ("norm1", "LayerNorm or RMSNorm"), ("self_attn", "MultiheadAttention")):
        made = layer()
        setattr(made, name, Own())
        with pytest.raises(TypeError, match=f"{name} .*trace needs a {kind}"):
            made.trace(np.ones((5, 12)))


# As text and pages

WORDS = ["je", "suis", "<b>étudiant"]


def traced(**options):
    made = layer("Decoder", d_model=4, nhead=2, dim_feedforward=6, dtype=np.float64, **options)
    x, memory = RNG.standard_normal((2, 4)), RNG.standard_normal((3, 4))
    return made.trace(x, memory, tgt_is_causal=True, tokens=["I", "am"], memory_tokens=WORDS)


def test_text_has_every_array_and_formula():
    one = traced()
    text = str(one)
    for n, stage in enumerate(one.stages, 1):
        assert f"Stage {n}: {stage.title}\n" in text
        for line in (*stage.formula.splitlines(), *stage.note.splitlines()):
            assert f"  {line}\n" in text
        for name, array in stage.arrays.items():
            assert f"\n  {name}, {array.shape[0]} x {array.shape[1]}\n" in text
    assert re.search(r"\n +je +suis +<b>étudiant\n    I ", text)
    assert re.search(r"head_1_weights, 2 x 2\n +I +am\n    I  +1\.?0* +0\n", text)


def test_markdown_has_a_heading_for_each_stage():
    headings = re.findall(r"^## Stage \d: (.*)$", traced().to_markdown(), re.MULTILINE)
    assert headings == [
        "Inputs",
        "Masked self-attention",
        "Add \\& Norm",
        "Cross-attention",
        "Add \\& Norm",
        "Feed-forward",
        "Add \\& Norm",
    ]


def test_a_dict_is_for_json_and_has_every_number():
    one = traced()
    entries = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    for entry, stage in zip(entries["stages"], one.stages, strict=True):
        assert (entry["name"], entry["title"], entry["formula"], entry["note"]) == (
            stage.name,
            stage.title,
            stage.formula,
            stage.note,
        )
        for name, array in stage.arrays.items():
            np.testing.assert_array_equal(np.array(entry["arrays"][name], np.float64), array)
    assert pyattn.tracing.HeadTraces.from_dict(entries["attentions"]["cross_attention"]).heads[1].key_tokens == WORDS


@pytest.mark.parametrize("inner", [2**16, 2**16 + 1])
def test_a_dict_leaves_out_parameters_beyond_the_limit(inner):
    """w_1 and w_2 have 4 * inner numbers; beyond 2**18, a list would take many times the memory of the array."""
    one = nn.TransformerEncoderLayer(4, 2, inner, rng=0).trace(np.ones((1, 4)))
    stage = one.to_dict()["stages"][3]
    left_out = {name for name, numbers in stage["arrays"].items() if numbers is None}
    assert left_out == (set() if inner == 2**16 else {"w_1", "w_2"})


def test_a_page_has_the_stages_and_the_steps_of_each_head(tmp_path):
    one = traced()
    one.save_html(tmp_path / "layer.html")
    page = (tmp_path / "layer.html").read_text(encoding="utf-8")
    Reader(page)  # fails where elements are not closed
    titles = [html.unescape(title) for title in re.findall(r"<h3>\d\. ([^<]*)</h3>", page)]
    assert [title for title in titles if title in {stage.title for stage in one.stages}] == [
        stage.title for stage in one.stages
    ]
    assert page.count("Every head, step by step") == 2
    assert page.count("Attention with 2 heads") == 2
    assert "&lt;b&gt;étudiant" in page
    assert "<b>étudiant" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert one._repr_html_().count("http") == 0


def test_many_heads_and_long_rows_stay_short():
    made = layer(d_model=96, nhead=12, dim_feedforward=384)
    one = made.trace(RNG.standard_normal((100, 96)))
    assert "The weights of heads 9 to 12 are in attentions['self_attention']." in one.stages[1].note
    assert len(str(one)) < 30_000
    assert repr(one) == "LayerTrace(input, self_attention, add_norm_1, feed_forward, add_norm_2: 100 x 96)"


def test_formulas_name_all_heads():
    for heads, words in ((1, "concat(head_1)"), (3, "concat(head_1, head_2, head_3)"), (4, "head_2, ..., head_4)")):
        assert words in layer(nhead=heads).trace(np.ones((2, 12))).stages[1].formula


@for_each("mask", [np.tri(3, dtype=bool), np.repeat(np.tri(3, dtype=bool)[None], 3, axis=0)])
def test_an_inverted_mask_is_warned_of_once_by_its_own_name(mask):
    with pytest.warns(pyattn.MaskWarning) as caught:
        trace = layer().trace(RNG.standard_normal((3, 12)), mask, [True, True, False])
    assert [str(one.message).partition(" ")[0] for one in caught] == ["src_mask", "src_key_padding_mask"][
        -len(caught) :
    ]
    weights = trace.attentions["self_attention"].heads[1].weights
    np.testing.assert_array_equal(weights != 0, [[False, False, True], [False, False, True], [False, False, False]])
