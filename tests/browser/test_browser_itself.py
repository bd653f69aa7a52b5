"""The tests of this folder can fail: what a page does wrong reaches them."""

from __future__ import annotations

import driving
import pytest
from selenium.webdriver.support.ui import WebDriverWait


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("<script>nothing.there()</script>", "nothing is not defined"),
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>console.warn('hm')</script>", "hm"),
        ("<img src='https://example.org/a.png'>", "https://example.org/a.png"),
        ("<script>setTimeout(() => fetch('https://example.org/b'))</script>", "https://example.org/b"),
    ],
)
def test_what_a_page_does_wrong_is_seen(chromium, pictures, tmp_path, wrong, complaint):
    (tmp_path / "page.html").write_text(f'<!DOCTYPE html><meta charset="utf-8">{wrong}', encoding="utf-8")
    browser = driving.Browser(chromium, pictures)
    browser.open(tmp_path / "page.html")
    WebDriverWait(chromium, 10).until(lambda _: any(complaint in line for line in browser.complaints()))


def test_a_page_that_does_nothing_wrong_is_left_alone(browser, tmp_path):
    (tmp_path / "page.html").write_text('<!DOCTYPE html><meta charset="utf-8"><p>well', encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.complaints() == []


def test_scripts_can_be_switched_off_and_on(browser, tmp_path):
    (tmp_path / "page.html").write_text(
        "<!DOCTYPE html><p>off<script>document.querySelector('p').append('on')</script>"
    )
    words = []
    for scripts in (False, True):
        browser.look(scripts=scripts)
        browser.open(tmp_path / "page.html")
        words.append(browser.all("p")[0].text)
    assert words == ["off", "offon"]
