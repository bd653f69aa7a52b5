"""The page of a Transformer layer: stages one below the other, and the steps of each head to unfold."""

from __future__ import annotations

import numpy as np
import pytest

from pyattn import nn


@pytest.fixture(scope="module")
def traced():
    layer, rng = nn.TransformerDecoderLayer(8, 2, 16, dtype=np.float64, rng=0).eval(), np.random.default_rng(1)
    x, memory = rng.standard_normal((3, 8)), rng.standard_normal((4, 8))
    return layer.trace(x, memory, tgt_is_causal=True, tokens=["<s>", "I", "am"], memory_tokens=list("abcd"))


@pytest.fixture(scope="module")
def page(traced, tmp_path_factory):
    path = tmp_path_factory.mktemp("layers") / "layer.html"
    traced.save_html(path)
    return path


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_all_stages_are_seen_and_the_heads_are_folded(browser, page, traced, pictures, look):
    browser.look(dark=look == "dark", narrow=look == "narrow")
    browser.open(page)
    headings = [heading.text for heading in browser.all("h3") if heading.is_displayed()]
    assert headings == [f"{n}. {stage.title}" for n, stage in enumerate(traced.stages, 1)]
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    browser.save_picture(f"layer-{look}")


@pytest.mark.parametrize(("which", "name"), [(0, "self_attention"), (1, "cross_attention")])
def test_hovering_over_a_weight_of_an_unfolded_attention_explains_it(browser, page, traced, which, name):
    browser.open(page)
    unfolded = browser.all(".pyattn > section > details")[which]
    unfolded.find_element("css selector", "summary").click()
    figure = unfolded.find_elements("css selector", "[data-of] > figure")[1]
    tip = browser.hover(browser.cell(figure, 2, 1))
    assert tip.startswith("weight of key 2 (")
    weight = traced.attentions[name].heads[1].weights[2, 1]
    assert abs(float(tip.rpartition(" = ")[2]) - weight) <= 5e-5 + 1e-5
