"""Takes packages out of Debian's archive without installing them, and runs commands: for other tools here."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


class CommandError(Exception):
    """A command failed: it, and what it printed."""


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command; return what it printed."""
    words = list(map(str, command))
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd)
    except OSError as error:
        raise CommandError(str(error)) from error
    if done.returncode:
        raise CommandError(f"{' '.join(words)[:300]}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def apt(work: Path, types: str, settings: dict[str, str]) -> list[str]:
    """Make lists of packages, deb or deb-src, below a folder; return what begins a command that uses them."""
    for folder in ("lists/partial", "cache/archives/partial", "sources"):
        (work / folder).mkdir(parents=True)
    for path in Path("/etc/apt/sources.list.d").glob("*.sources"):
        text = re.sub(r"^Types:.*", f"Types: {types}", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        (work / "sources" / path.name).write_text(text, encoding="utf-8")
    settings = {
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache": f"{work}/cache",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": f"{work}/sources",
        "Dir::State::Lists": f"{work}/lists",
        **settings,
    }
    command = ["apt-get", "-qq", "-y", *(word for pair in settings.items() for word in ("-o", "=".join(pair)))]
    run(*command, "update")
    return command


def unpack(architecture: str, packages: tuple[str, ...], folder: Path) -> None:
    """Unpack packages, and all that they need, into a new folder."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        only = {"APT::Architecture": architecture, "APT::Architectures::": architecture}
        # Nothing is installed in that status: all that is needed is fetched.
        command = apt(work, "deb", {**only, "Dir::State::status": "/dev/null"})
        run(*command, "--no-install-recommends", "--download-only", "install", "base-files", *packages)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for package in sorted((work / "cache" / "archives").glob("*.deb")):  # base-files, with links to folders, first
            run("dpkg", "-x", package, folder)


def source(package: str, folder: Path) -> Path:
    """Fetch the tar of a package's source into a folder."""
    with tempfile.TemporaryDirectory() as name:
        command = apt(Path(name), "deb-src", {})
        run(*command, "source", "--tar-only", package, cwd=folder)
    found = next(folder.glob("*.orig.tar.*"), None)
    if found is None:
        raise CommandError(f"{package} has no source in Debian's archive")
    return found
