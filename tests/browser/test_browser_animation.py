"""The moving picture as one HTML file: it plays, stops, goes to and fro, and shows all of it without scripts."""

from __future__ import annotations

import time

import numpy as np
import pytest
from selenium.webdriver.support.ui import WebDriverWait

import pyattn

INTERVAL = 150  # milliseconds from frame to frame


@pytest.fixture(scope="module")
def animation(article):
    return pyattn.plot.animate(
        pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value"))), interval=INTERVAL
    )


@pytest.fixture(scope="module")
def page(animation, tmp_path_factory):
    path = tmp_path_factory.mktemp("animation") / "x.html"
    animation.save(path)
    return path


SHOWN = "return [...document.images].flatMap((image, n) => image.getClientRects().length ? [n] : [])"


RECORD = """
window.seen = [];
setInterval(() => {
  const frame = [...document.images].findIndex(image => image.getClientRects().length);
  if (frame !== seen[seen.length - 1]) seen.push(frame);
}, 10);
"""


def shown(browser):
    """The number of the only frame that is to be seen."""
    (frame,) = browser.run(SHOWN)
    return frame


def press(browser, label):
    (button,) = [button for button in browser.all("button") if button.text == label]
    button.click()


def test_it_plays_by_itself_and_begins_anew(browser, page, animation):
    browser.open(page)
    browser.run(RECORD)  # in the page, as the driver of a busy machine may miss frames
    count = len(animation.captions)
    seen = WebDriverWait(browser.driver, 30).until(
        lambda _: browser.run("return window.seen.length > arguments[0] && window.seen", count)
    )
    assert set(np.diff(seen) % count) == {1}


def test_every_frame_is_a_picture_with_words(browser, page, animation, pictures):
    browser.open(page)
    press(browser, "pause")
    for number in range(len(animation.captions)):
        while shown(browser) != number:
            press(browser, "▶")
        image = browser.all("img")[number]
        assert image.get_attribute("alt") == animation.captions[number]
        assert browser.run("return arguments[0].complete && arguments[0].naturalWidth > 300", image)
        browser.save_picture(f"animation-{number + 1:02}")


def test_pause_stops_it_and_play_goes_on(browser, page):
    browser.open(page)
    press(browser, "pause")
    stopped = shown(browser)
    time.sleep(3 * INTERVAL / 1000)
    assert shown(browser) == stopped
    press(browser, "play")
    WebDriverWait(browser.driver, 10).until(lambda _: shown(browser) != stopped)


def test_arrows_go_one_frame_and_stop_there(browser, page, animation):
    browser.open(page)
    press(browser, "pause")
    start, count = shown(browser), len(animation.captions)
    press(browser, "▶")
    assert shown(browser) == (start + 1) % count
    for _ in range(start + 2):
        press(browser, "◀")
    assert shown(browser) == count - 1
    time.sleep(3 * INTERVAL / 1000)
    assert shown(browser) == count - 1


def test_without_scripts_all_frames_stand_below_one_another(browser, page, animation):
    browser.look(scripts=False)
    browser.open(page)
    tops = [image.location["y"] for image in browser.all("img") if image.is_displayed()]
    assert len(tops) == len(animation.captions)
    assert (np.diff(tops) > 300).all()
    assert not any(button.is_displayed() for button in browser.all("button"))
    browser.save_picture("animation-without-scripts")


def test_on_a_phone_a_frame_is_as_wide_as_the_screen(browser, page, pictures):
    browser.look(narrow=True)
    browser.open(page)
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    assert browser.all("img")[shown(browser)].size["width"] <= 360
    browser.save_picture("animation-narrow")
