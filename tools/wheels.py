"""Makes the wheels for Linux on x86-64 and arm64 from the sdist, and looks at them: `make wheels`; in build/wheels.

gcc compiles, as clang's attention takes 1.4 times as long, and zig links, against glibc 2.28. With the same versions of
gcc, zig, setuptools, NumPy and Python every machine makes the same bytes; `--twice` makes them again in another folder,
and compares. Files in them have the date SOURCE_DATE_EPOCH, or else that of the last commit. They are for the Python
that runs it. arm64's own Python comes out of Debian's archive, unpacked and not installed: setuptools builds with its
settings, and qemu runs it to check the wheel. If that Python or gcc for arm64 is missing, the wheel for x86-64 is the
only one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import debian
from debian import PYTHON, ROOT, run

WORK = ROOT / "build" / "wheels"
ARM64 = ROOT / "build" / f"debian-arm64-{PYTHON}"
SETTINGS = "_sysconfigdata__aarch64-linux-gnu"
GLIBC = (2, 28)
LIMIT = 2_000_000  # bytes of a wheel
FILES = ("pyattn/py.typed", "pyattn/_core.pyi", "pyattn/include/attn.h")
PAGES = [str(path.relative_to(ROOT)) for kind in ("css", "js") for path in (ROOT / "pyattn").rglob(f"*.{kind}")]
METADATA = ("licenses/LICENSE", "sboms/pyattn.cdx.json")


def have_arm64() -> bool:
    """Unpack Debian's Python for arm64, and what setuptools needs of it; say why not where that fails."""
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        print("SKIPPED: no wheel for arm64, as no gcc for it is there (apt install gcc-aarch64-linux-gnu)", flush=True)
        return False
    if ARM64.exists():
        return True
    unfinished = ARM64.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        debian.unpack("arm64", (f"{PYTHON}-minimal", f"lib{PYTHON}-dev", "libstdc++6"), unfinished)
    except debian.CommandError as error:
        print(f"SKIPPED: no wheel for arm64, as Debian's {PYTHON} for it is not to be had:\n{error}", flush=True)
        return False
    # Python's headers apart from those of the C library: the compiler has its own.
    for folder in (PYTHON, f"aarch64-linux-gnu/{PYTHON}"):
        shutil.copytree(unfinished / "usr" / "include" / folder, unfinished / "headers" / folder)
    (unfinished / "settings").mkdir()
    shutil.copy(unfinished / "usr" / "lib" / PYTHON / f"{SETTINGS}.py", unfinished / "settings")
    unfinished.rename(ARM64)
    return True


def environment(machine: str) -> dict[str, str]:
    """Return the environment in which setuptools builds for a machine: the same whatever the caller's is."""
    kept = ("HOME", "PATH", "SOURCE_DATE_EPOCH")
    linker = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]} -shared -s"
    chosen = {name: os.environ[name] for name in kept if name in os.environ}
    # CFLAGS takes the place of those that the interpreter was built with.
    chosen |= {"CC": f"{machine}-linux-gnu-gcc", "CFLAGS": "-DNDEBUG -fwrapv", "LDSHARED": linker, "PYATTN_WERROR": "1"}
    if machine == "aarch64":
        chosen["CPPFLAGS"] = f"-I{ARM64}/headers -I{ARM64}/headers/{PYTHON}"
        chosen["PYTHONPATH"] = f"{ARM64}/settings"
        chosen["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
        chosen["_PYTHON_SYSCONFIGDATA_NAME"] = SETTINGS
    return chosen


def make(machines: list[str], folder: Path) -> list[Path]:
    """Make the sdist and out of it the wheels in a folder."""
    os.umask(0o022)  # wheels hold permissions
    run(ROOT / "tools" / "copy_tree.sh", folder / "tree")
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder, cwd=folder / "tree")
    shutil.rmtree(folder / "tree")
    (sdist,) = folder.glob("pyattn-*.tar.gz")
    for machine in machines:
        tag = f"--config-settings=--build-option=--plat-name=manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
        words = ("--quiet", "--no-deps", "--no-build-isolation", tag, "--wheel-dir", folder, sdist)
        run(sys.executable, "-m", "pip", "wheel", *words, env=environment(machine))
    return [next(folder.glob(f"pyattn-*_{machine}.whl")) for machine in machines]


def wrong_with(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel's size and its files."""
    size = wheel.stat().st_size
    problems = [f"{size} bytes, where less than {LIMIT} were wanted"] if size >= LIMIT else []
    names = zipfile.ZipFile(wheel).namelist()
    about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    wanted = {*FILES, *PAGES, *(f"{about}/{name}" for name in METADATA)}
    problems += [f"{name} is missing" for name in sorted(wanted.difference(names))]
    folders = {name.partition("/")[0] for name in names}
    return problems + [f"{name} should not be in it" for name in sorted(folders - {"pyattn", about})]


def look_at(wheel: Path) -> list[str]:
    """Print what the wheel is; return what is wrong with it."""
    shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    found = re.search(r'"manylinux_(\d+)_(\d+)_\w+"', shown)
    problems = [] if found and (int(found[1]), int(found[2])) <= GLIBC else [f"auditwheel: {shown}"]
    problems += wrong_with(wheel)
    tag = found[0] if found else "no tag"
    print(f"{wheel.name}\n  {wheel.stat().st_size} bytes; consistent with {tag}, by auditwheel")
    print(f"  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}", flush=True)
    return problems


def check(wheel: Path, machine: str) -> list[str]:
    """Run the self-check of the wheel, arm64's with its own Python and NumPy, emulated; return what went wrong."""
    with tempfile.TemporaryDirectory() as site:
        installed = ["--quiet", "--target", site, wheel]
        if machine == "aarch64":
            qemu = shutil.which("qemu-aarch64")
            if qemu is None:
                print("  SKIPPED: not run, as qemu is not there (apt install qemu-user)")
                return []
            platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in ("2_28", "2_27", "2_17")]
            installed += ["--only-binary=:all:", *platforms, "numpy"]
            python = [qemu, "-L", ARM64, "-E", f"PYTHONHOME={ARM64}/usr", "-E", f"PYTHONPATH={site}"]
            python.append(ARM64 / "usr" / "bin" / PYTHON)
        else:
            installed += ["--no-deps"]
            python = ["env", f"PYTHONPATH={site}", sys.executable]
        run(sys.executable, "-m", "pip", "install", *installed)
        command = [*python, "-m", "pyattn", "test", "--cases", "50"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=site)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()), flush=True)
    return [] if done.returncode == 0 else [f"the self-check failed: {done.stderr}"]


def main() -> int:
    """Make and look; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twice", action="store_true", help="make them again in another folder, and compare the bytes")
    twice = parser.parse_args().twice
    if "SOURCE_DATE_EPOCH" not in os.environ:  # the date of files in a wheel
        os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip()
    shutil.rmtree(WORK, ignore_errors=True)
    machines = ["x86_64", "aarch64"] if have_arm64() else ["x86_64"]
    wheels = make(machines, WORK)
    again = [path.read_bytes() for path in make(machines, WORK / "again")] if twice else []
    failed = False
    for number, (machine, wheel) in enumerate(zip(machines, wheels, strict=True)):
        problems = look_at(wheel)
        if twice:
            same = again[number] == wheel.read_bytes()
            print(f"  made again in another folder: {'the same bytes' if same else 'OTHER BYTES'}", flush=True)
            problems += [] if same else ["made again, it has other bytes"]
        problems += check(wheel, machine)
        for problem in problems:
            failed = True
            print(f"  FAILED: {problem}", flush=True)
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except debian.CommandError as error:
        sys.exit(str(error))
