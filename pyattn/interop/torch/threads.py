"""On which threads torch's calls of pyattn compute."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

import pyattn._core as _core

__all__ = ["call_on_torchs_threads"]

_T = TypeVar("_T")
_CAST = re.compile(r"\.astype\((?:\w+\.)?(\w+)\)")
_TEAM = b"GOMP_parallel"  # the name of the capsule, too, which keeps no copy of it


def call_on_torchs_threads(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call a function whose pyattn computes on torch's threads, as many as torch uses, unless pyattn's are more."""
    try:
        return _core.call_on_threads(torch.get_num_threads(), _team, function, args, kwargs)
    except (TypeError, ValueError) as error:  # which proposes a cast of an array, and the user has a tensor
        error.args = tuple(_CAST.sub(r".to(torch.\1)", said) if isinstance(said, str) else said for said in error.args)
        raise


def _find_team() -> object:
    """Find what starts torch's threads, where those are of GCC's OpenMP; None: pyattn's own compute."""
    # A second pool would starve: OpenMP's threads spin for some milliseconds after each operation of torch.
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    make_capsule = kind(("PyCapsule_New", ctypes.pythonapi))
    for place in (ctypes.CDLL(None), library):  # as the linker looks: a library that is preloaded goes first
        function = getattr(place, _TEAM.decode(), None)
        if function is not None:
            return make_capsule(ctypes.cast(function, ctypes.c_void_p), _TEAM, None)
    return None


_team = _find_team()
call_on_torchs_threads(bool)  # forks are watched from now on: a team's threads are gone in a child
