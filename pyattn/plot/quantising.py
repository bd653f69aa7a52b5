"""Pictures with few colours, of which the ones that mean something are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.typing import ColorType
from PIL import Image  # a dependency of matplotlib

from pyattn.plot.inputs import Array

__all__ = ["quantise"]

_MAX_ROUNDING = 1
"""Distance, of 255, of a drawn colour from the colour that was asked for, in each of red, green and blue."""

_MAX_COLOURS = 256
"""Colours of a palette: a pixel is one byte."""


def quantise(images: Sequence[Image.Image], keep: Sequence[ColorType], count: int) -> list[Image.Image]:
    """Reduce pictures to one palette of `count` colours, more if more are to be kept; frequent and far ones fill it."""
    # Pillow's own way averages similar colours: a colorbar would differ from its heat map.
    codes = [_encode(image) for image in images]
    found: dict[int, int] = {}
    for code in codes:
        for colour, pixels in zip(*(part.tolist() for part in np.unique(code, return_counts=True)), strict=True):
            found[colour] = found.get(colour, 0) + pixels
    colours = np.array(sorted(found))
    pixels = np.array([found[colour] for colour in colours.tolist()])
    asked = np.array([[round(255 * part) for part in to_rgb(colour)] for colour in keep]).reshape(-1, 3)
    every, kept = _decode(colours), np.zeros(len(colours), np.bool_)
    for colour in asked:  # only the drawn colour next to it: a photo has many more that are near
        distances = _distances(every, colour[np.newaxis], np.max)[:, 0]
        drawn = distances.argmin()
        kept[drawn] |= distances[drawn] <= _MAX_ROUNDING**2
    if kept.sum() > _MAX_COLOURS:
        raise ValueError(f"{kept.sum()} colours are to be kept, and a palette has {_MAX_COLOURS}: ask for fewer")
    order = np.lexsort((-pixels, ~kept))
    palette = _decode(colours[order[: max(int(kept.sum()), count * 3 // 4)]])
    palette = _add_farthest(palette, every, count)
    nearest = np.concatenate([_distances(part, palette, np.sum).argmin(axis=1) for part in _split(every)])
    return [_paint(nearest[np.searchsorted(colours, code)], palette) for code in codes]


def _add_farthest(palette: Array, colours: Array, count: int) -> Array:
    """Fill a palette with the colours that it is farthest from: thin letters are rare, and must not change colour."""
    far = np.concatenate([_distances(part, palette, np.sum).min(axis=1) for part in _split(colours)])
    added = [palette]
    for _ in range(count - len(palette)):
        farthest = colours[far.argmax()][np.newaxis]
        added.append(farthest)
        far = np.minimum(far, _distances(colours, farthest, np.sum)[:, 0])
    return np.concatenate(added)


def _split(colours: Array) -> list[Array]:
    """Split colours into parts: of all at once, distances take gigabytes."""
    return np.array_split(colours, len(colours) // 4096 + 1)


def _encode(image: Image.Image) -> Array:
    """Return a number for the colour of each pixel."""
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB"), dtype=np.int64), -1, 0)
    return np.asarray(red << 16 | green << 8 | blue)


def _decode(codes: Array) -> Array:
    """Return red, green and blue of each number, (n, 3)."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1)


def _distances(colours: Array, others: Array, join: Any) -> Array:
    """Measure colours against others, (n, m): the squares of the differences, joined."""
    return np.asarray(join((colours[:, np.newaxis] - others) ** 2, axis=-1))


def _paint(indices: Array, palette: Array) -> Image.Image:
    image = Image.fromarray(indices.astype(np.uint8)).convert("P")
    image.putpalette(palette.astype(np.uint8).tobytes())
    return image
