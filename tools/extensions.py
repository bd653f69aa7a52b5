"""Compiles and links the extension for macOS and Windows, for tools/targets.py; nothing here can run it.

Python's headers are this machine's, but for pyconfig.h on Windows, which the source of Debian's Python has; in what the
extension sees, that of macOS differs in long double alone. NumPy's headers are those of its wheels. Python's names on
Windows are those that its headers declare, and on macOS none is looked for: the link proves that the names of the core
and of the system are there.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

import debian
from debian import PYTHON, ROOT, run

# For each of zig's targets, where NumPy's wheels are for.
WHEELS = {
    "x86_64-macos": ("macosx_14_0_x86_64", "macosx_10_13_x86_64", "macosx_10_9_x86_64"),
    "aarch64-macos": ("macosx_14_0_arm64", "macosx_11_0_arm64"),
    "x86_64-windows-gnu": ("win_amd64",),
}


def gather_headers(target: str, folder: Path) -> None:
    """Put Python's and NumPy's headers for a target into a folder, as `python` and below `numpy`."""
    shutil.copytree(sysconfig.get_path("include"), folder / "python")
    if "windows" in target:
        with tarfile.open(debian.source(PYTHON, folder)) as archive:
            for member in archive:
                if re.search(r"/PC/pyconfig\.h(\.in)?$", member.name):  # .in since 3.13
                    (folder / "python" / "pyconfig.h").write_bytes(archive.extractfile(member).read())
    else:
        shutil.copy(sysconfig.get_config_h_filename(), folder / "python")
    platforms = (f"--platform={name}" for name in WHEELS[target])
    chosen = ("--quiet", "--no-deps", "--only-binary=:all:", *platforms, "--dest", folder)
    run(sys.executable, "-m", "pip", "download", *chosen, "numpy")
    (wheel,) = folder.glob("numpy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/include/" in name])


def names_of_python(headers: Path) -> str:
    """Return the names that headers of Python declare, in the form that makes an import library."""
    lines = [f"LIBRARY {PYTHON.replace('.', '')}.dll", "EXPORTS"]
    for path in sorted(headers.rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        lines += re.findall(r"\bPyAPI_FUNC\([^()]*\)\s*(\w+)", text)
        lines += re.findall(r"\b_Py\w+_SizeT\b", text)  # what PY_SSIZE_T_CLEAN makes of some names
        lines += [f"{name} DATA" for name in re.findall(r"\bPyAPI_DATA\([^()]*\)\s*(\w+)", text)]
    return "\n".join(dict.fromkeys(lines))


def build(target: str, zig: list[str], core: Path, optimisation: str) -> str:
    """Compile csrc/python for a target, and link it with the core's objects below a folder; say how far that went."""
    compiler = [*zig, "cc", "-target", target]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            gather_headers(target, folder)
        except (debian.CommandError, OSError) as error:
            return f"SKIPPED: no headers ({str(error).splitlines()[-1]})"
        options = ["-std=gnu11", optimisation, "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
        options.append('-DPYATTN_VERSION="0"')
        options += [f"-I{ROOT}/csrc/{room}" for room in ("include", "core", "kernels", "system")]
        options += [f"-I{folder}/python", f"-I{folder}/numpy/_core/include"]
        objects = [path for room in ("core", "kernels", "system") for path in sorted((core / room).glob("*.o"))]
        for source in sorted((ROOT / "csrc" / "python").glob("*.c")):
            objects.append(folder / f"{source.stem}.o")
            run(*compiler, *options, "-c", source, "-o", objects[-1])
        if "windows" in target:
            (folder / "python.def").write_text(names_of_python(folder / "python"), encoding="utf-8")
            run(*zig, "dlltool", "-m", "i386:x86-64", "-d", folder / "python.def", "-l", folder / "python.lib")
            python = [folder / "python.lib"]
        else:
            python = ["-undefined", "dynamic_lookup"]
        run(*compiler, "-shared", "-o", folder / "_core", *objects, *python)
    return "compiled and linked, not run"
