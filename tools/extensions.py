"""Compiles and links the extension for macOS and Windows, for tools/targets.py; nothing here can run it.

Python's headers are this machine's. Only pyconfig.h differs: Windows' is taken from the source of Debian's Python, and
macOS gets this machine's, as its numbers have the same sizes. NumPy's headers are those of its wheels.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.version_info
# For each of zig's targets, where NumPy's wheels are for.
WHEELS = {
    "x86_64-macos": ("macosx_14_0_x86_64", "macosx_10_13_x86_64", "macosx_10_9_x86_64"),
    "aarch64-macos": ("macosx_14_0_arm64", "macosx_11_0_arm64"),
    "x86_64-windows-gnu": ("win_amd64",),
}
MACROS = {
    "PYATTN_VERSION": '"0"',
    "NPY_NO_DEPRECATED_API": "NPY_2_0_API_VERSION",
    "NPY_TARGET_VERSION": "NPY_2_0_API_VERSION",
}


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; a CalledProcessError has what it printed."""
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, cwd=cwd)


def take_windows_pyconfig(folder: Path) -> None:
    """Write pyconfig.h of Windows, from Debian's source package, into a folder."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "lists" / "partial").mkdir(parents=True)
        (work / "sources").mkdir()
        for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
            text = re.sub(r"^Types:.*", "Types: deb-src", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            (work / "sources" / path.name).write_text(text, encoding="utf-8")
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": work / "sources",
            "Dir::State::Lists": work / "lists",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
        run(*apt, "update")
        run(*apt, "source", "--tar-only", f"python{PYTHON.major}.{PYTHON.minor}", cwd=work)
        (source,) = work.glob("*.orig.tar.*")
        with tarfile.open(source) as archive:
            for member in archive:
                if re.search(r"/PC/pyconfig\.h(\.in)?$", member.name):  # .in since 3.13
                    (folder / "pyconfig.h").write_bytes(archive.extractfile(member).read())


def gather_headers(target: str, folder: Path) -> None:
    """Put Python's and NumPy's headers for a target into a folder, as `python` and below `numpy`."""
    shutil.copytree(sysconfig.get_path("include"), folder / "python")
    if "windows" in target:
        take_windows_pyconfig(folder / "python")
    else:
        shutil.copy(sysconfig.get_config_h_filename(), folder / "python")
    platforms = (f"--platform={name}" for name in WHEELS[target])
    chosen = ("--quiet", "--no-deps", "--only-binary=:all:", *platforms, "--dest", folder)
    run(sys.executable, "-m", "pip", "download", *chosen, "numpy")
    (wheel,) = folder.glob("numpy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/include/" in name])


def exports_of_python(headers: Path) -> str:
    """Return what Python's library on Windows exports, by its headers, in the form that makes an import library."""
    lines = [f"LIBRARY python{PYTHON.major}{PYTHON.minor}.dll", "EXPORTS"]
    for path in sorted(headers.rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        lines += re.findall(r"\bPyAPI_FUNC\([^()]*\)\s*(\w+)", text)
        lines += re.findall(r"\b_Py\w+_SizeT\b", text)  # what PY_SSIZE_T_CLEAN makes of some names
        lines += [f"{name} DATA" for name in re.findall(r"\bPyAPI_DATA\([^()]*\)\s*(\w+)", text)]
    return "\n".join(dict.fromkeys(lines))


def build(target: str, zig: list[str], core: Path) -> None:
    """Compile csrc/python for a target, and link it with the core's objects, which lie below a folder."""
    compiler = [*zig, "cc", "-target", target]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gather_headers(target, folder)
        options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
        options += [f"-D{name}={value}" for name, value in MACROS.items()]
        options += [f"-I{ROOT}/csrc/{room}" for room in ("include", "core", "kernels", "system")]
        options += [f"-I{folder}/python", f"-I{folder}/numpy/_core/include"]
        objects = [path for room in ("core", "kernels", "system") for path in sorted((core / room).glob("*.o"))]
        for source in sorted((ROOT / "csrc" / "python").glob("*.c")):
            objects.append(folder / f"{source.stem}.o")
            run(*compiler, *options, "-c", source, "-o", objects[-1])
        if "windows" in target:
            (folder / "python.def").write_text(exports_of_python(folder / "python"), encoding="utf-8")
            run(*zig, "dlltool", "-m", "i386:x86-64", "-d", folder / "python.def", "-l", folder / "python.lib")
            python = [folder / "python.lib"]
        else:
            python = ["-undefined", "dynamic_lookup"]  # the interpreter that loads it has the rest
        run(*compiler, "-shared", "-o", folder / "_core", *objects, *python)
