"""Public names of modules, and errors for unknown attributes."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

__all__ = ["showing", "unknown_name"]


def showing(module: str, names: Iterable[str]) -> tuple[Callable[[str], NoReturn], Callable[[], list[str]]]:
    """Make the __getattr__ and __dir__ of a module that shows these names."""

    def refuse(name: str) -> NoReturn:
        raise unknown_name(module, name, names)

    return refuse, lambda: sorted(names)


def unknown_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Make the error, with the name that was probably meant, or all; names of other modules are given in full."""
    wrong, owner = f"module {module!r} has no attribute {name!r}", sys.modules[module]  # with obj Python adds no guess
    if name.startswith("_"):
        return AttributeError(wrong, obj=owner)
    known = {full.rpartition(".")[2].lower(): full for full in sorted(names, key=len, reverse=True)}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    if not close:
        own = sorted(full for full in names if "." not in full and not full.startswith("_"))
        return AttributeError(f"{wrong}; it has {', '.join(own)}", obj=owner)
    meant = known[close[0]]
    return AttributeError(f"{wrong}; did you mean {meant if '.' in meant else f'{module}.{meant}'}?", obj=owner)
