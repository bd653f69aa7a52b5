"""`StepsAnimation`: frames played in a notebook, or saved as a GIF or an HTML page."""

from __future__ import annotations

import html
import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure
from matplotlib.typing import ColorType
from PIL import Image  # a dependency of matplotlib

from pyattn.plot.quantising import quantise

__all__ = ["StepsAnimation"]

_MAX_HTML_BYTES = 950_000
"""Limit for all frames of an HTML page together."""

_PNG_QUALITIES = (None, 72, 50, 36, 24, 16)
"""Dots per inch, tried in this order until a page is small enough; None: the figure's own."""

_PNG_COLOURS, _GIF_COLOURS = 80, 256


class StepsAnimation(FuncAnimation):
    """An animation of the steps of attention or decoding, made by `animate`.

    Parameters
    ----------
    figure : Figure
        The figure; it is redrawn for each frame.
    draw : callable
        Called with the index of a frame, to draw it.
    captions : list of str
        A description of each frame.
    interval : float
        Milliseconds per frame.
    title : str
        Title of an HTML page.
    colours : sequence of colours
        Colours that a file with few colours keeps exactly. Default: (), the most frequent ones.
    """

    def __init__(
        self,
        figure: Figure,
        draw: Any,
        captions: list[str],
        interval: float,
        title: str,
        colours: Sequence[ColorType] = (),
    ) -> None:
        self.captions, self.title, self._colours = captions, title, colours
        self._figure, self._draw, self._milliseconds = figure, draw, interval
        super().__init__(figure, draw, frames=len(captions), interval=interval, init_func=list, blit=False)

    def __repr__(self) -> str:
        """Return the number of frames in one line."""
        return f"<{type(self).__name__} of {len(self.captions)} frames>"

    def save(self, filename: str | Path, writer: Any = None, **options: Any) -> None:
        """Save as a GIF, a self-contained HTML file, or another format of matplotlib.

        Further options are passed on to `matplotlib.animation.Animation.save`.

        Parameters
        ----------
        filename : str or Path
            The ending sets the format: .gif, .html or .htm, or another one for which matplotlib has a writer.
        writer : matplotlib.animation.AbstractMovieWriter or str, optional
            Default: None, Pillow for a GIF, matplotlib's default for other formats.
        """
        ending = Path(filename).suffix.lower()
        if writer is None and ending in (".html", ".htm"):
            Path(filename).write_text(self.to_html(), encoding="utf-8")
            return
        if writer is None and ending == ".gif":
            writer = _GifWriter(1000 / self._milliseconds, self._colours)
        super().save(filename, writer=writer, **options)

    def to_html(self) -> str:
        """Return an HTML page that plays the frames.

        It begins with the finished result, and stays there for readers who prefer reduced motion.

        Without JavaScript it shows all frames below one another.

        Returns
        -------
        str
            A page with all pictures and scripts embedded: it works offline.
        """
        background = html.escape(_hex(self._figure.get_facecolor()))
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        head += f"<title>{html.escape(self.title)}</title>"
        body = f'<body style="margin:0;background:{background}">{self._repr_html_()}</body>'
        return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        style = "max-width:100%;display:block"
        images = "\n".join(
            f'<img style="{style}" alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
            for caption, picture in zip(self.captions, self._encode_frames(), strict=True)
        )
        return _PLAYER.replace("IMAGES", images).replace("INTERVAL", f"{self._milliseconds:.0f}")

    def _encode_frames(self) -> list[str]:
        """Encode each frame as a base64 PNG, all together below a megabyte if possible."""
        self._draw_was_started = True  # or matplotlib warns that the animation was never shown
        count = len(self.captions)
        for dpi in _PNG_QUALITIES[:-1]:
            # Three frames predict the size of all, so that hundreds are not drawn in vain.
            drawn = {at: self._encode_frame(at, dpi) for at in (0, count // 2, count - 1)}
            if sum(map(len, drawn.values())) / len(drawn) * count < _MAX_HTML_BYTES:
                pictures = [drawn.get(at) or self._encode_frame(at, dpi) for at in range(count)]
                if sum(map(len, pictures)) < _MAX_HTML_BYTES:
                    return pictures
        return [self._encode_frame(at, _PNG_QUALITIES[-1]) for at in range(count)]

    def _encode_frame(self, number: int, dpi: int | None) -> str:
        """Encode one frame as a PNG of few colours, which takes half the bytes and looks the same."""
        self._draw(number)
        drawn, small = io.BytesIO(), io.BytesIO()
        self._figure.savefig(drawn, format="png", dpi=dpi or self._figure.dpi)
        with Image.open(drawn) as image:
            quantise([image], self._colours, _PNG_COLOURS)[0].save(small, "png", optimize=True)
        return b64encode(small.getvalue()).decode()


class _GifWriter(PillowWriter):
    """Writes a GIF with one palette for all frames."""

    def __init__(self, fps: float, colours: Sequence[ColorType]) -> None:
        super().__init__(fps=fps)
        self._colours = colours

    def finish(self) -> None:
        """Write all frames to the file."""
        first, *others = quantise(self._frames, self._colours, _GIF_COLOURS)
        options: dict[str, Any] = {"duration": round(1000 / self.fps), "loop": 0, "optimize": False}
        first.save(self.outfile, save_all=True, append_images=others, **options)


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
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
})(document.currentScript.parentElement);
</script>
</div>"""


def _hex(colour: Any) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in tuple(colour)[:3])
