"""How many threads compute for torch."""

from __future__ import annotations

import torch

import pyattn._core as _core

__all__ = ["TORCHS_THREADS"]


class _TorchsThreads:
    """In a ``with`` statement: as many threads as torch has, unless a number is set for pyattn itself."""

    def __enter__(self) -> None:
        _core.suggest_num_threads(torch.get_num_threads())

    def __exit__(self, *_: object) -> None:
        _core.suggest_num_threads(None)


TORCHS_THREADS = _TorchsThreads()
