"""``python -m pyattn check file.py:function``: import the function, check it, and print the report."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pyattn.testing._check import check
from pyattn.testing.calling import text_of

__all__ = ["run"]


class _NotFoundError(Exception):
    """The function does not exist or cannot be imported; the message is for the user."""


def run(target: str, backward: str | None = None, **options: Any) -> int:
    """Check a function by its name and return the exit status: 0 passed, 1 failed, 2 not found, 130 interrupted."""
    try:
        if backward is not None and ":" not in backward:  # in the function's file
            backward = f"{target.rpartition(':')[0]}:{backward}"
        result = check(_load(target), backward=None if backward is None else _load(backward), **options)
    except (_NotFoundError, TypeError) as problem:
        sys.stderr.write(f"check: {problem}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"check: interrupted in {target}\n")
        return 128 + 2  # as a shell reports a program that SIGINT ended
    sys.stdout.write(f"{result}\n")
    return 0 if result.passed else 1


def _load(target: str) -> Any:
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise _NotFoundError(
            f"{target!r} does not name a function, expected file.py:function or package.module:function"
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise _NotFoundError(f"file {place} does not exist")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {text_of(error)}".split())
        raise _NotFoundError(f"{place} does not import: {reason}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = [key for key, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__]
            raise _NotFoundError(f"{place} has no {name}; it has {', '.join(own) or 'no functions'}")
        found = getattr(found, part)
    return found


def _import_file(path: Path) -> ModuleType:
    """Import a file under a unique module name, with its folder on sys.path, as for a script."""
    name = f"_checked_{path.stem}"
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it is a .py file"
    assert spec.loader is not None, "and these have a loader"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
