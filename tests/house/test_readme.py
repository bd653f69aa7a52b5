"""README.md does what it shows, and README.zh-CN.md says the same: code, numbers and names, section by section."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from support.helpers import CODE_BLOCK, ROOT

import pyattn

ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def sections(text):
    return re.split(r"^## ", text, flags=re.MULTILINE)


def pairs():
    """Sections in English and in Chinese, by their place."""
    return list(zip(sections(ENGLISH), sections(CHINESE), strict=True))


def prose(text):
    return CODE_BLOCK.sub("", text)


def table(text):
    """Rows of cells."""
    return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]


def numbers(text):
    return re.findall(r"\d+(?:\.\d+)*", text)


def spans(text):
    return Counter(re.findall(r"`[^`]+`", prose(text)))


def test_there_is_something_to_compare():
    assert len(sections(ENGLISH)) > 5
    assert len(CODE_BLOCK.findall(ENGLISH)) > 8
    assert len(table(ENGLISH)) > 15


def test_each_readme_leads_to_the_other_at_its_top():
    assert ENGLISH.splitlines()[2] == "[简体中文](README.zh-CN.md)"
    assert CHINESE.splitlines()[2] == "[English](README.md)"


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_what_is_linked_is_there(text):
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert "docs/pictures/steps.gif" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_both_have_the_same_code():
    for english, chinese in pairs():
        assert CODE_BLOCK.findall(chinese) == CODE_BLOCK.findall(english)


def test_both_tables_have_the_same_numbers_in_the_same_cells():
    for english, chinese in pairs():
        rows = [[[numbers(cell) for cell in row] for row in table(text)] for text in (english, chinese)]
        assert rows[1] == rows[0]


def test_both_name_the_same_numbers_functions_and_files():
    for english, chinese in pairs():
        assert spans(chinese) == spans(english)
        assert Counter(numbers(prose(chinese))) == Counter(numbers(prose(english)))


# What the code needs, block by block, that README leaves to its reader.


def nothing(rng):
    return {}


def attention_needs(rng):
    outputs, lses = pyattn.attention(*rng.standard_normal((3, 2, 4, 5, 8)), need_lse=True)
    names = ("w_query", "w_key", "w_value", "weight")
    arrays = dict(zip(names, rng.standard_normal((4, 64, 64), dtype=np.float32), strict=True))
    arrays |= {"x": rng.standard_normal((100, 64), dtype=np.float32), "mask": np.tri(100, dtype=bool)}
    arrays |= {"w_score": arrays["w_query"][0], "bias": arrays["w_key"][0]}
    return {**arrays, "outputs": outputs, "lses": lses}


def linear_needs(rng):
    import torch

    return {"module": torch.nn.Linear(3, 2)}


def multi_head_needs(rng):
    names = ("w_query", "w_key", "w_value")
    return {**{name: rng.standard_normal((8, 64, 8)) for name in names}, "w_out": rng.standard_normal((64, 64))}


def my_attention(query, key, value, is_causal=False):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True) @ value


def compare_needs(rng):
    return {"my_attention": my_attention}


def check_needs(rng):
    query, key, value = rng.standard_normal((3, 2, 8, 100, 64))
    actual = my_attention(query, key, value)
    return {"my_attention": my_attention, "actual": actual, "query": query, "key": key, "value": value}


NEEDS = (
    nothing,
    attention_needs,
    nothing,
    linear_needs,
    multi_head_needs,
    nothing,
    nothing,
    compare_needs,
    check_needs,
    nothing,
)


@pytest.mark.peers
def test_the_code_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """In one namespace, as in a notebook; lines that say what they give are held to it."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", ENGLISH, re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(NEEDS)
    rng, names = np.random.default_rng(0), {"pyattn": pyattn}
    for number, (block, needs) in enumerate(zip(blocks, NEEDS, strict=True), 1):
        names |= needs(rng)
        exec(compile(block, f"README.md, block {number}", "exec"), names)
        for given, shape in re.findall(r"^([\w.()]+)\.shape  # (\(.*\))$", block, re.MULTILINE):
            assert str(eval(given, names).shape) == shape
    assert capsys.readouterr().out.startswith("(2, 8, 100, 64)\n")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "linear.npz", "heads.png", "head.png"}


def test_what_is_cited_is_this_version():
    assert f"\nversion: {pyattn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
