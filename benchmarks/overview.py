"""One chart of twelve telling cases, in light and dark, from the results of the grid.

python -m benchmarks --threads 1 --only "$(python -m benchmarks.overview --pattern)"
python -m benchmarks.overview
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.picture import COLOURS

CASES = {
    "tiny 1,1,3,3,3": "worked example, 3 tokens",
    "prefill 1,12,128,128,64": "128 tokens, 12 heads of 64",
    "prefill 1,12,512,512,64": "512 tokens, 12 heads of 64",
    "prefill 1,12,512,512,64 causal": "512 tokens, causal mask",
    "bool mask 2,12,512,512,64": "2 x 512 tokens, bool mask",
    "float64 1,12,512,512,64": "512 tokens, float64",
    "prefill 1,8,4096,4096,64": "4,096 tokens, 8 heads of 64",
    "ragged 1,8,512,512,256": "512 tokens, 8 heads of 256",
    "decode 1,32,1,4096,128": "1 token, KV cache of 4,096",
    "mha 8,128,768,12": "attention module, 8 x 128 tokens",
    "encoder layer 1,128,768,12,3072": "encoder layer, 128 tokens",
    "linear 1,768,768": "linear layer, 1 row",
}
"""Names of the grid, and what the chart calls them."""
PEERS = {"torch": ("PyTorch", "o"), "onnxruntime": ("ONNX Runtime", "s"), "jax": ("JAX", "D"), "numpy": ("NumPy", "^")}
SHADES = {
    "": {"ink": "#1c1e21", "soft": "#5a626d", "line": "#d5d9df", "paper": "#ffffff", **COLOURS},
    "-dark": {"ink": "#e8e8e8", "soft": "#a6adb8", "line": "#3a3f47", "paper": "#0d1117",
              "torch": "#ff8a3d", "onnxruntime": "#5bb0f0", "jax": "#2fc79a", "numpy": "#b0b0b0"},
}  # fmt: skip
INCHES = (8.0, 6.0)
APART = 0.16
"""By how much of a row's height the marks of two peers are apart, so that one never hides another."""
GENERATIONS = {"family 25, model 1": "Zen 3", "family 25, model 17": "Zen 4", "family 26, model 2": "Zen 5"}
"""AMD's names of its EPYC processors, whose names on a virtual machine tell no generation."""


def pattern() -> str:
    """The regular expression that takes the cases of the chart out of the grid."""
    return f"^({'|'.join(map(re.escape, CASES))})$"


def ratios(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """For each case, each peer's time / pyattn's with one thread."""
    figures = {result["name"]: result["figures"] for result in results["results"] if result["threads"] == 1}
    missing = [name for name in CASES if name not in figures]
    if missing:
        raise ValueError(f"the results lack {', '.join(missing)}: run python -m benchmarks --threads 1 for them")
    return {name: {peer: figures[name][peer] for peer in PEERS if peer in figures[name]} for name in CASES}


def about(facts: Mapping[str, Any]) -> str:
    """The processor, the instruction set and the versions, in two lines."""
    versions = facts["versions"]
    names = [f"{name} {versions[peer].partition('+')[0]}" for peer, (name, _) in PEERS.items()
             if versions[peer] != "MISSING"]  # fmt: skip
    processor, _, numbers = facts["processor"].rstrip(")").partition(" (")
    if numbers in GENERATIONS:
        processor += f" ({GENERATIONS[numbers]})"
    return f"{processor}, {facts['pyattn']['isa']['chosen']}, 1 thread, float32 unless named\n{', '.join(names)}"


def points(cases: Mapping[str, Mapping[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """For each peer, where its marks are: ratios, and rows with the peer's distance from their middle."""
    middle = (len(PEERS) - 1) / 2
    return {
        peer: [(found[peer], row + APART * (n - middle)) for row, found in enumerate(cases.values()) if peer in found]
        for n, peer in enumerate(PEERS)
    }


def draw(results: Mapping[str, Any], path: Path, shades: Mapping[str, str]) -> None:
    """Draw a row per case and a mark per peer: right of the line pyattn is faster."""
    importlib.import_module("matplotlib").use("Agg")  # no screen is needed
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    cases = ratios(results)
    figure, axes = pyplot.subplots(figsize=INCHES, layout="constrained", facecolor=shades["paper"])
    axes.set_facecolor(shades["paper"])
    for peer, marks in points(cases).items():
        name, shape = PEERS[peer]
        if marks:
            axes.plot(*zip(*marks, strict=True), shape, color=shades[peer], label=name, markersize=6, clip_on=False)
    axes.axvline(1.0, color=shades["ink"], linewidth=1.2)
    for row in range(len(cases)):
        axes.axhline(row, color=shades["line"], linewidth=0.6, zorder=0)
    every = [ratio for found in cases.values() for ratio in found.values()]
    low, high = min(*every, 0.5) / 1.1, max(*every, 2.0) * 1.15
    axes.set(xscale="log", xlim=(low, high), ylim=(len(cases) - 0.4, -0.9))
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks], color=shades["ink"])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(cases)), CASES.values(), color=shades["ink"])
    axes.tick_params(length=0)
    axes.text(1.03, -0.85, "pyattn is faster \u2192", color=shades["soft"], fontsize=9, va="top")
    axes.text(0.97, -0.85, "\u2190 slower", color=shades["soft"], fontsize=9, va="top", ha="right")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title("Time of each library divided by the time of pyattn", color=shades["ink"], fontsize=11, loc="left")
    figure.supxlabel(about(results["machine"]), color=shades["soft"], fontsize=8)
    figure.legend(loc="outside upper center", ncols=len(PEERS), frameon=False, labelcolor=shades["ink"])
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=180)
    pyplot.close(figure)
    image: Any = importlib.import_module("PIL.Image")  # matplotlib brings it
    with image.open(drawn) as picture:
        picture.convert("RGB").quantize(64, dither=image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    """Draw both charts and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overview", description="The chart of README.")
    parser.add_argument("results", type=Path, nargs="?", default=Path("build/benchmarks/results.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="folder for speed.png, speed-dark.png")
    parser.add_argument("--pattern", action="store_true", help="print what --only of the grid takes, and stop")
    options = parser.parse_args()
    if options.pattern:
        print(pattern())
        return 0
    results = json.loads(options.results.read_text(encoding="utf-8"))
    options.out.mkdir(parents=True, exist_ok=True)
    for suffix, shades in SHADES.items():
        draw(results, options.out / f"speed{suffix}.png", shades)
    return 0


if __name__ == "__main__":
    sys.exit(main())
