"""The page of pyattn.plot.flow: hovering, tapping and the keyboard show the lines of one token; buttons hide heads."""

from __future__ import annotations

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.pictures import draw_weights

import pyattn

TOKENS = ["[CLS]", "the", "animal", "it", "动物"]


@pytest.fixture(scope="module")
def weights():
    return draw_weights(3, 5, 5)


@pytest.fixture(scope="module")
def page(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("flow") / "flow.html"
    pyattn.plot.flow(weights, TOKENS, title="three heads").save_html(path)
    return path


SHOWN = """return [...document.querySelectorAll("line")].filter(line => getComputedStyle(line).display !== "none")
    .map(line => [line.dataset.h, line.dataset.q, line.dataset.k].map(Number))"""


def shown(browser):
    return {tuple(place) for place in browser.run(SHOWN)}


def lines_of(weights, **at):
    """(head, query, key) of the lines that are drawn, or of those of one query, key or some heads."""
    places = np.argwhere(weights >= weights.max() / 100)
    keep = [all(place["hqk".index(name)] in np.atleast_1d(n) for name, n in at.items()) for place in places]
    return {tuple(place) for place in places[keep].tolist()}


def note(browser):
    return browser.all("[role=status]")[0].text


def token(browser, side, at):
    return browser.all(f"[data-s={side}][data-n='{at}']")[0]


@pytest.mark.parametrize("side", ["q", "k"])
def test_hovering_over_a_token_shows_its_lines_alone(browser, page, weights, side):
    browser.open(page)
    assert shown(browser) == lines_of(weights)
    hint = note(browser)
    browser.hover(token(browser, side, 3))
    assert shown(browser) == lines_of(weights, **{side: 3})
    verb = {"q": "it attends to", "k": "it is attended to by"}[side]
    assert [line.split(": ")[1].startswith(verb) for line in note(browser).splitlines()] == [True] * 3
    browser.hover(browser.all("figcaption")[0])
    assert shown(browser) == lines_of(weights)
    assert note(browser) == hint


def test_the_keyboard_goes_from_token_to_token(browser, page, weights):
    browser.open(page)
    browser.all("button")[-1].send_keys(Keys.TAB)
    for at, key in ((0, Keys.TAB), (1, Keys.ARROW_DOWN), (2, Keys.ARROW_UP), (1, Keys.ESCAPE)):
        assert shown(browser) == lines_of(weights, q=at)
        ActionChains(browser.driver, duration=0).send_keys(key).perform()
    assert shown(browser) == lines_of(weights)


def test_buttons_hide_and_show_the_lines_of_a_head(browser, page, weights):
    browser.open(page)
    first, second, _ = browser.all("button")
    first.click()
    assert shown(browser) == lines_of(weights, h=[1, 2])
    browser.hover(token(browser, "q", 2))
    assert shown(browser) == lines_of(weights, h=[1, 2], q=2)
    assert [line[:7] for line in note(browser).splitlines()] == ["head 1:", "head 2:"]
    second.send_keys(Keys.SPACE)
    first.send_keys(Keys.ENTER)
    browser.hover(browser.all("figcaption")[0])
    assert shown(browser) == lines_of(weights, h=[0, 2])


def test_a_tap_keeps_the_lines_of_a_token(browser, page, weights):
    browser.look(narrow=True)
    browser.open(page)
    token(browser, "k", 1).click()
    assert shown(browser) == lines_of(weights, k=1)


@pytest.mark.parametrize("key", [Keys.ENTER, Keys.SPACE])
def test_the_focused_token_is_a_button(browser, page, weights, key):
    """While the mouse shows another token, its keys show its own."""
    browser.open(page)
    first, other = token(browser, "q", 0), token(browser, "k", 4)
    assert first.aria_role == "button"
    browser.run("arguments[0].focus()", first)
    browser.hover(other)
    assert shown(browser) == lines_of(weights, k=4)
    ActionChains(browser.driver).send_keys(key).perform()
    assert shown(browser) == lines_of(weights, q=0)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_it_fits_the_screen_in_the_reader_s_colours(browser, page, dark, narrow):
    browser.look(dark=dark, narrow=narrow)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    ground = browser.run("return getComputedStyle(document.querySelector('.pa-flow')).backgroundColor")
    assert (ground == "rgb(23, 23, 28)") == dark
    browser.hover(token(browser, "q", 2))
    browser.save_picture(f"flow-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}")


@pytest.mark.parametrize(
    ("theme", "dark", "ground"), [("light", None, 255), ("dark", None, 23), ("light", True, 23), ("dark", False, 255)]
)
def test_it_follows_the_theme_of_a_site_unless_dark_is_given(browser, weights, tmp_path, theme, dark, ground):
    path = tmp_path / "flow.html"
    pyattn.plot.flow(weights, TOKENS, dark=dark).save_html(path)
    browser.look(dark=theme == "light")
    browser.open(path)
    browser.run(f"document.documentElement.dataset.theme = '{theme}'")
    shown = browser.run("return getComputedStyle(document.querySelector('.pa-flow')).backgroundColor")
    assert shown.startswith(f"rgb({ground}, ")


def test_without_scripts_all_lines_are_shown(browser, page, weights):
    browser.look(scripts=False)
    browser.open(page)
    assert len(browser.all("line")) == len(lines_of(weights))
