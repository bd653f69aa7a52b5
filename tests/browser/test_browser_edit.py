"""Numbers changed on a page: each step must have the numbers of `pyattn.trace`, and be written like Python's page."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import pyattn

TOKENS, FEATURES, KEY_DIM, V_DIM = 4, 3, 2, 5
OPTIONS = {
    "plain": {},
    "scaled, with tokens": {"scale": None, "tokens": ["猫", "<b>", "it's", "d"]},
    "causal": {"is_causal": True},
    "mask that adds": {"attn_mask": np.random.default_rng(2).standard_normal((TOKENS, TOKENS))},
    "initial -inf": {"attn_mask": np.triu(np.full((TOKENS, TOKENS), -np.inf), 1)},
    "biases": {"bias": [*np.random.default_rng(3).standard_normal((2, KEY_DIM)), np.arange(V_DIM) / 7]},
    "cosine": {"score": "cosine"},
    "distance": {"score": "distance", "scale": 0.25},
    "bilinear": {"score": "bilinear", "score_weight": np.array([[1.0, -0.5], [0.1, 2]])},
    "additive": {"score": "additive", "score_weight": np.array([1.0, -0.3])},
    "sigmoid": {"normalize": "sigmoid"},
    "sparsemax": {"normalize": "sparsemax"},
    "rounded": {"round_weights": 2},
    "queries, keys and values": {},
}
GIVEN = ("x", "w_query", "w_key", "w_value")
PROJECTED = ("queries", "keys", "values")
FIELDS = ("x", "w_key", "w_query", "w_value", "keys", "queries", "values", "scores", "weights", "outputs")


class Numbers:
    """What a trace is made of, in its own convention, so that one can be changed and the trace made again."""

    def __init__(self, kind, convention, rng):
        self.options = {**OPTIONS[kind], "convention": convention}
        sizes = {"x": (TOKENS, FEATURES), "w_query": (FEATURES, KEY_DIM), "w_key": (FEATURES, KEY_DIM)}
        sizes["w_value"] = (FEATURES, V_DIM)
        if kind == "queries, keys and values":
            sizes = {"queries": (TOKENS, KEY_DIM), "keys": (TOKENS, KEY_DIM), "values": (TOKENS, V_DIM)}
        self.column = convention == "column"
        given = {name: rng.standard_normal(size) for name, size in sizes.items()}
        self.given = {name: array.T if self.column else array for name, array in given.items()}

    def trace(self):
        make = pyattn.trace if "x" in self.given else pyattn.trace_attention
        return make(*self.given.values(), **self.options)

    def change(self, name, place, number):
        """Change one number here; return the field's name on the page."""
        i, j = place
        if name == "scale":
            self.options["scale"] = number
            return "scale"
        if name in ("mask", "attn_bias"):
            visible = np.tri(TOKENS, dtype=bool) if self.options.pop("is_causal", False) else True
            before = self.options.get("attn_mask", np.broadcast_to(visible, (TOKENS, TOKENS)))
            self.options["attn_mask"] = np.array(before)
            self.options["attn_mask"][i, j] = number
            return f"{name}[{j}][{i}]" if self.column else f"{name}[{i}][{j}]"
        if name.startswith("b_"):
            which = ("b_query", "b_key", "b_value").index(name)
            self.options["bias"] = [np.array(bias) for bias in self.options["bias"]]
            self.options["bias"][which][j] = number
            return f"{name}[{j}][0]" if self.column else f"{name}[0][{j}]"
        self.given[name][i, j] = number
        return f"{name}[{i}][{j}]"

    def drawn(self, rng):
        """Names, places and numbers: one of each matrix, the mask and the scale, in an order of their own."""
        edits = []
        for name, array in self.given.items():
            edits.append((name, tuple(rng.integers(array.shape)), float(rng.standard_normal())))
        edits.append(("scale", (0, 0), float(rng.uniform(0.2, 2))))
        pair = tuple(int(n) for n in rng.integers(TOKENS, size=2))
        if "attn_mask" in self.options:
            edits += [("attn_bias", pair, float(rng.standard_normal())), ("attn_bias", (0, 2), -np.inf)]
            edits += [("attn_bias", (0, 3), 0.0)]  # shows a key that the mask may have hidden
        else:
            visible = not self.options.get("is_causal") or pair[0] >= pair[1]
            edits.append(("mask", pair, not visible))
        if "bias" in self.options:
            edits += [("b_query", (0, 1), 2.0), ("b_key", (0, 0), -1e-3), ("b_value", (0, 4), 1e9)]
        return [edits[n] for n in rng.permutation(len(edits))]


def field(browser, name):
    (found,) = browser.all(f'input[aria-label="{name}"]')
    return found


def type_into(browser, name, text):
    """As a person does: a click selects what stands there."""
    element = field(browser, name)
    browser.run("arguments[0].scrollIntoView({block: 'center'})", element)
    if element.get_attribute("type") == "checkbox":
        element.click()
        return
    element.click()
    element.send_keys(Keys.CONTROL, "a")
    element.send_keys(text or Keys.DELETE)
    element.send_keys(Keys.ENTER)


def spelled(number):
    return str(number) if isinstance(number, bool) else repr(float(number))


# Of the page, or of a file that Python wrote, without running its scripts.
WRITTEN = """
const page = arguments[0] === null ? document : new DOMParser().parseFromString(arguments[0], "text/html");
const numberOf = cell => {
  const field = cell.querySelector("input");
  return !field ? cell.textContent : field.type === "checkbox" ? String(+field.checked) : field.value;
};
return [...page.querySelectorAll("section")].map(section => [
  [...section.querySelectorAll("h3, pre, .pa-note")].map(e => e.textContent),
  [...section.querySelectorAll("table")].map(table =>
    [table.dataset.m, ...[...table.querySelectorAll("td")].map(numberOf)]),
]);
"""


def numbers_of(browser, name):
    """In full, in rows; JSON has neither NaN nor infinities."""
    script = """
      const found = document.querySelector(".pa-steps").numbers(arguments[0]);
      const plain = x => isFinite(x) ? x : String(x);
      return Array.isArray(found) ? found.map(one => one.map(line => line.map(plain))) :
        Array.from({length: found.r}, (_, i) => Array.from(found.a.slice(i * found.c, (i + 1) * found.c), plain));
    """
    return np.array(browser.run(script, name)).astype(float)


def assert_is_traced(browser, trace, path):
    """Every number to 1e-12, and every text to the letter."""
    browser.run("if (document.activeElement) document.activeElement.blur()")
    for name in FIELDS:
        if getattr(trace, name) is not None:
            expected = trace.in_rows(name)
            np.testing.assert_allclose(numbers_of(browser, name), expected, rtol=1e-12, atol=1e-13, err_msg=name)
    weighted = trace.weighted_values.T if trace.convention == "column" else trace.weighted_values
    found = numbers_of(browser, "weighted_values").transpose(1, 0, 2)  # queries come first on the page
    np.testing.assert_allclose(found, weighted, rtol=1e-12, atol=1e-13)
    trace.save_html(path)
    for found, expected in zip(
        browser.run(WRITTEN, None), browser.run(WRITTEN, path.read_text(encoding="utf-8")), strict=True
    ):
        assert found == expected


@pytest.mark.parametrize("convention", ["row", "column"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_changed_page_is_the_page_of_the_changed_trace(browser, tmp_path, kind, convention):
    rng = np.random.default_rng([len(kind), *map(ord, kind)])
    numbers = Numbers(kind, convention, rng)
    numbers.trace().save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert_is_traced(browser, numbers.trace(), tmp_path / "expected.html")
    for n, (name, place, number) in enumerate(numbers.drawn(rng)):
        type_into(browser, numbers.change(name, place, number), spelled(number))
        if n == 0:
            assert_is_traced(browser, numbers.trace(), tmp_path / "expected.html")
    assert_is_traced(browser, numbers.trace(), tmp_path / "expected.html")


@pytest.mark.parametrize("convention", ["row", "column"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_the_copied_code_makes_the_trace_of_the_page(browser, tmp_path, kind, convention):
    rng = np.random.default_rng(8)
    numbers = Numbers(kind, convention, rng)
    numbers.trace().save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    for name, place, number in numbers.drawn(rng)[:3]:
        type_into(browser, numbers.change(name, place, number), spelled(number))
    browser.all("[data-do=copy]")[0].click()
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(browser.run("return document.querySelector('textarea').value"), names)
    expected = numbers.trace()
    assert printed.getvalue() == f"{expected}\n"
    np.testing.assert_array_equal(names["trace"].outputs, expected.outputs)
    assert browser.all(".pa-said")[0].text.startswith("The code is copied.")


@pytest.mark.parametrize("text", ["1e20", "-18446744073709551616", "1e21", "9007199254740993", "-inf", "-0"])
def test_the_copied_code_holds_every_number(article_page, article, text):
    x = article["x"].astype(float)
    x[1, 2] = float(text)
    type_into(article_page, "x[1][2]", text)
    article_page.all("[data-do=copy]")[0].click()
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(article_page.run("return document.querySelector('textarea').value"), names)
    np.testing.assert_array_equal(names["trace"].x, x)
    np.testing.assert_array_equal(names["trace"].outputs, traced(article, x=x).outputs)


@pytest.fixture
def article_page(browser, pages):
    browser.open(pages["article"].path)
    return browser


def said(browser):
    return browser.all(".pa-said")[0].text


def outputs(browser):
    return [cell.text for cell in browser.all("section[data-step='8'] table[data-m='outputs'] td")]


def traced(article, options=None, **changed):
    return pyattn.trace(
        *(changed.get(name, article[name].astype(float)) for name in GIVEN), **(options or {})
    )  # an entry of the example, or the one given


def test_the_task_of_the_page_can_be_done(article_page, article, tmp_path, pictures):
    """Set w_value[0][0] to 1: output 1 becomes 0.0634 * 2 + 0.4683 * 2 + 0.4683 * 3 = 2.4683 at first."""
    task = article_page.all(".pa-tools p")[0].text
    assert task == "Change a number. Set w_value[0][0] to 1, predict output 1, then look at step 7."
    type_into(article_page, "w_value[0][0]", "1")
    article_page.all(".pa-tools a")[0].click()
    step = article_page.all("section[data-step='7']")[0]
    assert step.find_elements("css selector", "table[data-m='outputs'] td")[0].text == "2.4683"
    assert article_page.run("return arguments[0].getBoundingClientRect().top >= 0", step)
    assert said(article_page) == ("Output 1 was [1.9366, 6.6831, 1.5951] and is now [2.4683, 6.6831, 1.5951].")
    article_page.save_picture("edited")


def test_what_differs_from_the_original_is_marked_and_reset_brings_it_back(article_page, pages, tmp_path):
    type_into(article_page, "w_value[0][0]", "1")
    type_into(article_page, "scale", "0.5")
    type_into(article_page, "mask[1][2]", "")
    changed = {
        (article_page.run("return arguments[0].closest('table').dataset.m", cell))
        for cell in article_page.all(".pa-changed")
    }
    assert changed == {"w_value", "scale", "visible", "values", "scores", "weights", "weighted_values", "outputs"}
    article_page.all("[data-do=reset]")[0].click()
    assert article_page.all(".pa-changed") == []
    assert said(article_page) == ""
    assert_is_traced(article_page, pages["article"].trace, tmp_path / "expected.html")


@pytest.mark.parametrize("text", ["abc", "", "1,5", "1e", "--1", "0x10", "1 2", "None"])
def test_an_invalid_entry_is_marked_and_explained_and_changes_nothing(article_page, pages, tmp_path, text):
    type_into(article_page, "x[0][1]", "2")
    before = article_page.run(WRITTEN, None)
    element = field(article_page, "x[0][1]")
    element.send_keys(Keys.CONTROL, "a")
    article_page.run("arguments[0].value = arguments[1]", element, text)  # at once: 1e begins with 1
    element.send_keys(Keys.ENTER)
    assert element.get_attribute("aria-invalid") == "true"
    sentence = f"“{text}” is not a number: write one such as 1, -0.5, 2e-3, nan or inf."
    (tip,) = article_page.all(".pa-tip")
    assert tip.text == f"{sentence}\nNothing on the page has changed."
    assert f"x[0][1]: {sentence}" in said(article_page).splitlines()
    article_page.run("arguments[0].value = '2'", element)
    assert article_page.run(WRITTEN, None) == before
    type_into(article_page, "x[0][1]", "0")
    assert element.get_attribute("aria-invalid") == "false"
    assert said(article_page) == ""
    assert_is_traced(article_page, pages["article"].trace, tmp_path / "expected.html")


def test_escape_brings_back_the_number_before_an_invalid_entry(article_page):
    type_into(article_page, "x[0][0]", "")
    element = field(article_page, "x[0][0]")
    assert element.get_attribute("aria-invalid") == "true"
    element.send_keys(Keys.ESCAPE)
    assert (element.get_attribute("value"), element.get_attribute("aria-invalid")) == ("1", "false")


def test_a_scale_that_is_not_finite_is_refused(article_page):
    type_into(article_page, "scale", "inf")
    assert "scale: scale must be a finite number." in said(article_page)
    assert outputs(article_page)[0] == "1.9366"


def test_a_query_that_attends_to_nothing_gives_zeros_and_a_sentence(article_page, article, tmp_path):
    for key in range(3):
        type_into(article_page, f"mask[0][{key}]", "")
    assert said(article_page).splitlines()[-1] == "Query 1 attends to no key: its weights and its output are 0."
    mask = np.arange(3)[:, np.newaxis] != [0] * 3
    assert_is_traced(article_page, traced(article, {"attn_mask": mask}), tmp_path / "expected.html")
    assert outputs(article_page)[:3] == ["0", "0", "0"]
    for key in range(3):
        type_into(article_page, f"mask[2][{key}]", "")
    assert said(article_page).splitlines()[-1] == "Queries 1, 3 attend to no key: their weights and outputs are 0."


def test_nan_is_shown_with_what_happened_and_masked_positions_are_not_read(article_page, article, tmp_path):
    x = article["x"].astype(float)
    x[2, 3] = np.nan
    type_into(article_page, "x[2][3]", "nan")
    assert said(article_page).splitlines() == [
        "Output 1 was [1.9366, 6.6831, 1.5951] and is now [nan, nan, nan].",
        "x[2][3] holds nan or inf: products and sums with nan are nan, and so are inf - inf and 0 * inf.",
        "Outputs that hold nan: 1, 2, 3.",
    ]
    assert_is_traced(article_page, traced(article, x=x), tmp_path / "expected.html")
    mask = np.ones((3, 3), bool)
    mask[:2, 2] = mask[2] = False
    for i, j in np.argwhere(~mask):
        type_into(article_page, f"mask[{i}][{j}]", "")
    assert "No output is nan: masked positions are not read." in said(article_page)
    assert_is_traced(article_page, traced(article, {"attn_mask": mask}, x=x), tmp_path / "expected.html")


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e308", "1e-320"])
def test_extreme_numbers_are_traced_like_python_does(article_page, article, tmp_path, text):
    """No relative error: sums of infinities and overflow give the same numbers in any order here."""
    w_key = article["w_key"].astype(float)
    w_key[0, 0] = float(text)
    type_into(article_page, "w_key[0][0]", text)
    assert_is_traced(article_page, traced(article, w_key=w_key), tmp_path / "expected.html")


def test_a_tie_of_the_last_decimal_is_rounded_as_in_python(article_page, article, tmp_path):
    """1/32 is halfway between 0.0312 and 0.0313."""
    x = article["x"].astype(float)
    x[0], x[1, 0] = 1 / 32, -3 / 32
    for j in range(4):
        type_into(article_page, f"x[0][{j}]", "0.03125")
    type_into(article_page, "x[1][0]", "-0.09375")
    assert_is_traced(article_page, traced(article, x=x), tmp_path / "expected.html")


# Keyboard


def focused(browser):
    return browser.run("const e = document.activeElement; return e.closest('td')")


def press(browser, *keys):
    ActionChains(browser.driver, duration=0).send_keys(*keys).perform()


def test_focus_shows_what_the_mouse_shows(browser, pages):
    """Of the first and the last cell of every table: Tab leads to one, arrows to the other."""
    browser.open(pages["chinese"].path)
    press(browser, *[Keys.TAB] * 4)  # past the link and the two buttons
    shown = []
    for table in browser.all("section table"):
        rows = table.find_elements("css selector", "tbody tr")
        columns = len(rows[0].find_elements("css selector", "td"))
        first, last = browser.cell(table, 0, 0), browser.cell(table, -1, -1)
        to_last = [Keys.ARROW_DOWN] * (len(rows) - 1) + [Keys.ARROW_RIGHT] * (columns - 1)
        for cell, moves in ((first, to_last), (last, [Keys.TAB])):
            assert focused(browser) == cell
            (tip,) = browser.all(".pa-tip")
            assert browser.all("[aria-live]")[0].get_property("textContent") == tip.text
            shown.append((cell, tip.text))
            press(browser, *moves)
    assert len(shown) > 50
    assert len({tip for _, tip in shown}) > 25
    browser.hover(browser.all("h1")[0])
    for cell, tip in shown[::2]:
        assert browser.hover(cell) == tip


def test_shift_and_tab_return_to_the_cell_that_was_left(browser, pages):
    browser.open(pages["article"].path)
    press(browser, *[Keys.TAB] * 4, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    cell = focused(browser)
    press(browser, Keys.TAB)
    ActionChains(browser.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    assert focused(browser) == cell
    assert cell == browser.cell(browser.all("table[data-m='x']")[0], 1, 1)


def test_escape_closes_the_explanation_and_arrows_open_it_again(browser, pages):
    browser.open(pages["article"].path)
    press(browser, *[Keys.TAB] * 4)
    assert len(browser.all(".pa-tip")) == 1
    press(browser, Keys.ESCAPE)
    assert browser.all(".pa-tip, .pa-here, .pa-from") == []
    press(browser, Keys.ARROW_DOWN)
    assert browser.all(".pa-tip")[0].text.startswith("input 2, number 1 = 0")


def test_arrows_move_inside_a_number_that_is_being_typed(browser, pages):
    browser.open(pages["article"].path)
    element = field(browser, "x[0][0]")
    element.click()
    press(browser, "25", Keys.ARROW_LEFT, "3")
    assert element.get_attribute("value") == "235"
    assert browser.run("return document.activeElement") == element


def test_keys_of_large_tables_step_over_the_gap(browser, pages):
    browser.open(pages["64-tokens"].path)
    table = browser.all("section[data-step='8'] table[data-m='outputs']")[0]
    browser.run("arguments[0].focus()", browser.cell(table, 5, 5))
    press(browser, Keys.ARROW_RIGHT)
    assert focused(browser) == browser.cell(table, 5, 7)
    press(browser, Keys.ARROW_DOWN)
    assert browser.all(".pa-tip")[0].text.startswith("output 62 (sat61), number 14\n")


# Layout


@pytest.mark.parametrize("name", ["chinese", "column", "64-tokens"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_what_a_step_reads_stands_beside_its_result_where_there_is_room(browser, pages, pictures, width, dark, name):
    browser.look(width=width, dark=dark)
    browser.open(pages[name].path)
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    pairs = browser.all(".pa-both")
    assert len(pairs) == 6  # steps 3 to 8
    for pair in pairs:
        reads, makes = (part.rect for part in pair.find_elements("xpath", "./div"))
        if width == 1280:
            assert reads["x"] + reads["width"] <= makes["x"]
            assert abs(reads["y"] - makes["y"]) < 2
        else:
            assert reads["y"] + reads["height"] <= makes["y"] + 1
    first, second = (browser.all(f"section[data-step='{n}']")[0].rect for n in (1, 2))
    assert (first["y"] == second["y"]) == (width == 1280)
    browser.save_picture(f"{name}-{width}-{'dark' if dark else 'light'}")


def test_a_wide_table_scrolls_in_its_own_box(browser, tmp_path):
    rng = np.random.default_rng(1)
    pyattn.trace(rng.standard_normal((12, 12)), *rng.standard_normal((3, 12, 12))).save_html(tmp_path / "page.html")
    browser.look(width=390)
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.documentElement.scrollWidth") == 390
    box, table = browser.run(
        "const t = document.querySelector('table[data-m=x]'); return [t.parentNode.clientWidth, t.scrollWidth]"
    )
    assert table > 390 > box
