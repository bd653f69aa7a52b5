"""MultiheadAttention.trace: every head is what the module and PyTorch's compute."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from support.helpers import for_each, run_python
from test_trace_html import Reader, data_of, matrix

import pyattn
from pyattn import nn

RNG = np.random.default_rng(11)
# Scores are below 100, so weights of both are off by 8 * 2^-53 * (1 + 2 * 100) at most, and outputs by some times that.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def module(**options):
    made = nn.MultiheadAttention(**{"embed_dim": 12, "num_heads": 3, "dtype": np.float64, "rng": 1, **options}).eval()
    for _, array in made.named_parameters():
        array[...] = RNG.standard_normal(array.shape) / 2
    return made


# What torch's module does not have, and what rows that attend to nothing give.
BEYOND = {
    "window": {"window": 1},
    "window of two ends": {"window": [None, 0], "key_lengths": 4},
    "lengths": {"key_lengths": np.array(2), "is_causal": True},
    "empty rows": {"attn_mask": np.arange(5)[:, np.newaxis] == [2] * 5, "empty_rows": "nan"},
    "no keys": {"key_lengths": 0, "empty_rows": "nan"},
}


@for_each(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "v_head_dim": 5, "out_dim": 7, "scale": 1},
    ],
)
@for_each("mask", ["none", "causal", "bool", "float", "3-D", "padding", "float padding", "both", *BEYOND])
def test_heads_are_what_the_module_computes(options, mask):
    mha = module(**options)
    x = RNG.standard_normal((5, 12))
    blocked = RNG.random((5, 5)) < 0.4
    masks = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": np.where(blocked, -np.inf, RNG.standard_normal((5, 5)))},
        "3-D": {"attn_mask": RNG.random((mha.num_heads, 5, 5)) < 0.4},
        "padding": {"key_padding_mask": np.arange(5) >= 3},
        "float padding": {"key_padding_mask": RNG.standard_normal(5)},
        "both": {"attn_mask": blocked, "key_padding_mask": np.arange(5) >= 3, "is_causal": True},
        **BEYOND,
    }[mask]
    traced = mha.trace(x, **masks)
    output, weights = mha(x, x, x, average_attn_weights=False, **masks)
    assert len(traced.heads) == mha.num_heads
    np.testing.assert_allclose([head.weights for head in traced.heads], weights, **CLOSE)
    np.testing.assert_allclose(traced.outputs, output, **CLOSE)
    np.testing.assert_array_equal(traced.concatenated, np.concatenate([head.outputs for head in traced.heads], axis=1))


def test_key_and_value_may_be_others():
    mha = module(kdim=4, vdim=5)
    query, key, value = (RNG.standard_normal(shape) for shape in ((3, 12), (6, 4), (6, 5)))
    traced = mha.trace(query, key, value, tokens=list("abc"), key_tokens=list("uvwxyz"))
    output, weights = mha(query, key, value, average_attn_weights=False)
    np.testing.assert_allclose([head.weights for head in traced.heads], weights, **CLOSE)
    np.testing.assert_allclose(traced.outputs, output, **CLOSE)
    assert traced.heads[0].x is None
    assert traced.heads[2].key_tokens == list("uvwxyz")


def test_a_head_has_its_own_weights():
    mha = module()
    traced = mha.trace(RNG.standard_normal((5, 12)))
    np.testing.assert_array_equal(traced.heads[1].w_query, mha.in_proj_weight[4:8].T)
    np.testing.assert_array_equal(traced.heads[2].w_key, mha.in_proj_weight[20:24].T)
    np.testing.assert_array_equal(traced.heads[2].b_value, mha.in_proj_bias[np.newaxis, 32:36])


def test_a_float32_module_is_traced_in_float64():
    mha = nn.MultiheadAttention(12, 3, rng=0).eval()
    traced = mha.trace(np.ones((2, 12), int).tolist())
    assert traced.outputs.dtype == np.float64
    twin = nn.MultiheadAttention.from_arrays({name: x.astype(float) for name, x in mha.state_dict().items()}, 3).eval()
    np.testing.assert_allclose(traced.outputs, twin(*np.ones((3, 2, 12)))[0], **CLOSE)


def test_dropout_is_left_out():
    mha = module(dropout=0.9)
    x = RNG.standard_normal((5, 12))
    expected = mha(x, x, x)[0]
    np.testing.assert_allclose(mha.train().trace(x).outputs, expected, **CLOSE)
    assert mha.training


# Two steps join the heads


def test_the_heads_stand_side_by_side_in_the_ninth_step():
    mha = module()
    x = RNG.standard_normal((5, 12))
    step = mha.trace(x).concatenation
    assert (step.number, list(step.arrays)) == (9, ["concatenated"])
    side_by_side = np.hstack([mha.trace(x).heads[h].outputs for h in range(3)])
    np.testing.assert_array_equal(step.arrays["concatenated"], side_by_side)


def test_the_projection_is_the_last_step():
    traced = module().trace(RNG.standard_normal((5, 12)))
    step = traced.projection
    assert step.number == 10
    assert list(step.arrays) == ["concatenated", "w_out", "b_out", "outputs"]
    product = step.arrays["concatenated"] @ step.arrays["w_out"] + step.arrays["b_out"]
    np.testing.assert_allclose(step.arrays["outputs"], product, **CLOSE)


@pytest.mark.peers
def test_heads_are_what_torch_computes(torch):
    theirs = torch.nn.MultiheadAttention(12, 3, add_bias_kv=True, dtype=torch.float64).eval()
    ours = pyattn.interop.torch.from_torch(theirs)
    x = torch.from_numpy(RNG.standard_normal((5, 12)))
    with torch.no_grad():
        output, weights = theirs(x, x, x, average_attn_weights=False)
    traced = ours.trace(x)
    np.testing.assert_allclose([head.weights for head in traced.heads], weights.numpy(), **CLOSE)
    np.testing.assert_allclose(traced.outputs, output.numpy(), **CLOSE)


@for_each(("batch_first", "entry"), [(True, "x[0]"), (False, "x[:, 0]")])
def test_a_batch_is_refused_with_the_fix(batch_first, entry):
    message = f"x has shape (2, 5, 12); it must be (length, embed_dim): trace one entry, such as {entry}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        module(batch_first=batch_first).trace(np.ones((2, 5, 12)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.ones((5, 11))}, "query has shape (5, 11), expected"),
        ({"attn_mask": np.ones((4, 5), bool)}, "attn_mask has shape (4, 5)"),
        ({"x": np.ones((0, 12))}, "x has shape (0, 12); it must not be empty"),
        ({"key": np.ones((0, 12))}, "key has shape (0, 12); it must not be empty"),
        ({"tokens": ["a"]}, "tokens has 1 entry; it must have 5"),
        ({"window": -1}, "window is -1, expected 0 or more"),
        ({"key_lengths": 6}, "key_lengths holds 6, expected 0 <= n <= 5"),
        ({"empty_rows": "inf"}, "empty_rows is 'inf'"),
    ],
    ids=str,
)
def test_mistakes_are_told_as_the_module_tells_them(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        module().trace(**{"x": np.ones((5, 12)), **arguments})


# As text and pages


def test_heads_are_told_one_after_another():
    traced = module(add_bias_kv=True, add_zero_attn=True).trace(RNG.standard_normal((3, 12)), tokens=["我", "b", "c"])
    text = str(traced)
    assert [line for line in text.splitlines() if line.startswith("Head ")] == [f"Head {n} of 3" for n in (1, 2, 3)]
    assert text.count("\nStep 8:") == 3
    assert text.count("\nStep 9: Concatenate the heads") == text.count("\nStep 10: Multiply by W_O") == 1
    assert text.index("Head 3 of 3") < text.index("All heads") < text.index("Step 9") < text.index("Step 10")
    assert traced.heads[0].key_tokens == ["我", "b", "c", "bias_k/v", "zero"]
    assert "The last 2 keys and values are not projected from an input" in text
    assert repr(traced) == "HeadTraces(3 heads, outputs 3 x 12)"


def test_markdown_and_dict_have_all_heads():
    traced = module().trace(RNG.standard_normal((3, 12)))
    assert traced.to_markdown().count("\n## Step 8") == 3
    joining = traced.to_markdown().partition("\n# All heads\n")[2]
    assert re.findall("^## (.*)$", joining, re.MULTILINE) == [
        "Step 9: Concatenate the heads",
        r"Step 10: Multiply by W\_O: the outputs",
    ]
    read = json.loads(json.dumps(traced.to_dict(), allow_nan=False))
    np.testing.assert_array_equal(read["outputs"], traced.outputs)
    np.testing.assert_array_equal(read["heads"][1]["weights"], traced.heads[1].weights)


def test_the_page_has_the_weights_of_every_head_and_its_steps(tmp_path):
    traced = module(add_zero_attn=True).trace(RNG.standard_normal((3, 12)), tokens=["<b>", "b", "c"])
    traced.save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    reader = Reader(page)
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("details") == 3
    assert tags.count("script") == 4
    assert tags.count("b") == 0
    assert len({attrs["id"] for _, attrs in reader.elements if "id" in attrs and "data-step" not in attrs}) == 3
    assert np.array(reader.table("concatenated")["cells"]).shape == (3, 12)
    assert np.array(reader.table("outputs")["cells"]).shape == (3, 12)
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles[-2:] == ["9. Concatenate the heads", "10. Multiply by W_O: the outputs"]
    held = data_of(reader)["m"]
    np.testing.assert_array_equal(matrix(held["keys"]), np.float32(traced.heads[0].keys))  # the last is not an input


def test_the_weights_of_every_head_take_their_hovers_from_its_steps():
    reader = Reader(module().trace(RNG.standard_normal((3, 12)))._repr_html_())
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert [attrs["data-of"] for _, attrs in reader.elements if "data-of" in attrs] == ids
    assert reader.scripts[-1].count("const explain") == 1
    assert f"querySelectorAll('{','.join('#' + name for name in ids)}')" in reader.scripts[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("heads", [8, 12, 16, 40])
def test_pages_of_many_heads_of_64_tokens_stay_small(heads):
    tokens = ["很长的词语" * 100] * 64
    traced = module(embed_dim=12 * heads, num_heads=heads).trace(RNG.standard_normal((64, 12 * heads)), tokens=tokens)
    assert len(traced._repr_html_().encode()) < 395_000


def test_heads_that_are_left_out_are_told():
    text = "".join(Reader(module(embed_dim=36, num_heads=18).trace(RNG.standard_normal((3, 36)))._repr_html_()).text)
    assert "Heads 17 to 18 are not shown: heads[16].save_html(path) writes the page of one." in text
    assert "Head 16, step by step" in text
    assert "Head 17, step by step" not in text


def test_looking_at_modules_does_not_import_tracing():
    run_python("import sys, pyattn.nn; assert not any(name.startswith('pyattn.tracing') for name in sys.modules)")
