"""Takes the screenshots of docs/pictures/ anew: python docs/take_screenshots.py. Needs chromium, and Pillow.

On Debian: apt install chromium. Nothing is fetched: the page is a file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import pyattn
from pyattn.tracing.article import W_KEY, W_QUERY, W_VALUE, X

PICTURES = Path(__file__).parent / "pictures"
WIDTH, HEIGHT, SCALE, MARGIN = 760, 2400, 2, 8  # high enough for the whole page
SCHEMES = {"": 1, "-dark": 0}  # as chromium numbers them

# Moves the mouse onto the second score of input 1. The title says where to cut the picture: from the step that shows
# the keys of that score, which is 4 or the one before, to the end of what pops up.
HOVER = """<script>
addEventListener("load", () => {
  const cell = document.querySelector("table[data-m=scores]").querySelectorAll("td")[1];
  cell.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
  const sections = document.querySelectorAll("section"), tip = document.querySelector(".pa-tip");
  const first = sections[3].querySelector("table[data-m=keys]") ? sections[3] : sections[2];
  const end = Math.max(tip.getBoundingClientRect().bottom, sections[3].getBoundingClientRect().bottom);
  document.title = "from " + first.getBoundingClientRect().top + " to " + end;
});
</script>"""


def chromium(*options: str) -> str:
    """Run the browser without a window; return what it prints."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("take_screenshots: chromium is missing: apt install chromium")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", *sandbox, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def take(page: Path, name: str, scheme: int) -> None:
    """Write one screenshot, of 256 colours."""
    options = (
        f"--window-size={WIDTH},{HEIGHT}",
        f"--force-device-scale-factor={SCALE}",
        f"--blink-settings=preferredColorScheme={scheme}",
    )
    cut = re.search(r"<title>from ([\d.]+) to ([\d.]+)</title>", chromium(*options, "--dump-dom", page.as_uri()))
    if cut is None:
        sys.exit("take_screenshots: no number of the page shows its products")
    top, bottom = SCALE * (float(cut[1]) - MARGIN), SCALE * (float(cut[2]) + MARGIN)
    picture = PICTURES / f"{name}.png"
    chromium(*options, f"--screenshot={picture}", page.as_uri())
    with Image.open(picture) as image:
        part = image.convert("RGB").crop((0, int(top), image.width, int(bottom)))
    part.quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    trace = pyattn.trace(X, W_QUERY, W_KEY, W_VALUE)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "trace.html"
        trace.save_html(page)
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{HOVER}</body>"), encoding="utf-8")
        for suffix, scheme in SCHEMES.items():
            take(page, f"trace-page{suffix}", scheme)


if __name__ == "__main__":
    main()
