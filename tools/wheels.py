"""Makes the wheels for Linux on x86-64 and arm64 from the sdist, and looks at them: `make wheels`; in build/wheels.

The compiler is zig's, against glibc 2.28, so that every machine makes the same bytes; `--twice` builds again elsewhere
and compares. The version of Python is that of the interpreter that runs this. arm64's own Python comes out of Debian's
archive, unpacked and not installed: setuptools builds with its settings, and qemu runs it to check the wheel.
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

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
DEBIAN = WORK / "debian-arm64"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
GLIBC = (2, 28)
LIMIT = 2_000_000  # bytes of a wheel


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command; return what it printed, or end with that if it failed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def unpack_debian() -> None:
    """Unpack Debian's Python for arm64, and all that it needs, into DEBIAN."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True)
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "1",
            "Dir::Cache": state / "cache",
            "Dir::State::Lists": state / "lists",
            "Dir::State::status": "/dev/null",  # nothing is installed: all that is needed is fetched
        }
        apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
        run(*apt, "update")
        packages = (f"{PYTHON}-minimal", f"lib{PYTHON}-dev", "libstdc++6")
        run(*apt, "-y", "--no-install-recommends", "--download-only", "install", *packages)
        unfinished = DEBIAN.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for package in sorted((state / "cache" / "archives").glob("*.deb")):
            run("dpkg", "-x", package, unfinished)
    # Python's headers apart from those of the C library: zig has its own.
    for folder in (PYTHON, f"aarch64-linux-gnu/{PYTHON}"):
        shutil.copytree(unfinished / "usr" / "include" / folder, unfinished / "headers" / folder)
    settings_of_python = "_sysconfigdata__aarch64-linux-gnu.py"
    (unfinished / "settings").mkdir()
    shutil.copy(unfinished / "usr" / "lib" / PYTHON / settings_of_python, unfinished / "settings")
    unfinished.rename(DEBIAN)


def settings(machine: str) -> dict[str, str]:
    """Return the environment in which setuptools builds for a machine."""
    compiler = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    chosen = {"CC": compiler, "LDSHARED": f"{compiler} -shared -s", "PYATTN_WERROR": "1"}
    if machine == "aarch64":
        chosen["CPPFLAGS"] = f"-I{DEBIAN}/headers -I{DEBIAN}/headers/{PYTHON}"
        chosen["PYTHONPATH"] = f"{DEBIAN}/settings"
        chosen["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
        chosen["_PYTHON_SYSCONFIGDATA_NAME"] = "_sysconfigdata__aarch64-linux-gnu"
    return chosen


def build(machine: str, sdist: Path, folder: Path) -> Path:
    """Build the wheel for a machine in a folder."""
    tag = f"--config-settings=--build-option=--plat-name=manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    words = ("--quiet", "--no-deps", "--no-build-isolation", tag, "--wheel-dir", folder, sdist)
    run(sys.executable, "-m", "pip", "wheel", *words, env={**os.environ, **settings(machine)})
    (wheel,) = folder.glob(f"pyattn-*_{machine}.whl")
    return wheel


def look_at(wheel: Path) -> list[str]:
    """Print what the wheel is; return what is wrong with it."""
    shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", wheel).split())
    found = re.search(r'"manylinux_(\d+)_(\d+)_\w+"', shown)
    problems = [] if found and (int(found[1]), int(found[2])) <= GLIBC else [f"auditwheel: {shown}"]
    size = wheel.stat().st_size
    if size >= LIMIT:
        problems.append(f"{size} bytes, where less than {LIMIT} were wanted")
    names = zipfile.ZipFile(wheel).namelist()
    problems += [
        f"{name} is missing"
        for name in ("licenses/LICENSE", "sboms/pyattn.cdx.json")
        if not any(path.endswith(f".dist-info/{name}") for path in names)
    ]
    print(f"{wheel.name}\n  {size} bytes; consistent with {found[0] if found else 'no tag'}, by auditwheel")
    print(f"  sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}", flush=True)
    return problems


def check_arm64(wheel: Path) -> list[str]:
    """Run the self-check of the wheel with arm64's Python and NumPy, emulated; return what went wrong."""
    qemu = shutil.which("qemu-aarch64")
    if qemu is None:
        print("  SKIPPED: not run, as qemu is not there (apt install qemu-user)")
        return []
    with tempfile.TemporaryDirectory() as site:
        platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in ("2_28", "2_27", "2_17")]
        chosen = ("--quiet", "--target", site, "--only-binary=:all:", *platforms)
        run(sys.executable, "-m", "pip", "install", *chosen, "numpy", wheel)
        emulated = (qemu, "-L", DEBIAN, "-E", f"PYTHONHOME={DEBIAN}/usr", "-E", f"PYTHONPATH={site}")
        command = [*emulated, DEBIAN / "usr" / "bin" / PYTHON, "-m", "pyattn", "test", "--cases", "50"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=site)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()), flush=True)
    return [] if done.returncode == 0 else [f"the self-check failed: {done.stderr}"]


def main() -> int:
    """Build and look; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twice", action="store_true", help="build again in another folder, and compare the bytes")
    twice = parser.parse_args().twice
    if "SOURCE_DATE_EPOCH" not in os.environ:  # the date that files in a wheel bear
        os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip()
    WORK.mkdir(parents=True, exist_ok=True)
    if not DEBIAN.exists():
        unpack_debian()
    for old in WORK.glob("pyattn-*"):
        old.unlink()
    run(ROOT / "tools" / "copy_tree.sh", WORK / "tree")
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", WORK, cwd=WORK / "tree")
    (sdist,) = WORK.glob("pyattn-*.tar.gz")
    failed = False
    for machine in ("x86_64", "aarch64"):
        wheel = build(machine, sdist, WORK)
        problems = look_at(wheel)
        if machine == "aarch64":
            problems += check_arm64(wheel)
        if twice:
            with tempfile.TemporaryDirectory() as elsewhere:
                again = build(machine, sdist, Path(elsewhere))
                same = again.read_bytes() == wheel.read_bytes()
            print(f"  built again in another folder: {'the same bytes' if same else 'OTHER BYTES'}", flush=True)
            problems += [] if same else ["two builds gave other bytes"]
        for problem in problems:
            failed = True
            print(f"  FAILED: {problem}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
