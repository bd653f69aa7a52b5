"""The ratios as a picture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.run import Result

COLOURS = {"torch": "#d55e00", "onnxruntime": "#0072b2", "jax": "#009e73", "numpy": "#999999"}  # safe for all eyes
BAR_INCHES = 0.085


def draw(results: Sequence[Result], peers: Sequence[str], title: str, path: Path) -> bool:
    """Draw a panel per thread count, a row per case, a bar per peer. Returns False where matplotlib is missing.

    Parameters
    ----------
    results : sequence of Result
        Those that compare with no peer are left out.
    peers : sequence of str
        From top to bottom within a row; those that took no part are left out.
    title : str
        Names the machine.
    path : Path
        Where to write the PNG.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        return False
    matplotlib.use("Agg")  # no screen is needed
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    peers = [peer for peer in peers if any(peer in result.figures for result in results)]
    drawn = [result for result in results if any(peer in result.figures for peer in peers)]
    threads = sorted({result.threads for result in drawn})
    names = list(dict.fromkeys(result.name for result in drawn))
    if not names:
        return False
    ratios = [result.figures[peer] for result in drawn for peer in peers if peer in result.figures]
    height = max(2.0, 1.4 + len(names) * (len(peers) + 1.2) * BAR_INCHES)  # less leaves one row without room
    figure, panels = pyplot.subplots(
        1, len(threads), figsize=(4.2 + 3.8 * len(threads), height), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, count in zip(panels[0], threads, strict=True):
        _draw_panel(panel, {r.name: r for r in drawn if r.threads == count}, names, peers)
        panel.set_title(f"{count} thread{'s' * (count > 1)}", fontsize=10)
    panels[0][0].set_xlim(min(*ratios, 0.8) / 1.1, max(*ratios, 2.0) * 1.1)  # of all, for they share it
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(peers), frameon=False, fontsize=9)
    figure.suptitle(f"Time of each peer / time of pyattn: right of the line pyattn is faster\n{title}", fontsize=10)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def _draw_panel(panel: Any, results: dict[str, Result], names: Sequence[str], peers: Sequence[str]) -> None:
    thickness = 0.8 / len(peers)
    for index, peer in enumerate(peers):
        rows = [(row, results[name].figures[peer]) for row, name in enumerate(names)
                if name in results and peer in results[name].figures]  # fmt: skip
        places = [row + (index - (len(peers) - 1) / 2) * thickness for row, _ in rows]
        lengths = [ratio - 1.0 for _, ratio in rows]
        panel.barh(places, lengths, thickness, left=1.0, color=COLOURS.get(peer), label=peer)
    panel.axvline(1.0, color="black", linewidth=1.0)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
