"""A trace's page as a browser shows it: all is to be seen, and a number under the mouse says how it came to be.

Expected numbers are NumPy's in float64, from the inputs. A page shows four decimals, or two digits of what is smaller
than half of the last one, and computes from inputs that were rounded to float32; `tolerance` is these two together.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

NAMES = ["article", "explained", "chinese", "column", "64-tokens", "64-causal"]
LOOKS = {"light": {}, "dark": {"dark": True}, "narrow": {"narrow": True}, "narrow-dark": {"dark": True, "narrow": True}}
SHOWN = [0, 1, 5, -3, -1]  # of 64 rows or columns, with a gap in the middle; -3 and -1 from the end
FLOAT32 = 2.0**-24
FIRST = slice(8)  # of a vector, so many are shown
NUMBER = r"-?(?:\d+(?:\.\d+)?(?:e[+-]\d+)?|inf)"

every_page = pytest.mark.parametrize("name", NAMES)
every_look = pytest.mark.parametrize("look", LOOKS)


class Exact:
    """Numbers of a page and how far rounded inputs move them: each factor of a product by one part in 2**24."""

    def __init__(self, page, causal=False):
        x, w_query, w_key, w_value = page.matrices
        self.queries, self.keys, self.values = x @ w_query, x @ w_key, x @ w_value
        self.scores = page.scale * self.queries @ self.keys.T
        if causal:
            self.scores[~np.tri(len(x), dtype=bool)] = -np.inf
        exps = np.exp(self.scores - self.scores.max(axis=1, keepdims=True))
        self.weights = exps / exps.sum(axis=1, keepdims=True)
        self.outputs = self.weights @ self.values
        big = {name: np.abs(x) @ np.abs(w) for name, w in (("queries", w_query), ("keys", w_key), ("values", w_value))}
        moved = {name: 2 * FLOAT32 * array for name, array in big.items()}
        moved["scores"] = page.scale * 4 * FLOAT32 * big["queries"] @ big["keys"].T
        moved["weights"] = 2 * self.weights * moved["scores"].max(axis=1, keepdims=True)
        moved["outputs"] = moved["weights"] @ np.abs(self.values) + self.weights @ moved["values"]
        self.moved = moved

    def of(self, name, *place):
        """Numbers and how far they may be moved."""
        return getattr(self, name)[place], self.moved[name][place]


def assert_shown(text, exact, moved):
    """The numbers of a text, in their order."""
    shown = np.array([float(number) for number in re.findall(NUMBER, text)])
    exact, moved = np.ravel(exact), np.ravel(moved)
    assert shown.shape == exact.shape, text
    tolerance = np.where(np.abs(exact) < 5e-5, 0.05 * np.abs(exact), 5e-5) + moved
    finite = np.isfinite(exact)
    assert (shown[~finite] == exact[~finite]).all(), text
    difference = np.subtract(shown, exact, where=finite, out=np.zeros(shown.shape))
    assert (np.abs(difference) <= tolerance).all(), f"{text}: {exact}"


def label(page, n):
    return f"{n + 1}" + (f" ({page.tokens[n]})" if page.tokens else "")


def places(browser, name, query=None):
    """(row, column, cell) of a table's cells that have a number, in rows: of a large one, some. Of steps 4 to 7, q."""
    which = "" if query is None else f"[data-q='{query}']"
    table = browser.all(f"section table[data-m='{name}']{which}")[-1]
    rows, columns = ([*map(int, (table.get_attribute(f"data-{axis}") or "").split())] for axis in ("rows", "cols"))
    size = browser.run(
        "const b = arguments[0].tBodies[0].rows; return [b.length, b[0].querySelectorAll('td').length]", table
    )
    picked = [sorted({n % count for n in SHOWN}) if count == 10 else range(count) for count in size]
    for row in picked[0]:
        for column in picked[1]:
            place = (rows[row] if rows else row), (columns[column] if columns else column)
            if min(place) >= 0:  # not in the gap
                yield place, browser.cell(table, row, column)


def in_rows(name, place):
    return place[::-1] if name == "column" else place


@pytest.fixture(params=NAMES)
def hovered(request, browser, pages):
    """A page in which to hover: its name, what it holds, and what is right."""
    page = pages[request.param]
    browser.open(page.path)
    return request.param, page, Exact(page, causal="causal" in request.param)


# What is to be seen


@every_look
@every_page
def test_every_step_has_a_heading_that_is_seen(browser, pages, pictures, name, look):
    browser.look(**LOOKS[look])
    browser.open(pages[name].path)
    headings = browser.all("h3")
    assert [heading.text[:2] for heading in headings] == [f"{n}." for n in range(1, 9)]
    assert all(heading.is_displayed() and heading.size["height"] >= 16 for heading in headings)
    browser.save_picture(f"{name}-{look}")


@every_look
@every_page
def test_no_page_is_wider_than_the_screen(browser, pages, name, look):
    browser.look(**LOOKS[look])
    browser.open(pages[name].path)
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    assert room == (360 if "narrow" in look else room)


@pytest.mark.parametrize("name", ["chinese", "64-tokens"])
def test_a_token_stays_on_one_line_beside_its_row(browser, pages, name):
    """Chinese tokens could be broken anywhere."""
    browser.look(narrow=True)
    browser.open(pages[name].path)
    heights = browser.run("return [...document.querySelectorAll('tbody th')].map(e => e.getClientRects()[0].height)")
    assert len(heights) > 10
    assert max(heights) < 30


@every_page
def test_all_is_readable_without_scripts(browser, pages, name):
    browser.look(scripts=False)
    browser.open(pages[name].path)
    assert len([heading for heading in browser.all("h3") if heading.is_displayed()]) == 8
    table = browser.all("table[data-m='outputs']")[-1]
    assert_shown(
        table.find_element("css selector", "td").text, *Exact(pages[name], "causal" in name).of("outputs", 0, 0)
    )
    assert browser.hover(table.find_element("css selector", "td")) is None


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("name", ["chinese", "64-tokens"])
def test_all_text_stands_out_from_its_ground(browser, pages, name, look):
    """By the 4.5 : 1 that accessibility guidelines ask for text of this size."""
    browser.look(**LOOKS[look])
    browser.open(pages[name].path)
    browser.hover(browser.all("table[data-m='weights'] td")[0])
    found = browser.run(CONTRASTS)
    assert {"TD", "TH", "PRE", "P", "H3", "DIV"} <= {tag for tag, _, _ in found}
    assert [line for line in found if line[2] < 4.5] == []


CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function rgba(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const d = canvas.getImageData(0, 0, 1, 1).data;
  return [d[0], d[1], d[2], d[3] / 255];
}
const over = (top, low) => [0, 1, 2].map(n => top[n] * top[3] + low[n] * (1 - top[3])).concat(1);
function ground(element) {
  if (!element) return rgba(matchMedia("(prefers-color-scheme:dark)").matches ? "#121212" : "#ffffff");
  const style = getComputedStyle(element);
  let colour = over(rgba(style.backgroundColor), ground(element.parentElement));
  const heat = style.backgroundImage.match(/rgba?\\([^)]*\\)/);
  return heat ? over(rgba(heat[0]), colour) : colour;
}
function light(colour) {
  const [r, g, b] = colour.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
return [...document.querySelectorAll(".pyattn *")].filter(e => !["STYLE", "SCRIPT"].includes(e.tagName) &&
  [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
  const pair = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort((a, b) => b - a);
  return [e.tagName, e.textContent.slice(0, 20), (pair[0] + 0.05) / (pair[1] + 0.05)];
});
"""


# What the mouse brings


@pytest.mark.parametrize("kind", ["query", "key", "value"])
def test_hovering_over_what_is_derived_shows_its_products(browser, hovered, kind):
    name, page, exact = hovered
    x, weight = page.matrices[0], page.matrices[("query", "key", "value").index(kind) + 1]
    field = {"query": "queries"}.get(kind, f"{kind}s")
    for place, cell in places(browser, field):
        i, j = in_rows(name, place)
        head, inputs, weights, total = browser.hover(cell).splitlines()
        assert head == f"{kind} {label(page, i)}, number {j + 1}"
        assert_shown(inputs, x[i, FIRST], FLOAT32 * np.abs(x[i, FIRST]))
        assert weights.startswith(f"{'row' if name == 'column' else 'column'} {j + 1} of w_{kind} [")
        assert_shown(weights.partition("[")[2], weight[FIRST, j], FLOAT32 * np.abs(weight[FIRST, j]))
        pairs = [(vector, FLOAT32 * np.abs(vector)) for vector in (x[i], weight[:, j])]
        assert_products(total, *pairs, exact.of(field, i, j))


def test_hovering_over_a_score_shows_its_products(browser, hovered):
    name, page, exact = hovered
    for place, cell in places(browser, "scores"):
        i, j = in_rows(name, place)
        head, *lines = browser.hover(cell).splitlines()
        assert head == f"score of query {label(page, i)} and key {label(page, j)}"
        if exact.scores[i, j] == -np.inf:
            assert lines == ["hidden by the mask = -inf"]
            continue
        query, key, product = lines
        assert_shown(query, *exact.of("queries", i, FIRST))
        assert_shown(key, *exact.of("keys", j, FIRST))
        assert_products(product, exact.of("queries", i), exact.of("keys", j), exact.of("scores", i, j), page.scale)


def assert_products(text, first, second, result, scale=1.0):
    """'a×b + c×d = e', of which six products at most are shown."""
    terms, _, total = text.rpartition(" = ")
    assert_shown(total, *result)
    if scale != 1:
        assert terms.startswith(f"{scale} × (")
        terms = terms.removeprefix(f"{scale} × (")
    terms, _, more = terms.partition(" + ...")
    count = len(first[0])
    assert more.rstrip(")") == (f" ({count} terms" if count > 6 else "")
    assert_shown(terms, *(np.stack(pair, axis=1)[:6] for pair in zip(first, second, strict=True)))


def test_hovering_over_a_weight_shows_its_softmax(browser, hovered):
    name, page, exact = hovered
    for place, cell in places(browser, "weights"):
        i, j = in_rows(name, place)
        assert_weight(browser.hover(cell), page, exact, i, j)


def assert_weight(tip, page, exact, i, j):
    head, scores, formula = tip.splitlines()
    assert head == f"weight of key {label(page, j)} for query {label(page, i)}"
    assert_shown(scores, *exact.of("scores", i, FIRST))
    fraction, _, weight = formula.rpartition(" = ")
    assert_shown(weight, *exact.of("weights", i, j))
    seen = np.isfinite(exact.scores[i])
    if not seen[j]:
        assert fraction == "hidden by the mask"
        return
    above, _, below = fraction.partition(" / ")
    assert_shown(above, *exact.of("scores", i, j))
    assert_shown(below.partition(" + ...")[0], *exact.of("scores", i, np.flatnonzero(seen)[:6]))


def test_hovering_over_an_output_shows_its_sum(browser, hovered):
    name, page, exact = hovered
    for place, cell in places(browser, "outputs"):
        i, j = in_rows(name, place)
        head, weights, values, total = browser.hover(cell).splitlines()
        assert head == f"output {label(page, i)}, number {j + 1}"
        assert_shown(weights, *exact.of("weights", i, FIRST))
        assert values.startswith(f"{'row' if name == 'column' else 'column'} {j + 1} of values [")
        assert_shown(values.partition("[")[2], *exact.of("values", FIRST, j))
        assert_products(total, exact.of("weights", i), exact.of("values", slice(None), j), exact.of("outputs", i, j))


def test_hovering_over_a_weighted_value_shows_its_product(browser, hovered):
    name, page, exact = hovered
    for place, cell in places(browser, "weighted_values"):
        key, j = in_rows(name, place)
        head, product = browser.hover(cell).splitlines()
        assert head == f"weighted value of key {label(page, key)} for query {label(page, 0)}, number {j + 1}"
        (weight, weight_moved), (value, value_moved) = exact.of("weights", 0, key), exact.of("values", key, j)
        moved = [weight_moved, value_moved, weight_moved * abs(value) + weight * value_moved]
        assert_shown(product, [weight, value, weight * value], moved)


@pytest.mark.parametrize("name", ["64-tokens", "64-causal"])
def test_hovering_over_the_heat_map_shows_the_weight_of_a_pixel(browser, pages, name):
    page = pages[name]
    exact = Exact(page, causal=name == "64-causal")
    browser.open(page.path)
    (image,) = browser.all("section img")
    side = image.size["width"] / 64
    for i, j in ((0, 0), (40, 3), (63, 63), (63, 0), (12, 50)):
        right, down = (round((n + 0.5 - 32) * side) for n in (j, i))
        assert_weight(browser.hover(image, right, down), page, exact, i, j)


def test_what_a_number_is_made_of_is_marked_and_the_mark_goes_with_the_mouse(browser, pages):
    browser.open(pages["article"].path)
    assert browser.hover(places_of(browser, "scores")[5]) is not None  # query 2, key 3
    found = browser.all("section[data-step='3'] .pa-from, section[data-step='4'] .pa-from")
    marked = [browser.run(WHERE, cell) for cell in found]
    queries = [["queries", 1, n] for n in range(3)]  # of step 3: step 4 reads another query
    keys = [["keys", 2, n] for n in range(3)]
    assert sorted(marked) == sorted([*queries, *keys, *keys, ["scale", 0, 0], ["visible", 1, 2]])
    assert browser.hover(browser.all("h1")[0]) is None
    assert browser.all(".pa-from, .pa-here") == []


WHERE = "const c = arguments[0]; return [c.closest('table').dataset.m, c.parentNode.rowIndex, c.cellIndex]"


def places_of(browser, name):
    return browser.all(f"section:last-of-type table[data-m='{name}'] td")


@every_look
@pytest.mark.parametrize("name", ["chinese", "64-tokens"])
def test_what_pops_up_stays_on_the_screen(browser, pages, name, look):
    browser.look(**LOOKS[look])
    browser.open(pages[name].path)
    for field in ("x", "keys", "scores", "weights", "outputs"):
        cells = places_of(browser, field) or browser.all(f"table[data-m='{field}'] td")
        for cell in (cells[0], cells[-1]):
            assert browser.hover(cell) is not None
            box = browser.run("return document.querySelector('.pa-tip').getBoundingClientRect().toJSON()")
            room = browser.run("return [innerWidth, innerHeight]")
            assert 0 <= box["left"] < box["right"] <= room[0]
            assert 0 <= box["top"] < box["bottom"] <= room[1]
    browser.save_picture(f"{name}-{look}-hover")


@pytest.mark.parametrize("dark", ['data-jp-theme-light="false"', 'data-theme="dark"'])
def test_one_output_in_two_views_explains_itself_in_both(browser, pages, tmp_path, dark):
    """As a notebook shows it; the second on a dark ground, as Jupyter or a site of documentation names it."""
    fragment = pages["article"].trace._repr_html_()
    path = tmp_path / "notebook.html"
    head = '<!DOCTYPE html><meta charset="utf-8">'
    path.write_text(f"{head}<div>{fragment}</div><div {dark}>{fragment}</div>", encoding="utf-8")
    browser.open(path)
    views = browser.all(".pyattn")
    assert len(views) == 2
    for view in views:
        cell = view.find_elements("css selector", "table[data-m='scores'] td")[0]
        assert browser.hover(cell).endswith("1×0 + 0×1 + 2×1 = 2")
    grounds = [view.value_of_css_property("background-color") for view in views]
    assert grounds == ["rgba(255, 255, 255, 1)", "rgba(22, 24, 28, 1)"]
    browser.save_picture("notebook")
