"""A picture that moves: frames one after another, as a GIF, in a page or in a notebook."""

from __future__ import annotations

import html
import io
from base64 import b64encode
from pathlib import Path
from typing import Any

from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure
from PIL import Image  # matplotlib needs it, too

__all__ = ["StepsAnimation"]

_MOST_BYTES = 950_000
"""Of all pictures in an HTML page."""

_SAVING = ((None, 64), (72, 64), (50, 64), (50, 16), (36, 16), (24, 8))
"""Dots per inch, where None are the figure's own, and colours: what is tried until a page is small enough."""


class StepsAnimation(FuncAnimation):  # type: ignore[misc] # matplotlib is skipped, pyproject.toml
    """Steps of attention or of decoding, one after another; `animate` makes it.

    Parameters
    ----------
    figure : Figure
        Drawn anew for each frame.
    draw : callable
        Draws the frame of a number.
    captions : list of str
        What each frame shows, in words.
    interval : float
        Milliseconds from one frame to the next.
    title : str
        Of a page.
    """

    def __init__(self, figure: Figure, draw: Any, captions: list[str], interval: float, title: str) -> None:
        self.captions, self.title = captions, title
        self._figure, self._draw, self._milliseconds = figure, draw, interval
        super().__init__(figure, draw, frames=len(captions), interval=interval, init_func=list, blit=False)

    def __repr__(self) -> str:
        """How long it is: what a notebook shows beside it."""
        return f"<{type(self).__name__} of {len(self.captions)} frames>"

    def save(self, filename: str | Path, writer: Any = None, **options: Any) -> None:
        """Save as a GIF, or as one HTML file with everything in it; in other formats as matplotlib does.

        More options are those of `matplotlib.animation.Animation.save`.

        Parameters
        ----------
        filename : str or Path
            Its ending says the format: .gif, .html or .htm, or whatever matplotlib finds a writer for.
        writer : matplotlib.animation.AbstractMovieWriter or str, optional
            Default: None, Pillow for a GIF.
        """
        ending = Path(filename).suffix.lower()
        if writer is None and ending in (".html", ".htm"):
            Path(filename).write_text(self.to_html(), encoding="utf-8")
            return
        if writer is None and ending == ".gif":
            writer = PillowWriter(fps=1000 / self._milliseconds)
        super().save(filename, writer=writer, **options)

    def to_html(self) -> str:
        """Give a page that shows the frames, one by one or all below one another where scripts are off.

        Returns
        -------
        str
            HTML with pictures and script in it: it needs no network.
        """
        ground = html.escape(_hex(self._figure.get_facecolor()))
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        head += f"<title>{html.escape(self.title)}</title>"
        body = f'<body style="margin:0;background:{ground}">{self._repr_html_()}</body>'
        return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        style = "max-width:100%;display:block"
        images = "\n".join(
            f'<img style="{style}" alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
            for caption, picture in zip(self.captions, self._pictures(), strict=True)
        )
        return _PLAYER.replace("IMAGES", images).replace("INTERVAL", f"{self._milliseconds:.0f}")

    def _pictures(self) -> list[str]:
        """Draw each frame as a PNG in base64, together less than a megabyte."""
        self._draw_was_started = True  # else matplotlib warns that nothing was ever shown
        count = len(self.captions)
        for saving in _SAVING[:-1]:
            # Three frames tell how large all will be, so that hundreds are not drawn for nothing.
            some = [len(self._picture(at, *saving)) for at in (0, count // 2, count - 1)]
            if sum(some) / len(some) * count < _MOST_BYTES:
                pictures = [self._picture(at, *saving) for at in range(count)]
                if sum(map(len, pictures)) < _MOST_BYTES:
                    return pictures
        return [self._picture(at, *_SAVING[-1]) for at in range(count)]

    def _picture(self, number: int, dpi: int | None, colours: int) -> str:
        """Of few colours: half the bytes, and no difference to be seen."""
        self._draw(number)
        drawn, small = io.BytesIO(), io.BytesIO()
        self._figure.savefig(drawn, format="png", dpi=dpi or self._figure.dpi)
        with Image.open(drawn) as image:
            image.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        return b64encode(small.getvalue()).decode()


_PLAYER = """<div>
<p style="margin:0.3em;display:none">
<button>◀</button> <button>pause</button> <button>▶</button>
</p>
IMAGES
<script>
(function (player) {
  var images = player.querySelectorAll("img"), buttons = player.querySelectorAll("button"), at = 0, timer = null;
  function show(to) {
    at = (to + images.length) % images.length;
    images.forEach(function (image, i) { image.style.display = i === at ? "block" : "none"; });
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(function () { show(at + 1); }, INTERVAL) : null;
    buttons[1].textContent = on ? "pause" : "play";
  }
  buttons[0].onclick = function () { play(false); show(at - 1); };
  buttons[1].onclick = function () { play(timer === null); };
  buttons[2].onclick = function () { play(false); show(at + 1); };
  player.querySelector("p").style.display = "block";
  show(0);
  play(true);
})(document.currentScript.parentElement);
</script>
</div>"""


def _hex(colour: Any) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in tuple(colour)[:3])
