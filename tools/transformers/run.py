"""Run the common model tests of transformers on plain and on accelerated models, and compare: make transformers.

They come from the library's own sdist on PyPI, of the version that is installed, and need no network of their own.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PLACE = ROOT / "build" / "transformers"
LEAST = 300  # tests that pass: fewer means that something else is wrong
HOW = {"plain": "", "accelerated": "eval", "accelerated for training": "training"}  # PYATTN_ACCELERATE of models.py
# What the common tests import from folders that the sdist lacks.
STUBS = {
    "exporters/test_export.py": "class ExportTesterMixin: pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin: pass\n",
}


def unpack() -> Path:
    """Return a folder with the tests of the installed version."""
    version = importlib.metadata.version("transformers")
    sdist, folder = PLACE / f"transformers-{version}.tar.gz", PLACE / version
    if not sdist.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--dest", str(PLACE), f"transformers=={version}"]
        subprocess.run(command, check=True)
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        tests = [m for m in archive.getmembers() if m.name.split("/")[1:2] == ["tests"] and m.name.endswith(".py")]
        for member in tests:
            path = folder.joinpath(*Path(member.name).parts[1:])
            path.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            path.write_bytes(content.read())
    for name, text in STUBS.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    (folder / "tests" / "__init__.py").touch()
    shutil.copy(HERE / "models.py", folder / "tests" / "test_models.py")
    return folder


def outcomes(folder: Path, accelerate: str) -> dict[str, str]:
    """Run the tests, and return the outcome of each."""
    report = folder / f"accelerate-{accelerate}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", f"--junitxml={report}"]
    command += ["-c", os.devnull, "--rootdir", str(folder)]  # without pyattn's settings
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYATTN_ACCELERATE": accelerate}
    subprocess.run([*command, "tests/test_models.py"], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"] = kinds[0] if kinds else "passed"
    return found


def main() -> int:
    """Print a table, and the tests that differ."""
    folder = unpack()
    results = {about: outcomes(folder, accelerate) for about, accelerate in HOW.items()}
    plain = results["plain"]
    print("| model | | passed | failed | skipped |\n|---|---|---:|---:|---:|")
    for name in sorted({test.partition(".")[0] for test in plain}):
        for about, found in results.items():
            counts = Counter(outcome for test, outcome in found.items() if test.startswith(f"{name}."))
            failed = counts["failure"] + counts["error"]
            print(f"| {name} | {about} | {counts['passed']} | {failed} | {counts['skipped']} |")
    differing = [
        f"{test}: {plain.get(test)}, {about} {found.get(test)}"
        for about, found in results.items()
        for test in sorted(plain.keys() | found.keys())
        if plain.get(test) != found.get(test)
    ]
    print(*differing, sep="\n")
    return 1 if differing or Counter(plain.values())["passed"] < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
