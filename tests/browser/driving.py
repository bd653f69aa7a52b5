"""A headless chromium that opens files of this machine, moves a mouse over them, and keeps what it complains about."""

from __future__ import annotations

import base64
import json
import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

OPTIONS = (
    "--headless=new",
    "--window-size=1200,900",
    "--force-device-scale-factor=1",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere
)
MOST_PIXELS = 6000  # of a screenshot's height


def start():
    """The system's own chromium and driver: selenium must not look for others on the network."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if None in programs.values():
        pytest.fail(f"{programs}: apt install chromium chromium-driver", pytrace=False)
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for option in (*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])):  # root has none
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))


class Browser:
    """One page at a time, in a look of its own."""

    def __init__(self, driver, pictures):
        self.driver, self.pictures = driver, pictures
        self.look()
        driver.get("about:blank")
        self.complaints()  # the page before has had its say

    def look(self, *, dark=False, narrow=False, scripts=True, width=None):
        """How the next page is opened: the person's colour scheme, a phone's screen, scripts off, so many pixels."""
        command = self.driver.execute_cdp_cmd
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        command("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        if narrow or width:
            width = width or 360
            screen = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500}
            command("Emulation.setDeviceMetricsOverride", screen)
        else:
            command("Emulation.clearDeviceMetricsOverride", {})

    def open(self, path):
        self.driver.get(path.as_uri())

    def complaints(self):
        """Messages of the console, and requests for anything outside the file; both are then forgotten."""
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return said + [url for url in urls if not url.startswith(("file:", "data:", "about:"))]

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def hover(self, element, right=0, down=0):
        """Move the mouse onto an element, so far from its middle; return what pops up, or None."""
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", element)
        ActionChains(self.driver, duration=0).move_to_element_with_offset(element, right, down).perform()
        tips = self.all(".pa-tip")
        assert len(tips) <= 1
        return tips[0].text if tips else None

    def cell(self, table, row, column):
        """Of a table as it is shown."""
        return table.find_elements(By.CSS_SELECTOR, "tbody tr")[row].find_elements(By.TAG_NAME, "td")[column]

    def save_picture(self, name):
        """All of the page, or a great deal of it."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], MOST_PIXELS), "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        (self.pictures / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
