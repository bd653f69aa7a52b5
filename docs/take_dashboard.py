"""Takes the pictures of dask's dashboard in docs/pictures/ anew: python docs/take_dashboard.py, on an idle machine.

Needs dask, bokeh, selenium and Pillow. On Debian: apt install chromium chromium-driver.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from pyattn.interop.dask import attention

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
from attention_on_a_cluster import CHUNK, DIM, HEADS, TOKENS, read  # noqa: E402

PAGE = {"width": 1080, "height": 440, "deviceScaleFactor": 1, "mobile": False}


def visit(link: str) -> np.ndarray:
    """Take a screenshot of a page in the system's own chromium, without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in ("headless=new", *(["no-sandbox"] if os.geteuid() == 0 else [])):  # root has none
        options.add_argument(f"--{option}")
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PAGE)
    driver.get(link)
    time.sleep(5)  # until all is drawn
    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as image:
        pixels = np.asarray(image.convert("RGB"))
    driver.quit()
    return pixels


def save(pixels: np.ndarray, name: str) -> None:
    """Write a picture of 256 colours."""
    picture = Image.fromarray(pixels).quantize(256, dither=Image.Dither.NONE)
    picture.save(HERE / "pictures" / f"{name}.png", optimize=True)


def darkened(pixels: np.ndarray) -> np.ndarray:
    """The same hues, with light for dark; black becomes the dark pages' grey."""
    pixels = pixels.astype(np.int16)
    pixels += 255 - pixels.max(axis=-1, keepdims=True) - pixels.min(axis=-1, keepdims=True)
    return (19 + pixels * (236 / 255)).astype(np.uint8)


def main() -> None:
    chunks = ((1,), (HEADS,), (CHUNK,) * (TOKENS // CHUNK), (DIM,))
    query, key, value = (da.map_blocks(read, seed, chunks=chunks, dtype=np.float32) for seed in range(3))
    output = attention(query, key, value, is_causal=True)
    with LocalCluster(n_workers=4, threads_per_worker=1) as cluster, Client(cluster) as client:
        tasks = client.dashboard_link.replace("status", "individual-task-stream")
        visit(tasks)  # dask keeps what this page shows from the first visit on
        da.sqrt((output**2).sum(axis=-1)).compute()
        pixels = visit(tasks)
    save(pixels, "cluster")
    save(darkened(pixels), "cluster-dark")


if __name__ == "__main__":
    main()
