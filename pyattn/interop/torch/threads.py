"""On which threads torch's calls of pyattn compute."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

import pyattn._core as _core

__all__ = ["TORCHS_THREADS"]

_TEAM = b"GOMP_parallel"  # the name of the capsule, too, which keeps no copy of it


class _TorchsThreads:
    """In a ``with`` statement: torch's threads compute, and as many, unless a number is set for pyattn itself."""

    def __init__(self) -> None:
        self._team = _openmp_team()
        with self:  # forks are watched from now on: a team's threads are gone in a child
            pass

    def __enter__(self) -> None:
        _core.suggest_threads(torch.get_num_threads(), self._team)

    def __exit__(self, *_: object) -> None:
        _core.suggest_threads(None, None)


def _openmp_team() -> object:
    """Find what starts torch's threads, where those are of GCC's OpenMP; None: pyattn's own compute."""
    # A second pool would starve: OpenMP's threads spin for some milliseconds after each operation of torch.
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = getattr(library, _TEAM.decode())
    except (AttributeError, OSError):
        return None
    make_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make_capsule(("PyCapsule_New", ctypes.pythonapi))(ctypes.cast(function, ctypes.c_void_p), _TEAM, None)


TORCHS_THREADS = _TorchsThreads()
