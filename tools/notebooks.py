"""Runs the notebooks of docs/, and fails where a cell raises, warns or gives something else than is saved in it.

    python tools/notebooks.py [--save] [notebook ...]

Text is compared to the letter, pictures by being there. Two tags are for cells whose output depends on the machine:

    timing             the output is not compared
    varying-numbers    its words are compared, its numbers are not

--save writes what the run gives into the notebooks, and is how they are made.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

try:
    import matplotlib.font_manager  # noqa: F401  # makes its list of fonts, about which it would warn in a notebook
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from PIL import Image
except ImportError as missing:
    sys.exit(f"{missing}. Run `make notebooks`, or install the extra: pip install 'pyattn[notebooks]'")

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # for one cell
OPTIONS = {"coalesce_streams": True, "record_timing": False}  # the same text, whenever the kernel was heard of
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


class Shown(NamedTuple):
    """One output of a cell, as it is compared: its kind, and its text; of pictures and pages what they are called."""

    kind: str
    text: str


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run notebooks and compare what they give with what is saved.")
    parser.add_argument("--save", action="store_true", help="write what they give into them")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of docs/")
    options = parser.parse_args(arguments)
    failed = False
    for path in options.notebooks or sorted((ROOT / "docs").rglob("*.ipynb")):
        faults = run_and_save(path) if options.save else run_and_compare(path)
        print(f"{path.name}: {'FAILED' if faults else 'saved' if options.save else 'as saved'}", *faults, sep="\n")
        failed |= bool(faults)
    return int(failed)


def run_and_compare(path: Path) -> list[str]:
    """What is wrong, in words."""
    saved = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    return execute(fresh, path.parent) or differences(saved, fresh)


def run_and_save(path: Path) -> list[str]:
    """What is wrong, in words; the file is left alone then."""
    notebook = nbformat.read(path, as_version=4)
    faults = execute(notebook, path.parent)
    if not faults:
        notebook.metadata = nbformat.from_dict(METADATA)
        for data in (output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output):
            if "image/png" in data:
                data["image/png"] = shrink(data["image/png"])
        nbformat.write(notebook, path)
    return faults


def shrink(png: str) -> str:
    """Of 256 colours, which halves the file."""
    drawn = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(drawn, "png", optimize=True)
    return base64.b64encode(drawn.getvalue()).decode()


def execute(notebook: Any, folder: Path) -> list[str]:
    """Run all cells in a kernel of their own: it finds this checkout, no settings of IPython and no network."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []  # an empty cell would keep what is saved in it
    with tempfile.TemporaryDirectory() as settings:
        paths = [str(ROOT / "tools" / "offline"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "IPYTHONDIR": settings, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        place = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=place, **OPTIONS)
        manager = client.create_kernel_manager()  # speaks through files of this user: no port that others can reach
        manager.transport, manager.ip = "ipc", str(Path(settings, "socket"))
        try:
            client.execute(env=env)
        except CellExecutionError as error:
            stopped = [cell for cell in notebook.cells if any(is_error(output) for output in cell.get("outputs", ()))]
            return [f"  cell {stopped[-1].id} raised {error.ename}: {error.evalue}"]
        except (CellTimeoutError, DeadKernelError) as error:
            return [f"  {error}"]
    return [f"  cell {cell.id} warns:\n{warning}" for cell in notebook.cells for warning in warnings_of(cell)]


def warnings_of(cell: Any) -> list[str]:
    return [output.text for output in cell.get("outputs", ()) if output.get("name") == "stderr"]


def is_error(output: Any) -> bool:
    return output.output_type == "error"


def differences(saved: Any, fresh: Any) -> list[str]:
    """One piece of text for each cell that gives something else than was saved."""
    faults = []
    for before, after in zip(saved.cells, fresh.cells, strict=True):
        tags = before.metadata.get("tags", ())
        old, new = shown(before, tags), shown(after, tags)
        if old != new:
            diff = difflib.unified_diff(lines_of(old), lines_of(new), "saved", "run", lineterm="")
            faults.append("\n".join((f"  cell {before.id} gives something else than is saved:", *diff)))
    return faults


def lines_of(outputs: list[Shown]) -> list[str]:
    return [line for kind, text in outputs for line in (f"[{kind}]", *text.splitlines())]


def shown(cell: Any, tags: list[str]) -> list[Shown]:
    """What is compared of a cell."""
    outputs = [read(output) for output in cell.get("outputs", ())]
    if "timing" in tags:
        return [Shown(kind, "") for kind, _ in outputs]
    if "varying-numbers" in tags:
        return [Shown(kind, re.sub(r"[ \t]+", " ", NUMBER.sub("#", text))) for kind, text in outputs]
    return outputs


def read(output: Any) -> Shown:
    if output.output_type == "stream":
        return Shown(output.name, output.text)
    if is_error(output):
        return Shown("error", f"{output.ename}: {output.evalue}")
    data = output.data
    page = re.sub(r"pyattn-[0-9a-f]{12}", "pyattn-id", data.get("text/html", ""))  # drawn anew each time
    return Shown(" ".join(sorted(data)), data.get("text/plain", "") + page)


if __name__ == "__main__":
    sys.exit(main())
