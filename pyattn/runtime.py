"""Threads, instruction-set level, and build information."""

from __future__ import annotations

import os
import platform
import sys
from types import ModuleType
from typing import Any, Literal, SupportsIndex, overload

import numpy as np

import pyattn._core as _core
from pyattn._util.arguments import as_choice

__all__ = ["get_include", "get_num_threads", "isa", "set_num_threads", "show_config"]


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set the default number of threads of a call.

    Parameters
    ----------
    num_threads : int or None
        1 or more, capped at 1024. None restores the default: the environment variable PYATTN_NUM_THREADS, else
        OMP_NUM_THREADS, else the number of CPUs that affinity and cgroup allow this process.

    Raises
    ------
    ValueError
        num_threads is less than 1.
    TypeError
        num_threads is not an integer.

    Notes
    -----
    ``threadpoolctl.threadpool_limits`` includes pyattn if threadpoolctl was imported before pyattn or before a call of
    this function.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.set_num_threads(1)
    >>> pyattn.get_num_threads()
    1
    >>> pyattn.set_num_threads(None)
    """
    _core.set_num_threads(num_threads)
    _register_with_threadpoolctl()


def get_num_threads() -> int:
    """Return the default number of threads of a call.

    Returns
    -------
    int
        1 or more.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.get_num_threads() >= 1
    True
    """
    return _core.get_num_threads()


def isa() -> str:
    """Return the instruction-set level in use.

    The environment variable PYATTN_ISA overrides it.

    Returns
    -------
    str
        'avx512', 'avx2', 'neon' or 'scalar'.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.runtime.isa() in ("avx512", "avx2", "neon", "scalar")
    True
    """
    return _core.isa()


def get_include() -> str:
    """Return the directory of attn.h, the header of the C core.

    Returns
    -------
    str
        A path, for ``-I``.

    Examples
    --------
    >>> import os, pyattn
    >>> os.path.exists(os.path.join(pyattn.get_include(), "attn.h"))
    True
    """
    package = os.path.dirname(os.path.abspath(__file__))  # importing pathlib would slow down `import pyattn`
    installed = os.path.join(package, "include")
    in_tree = os.path.join(os.path.dirname(package), "csrc", "include")  # an editable install
    return installed if os.path.isdir(installed) else in_tree


def _config() -> dict[str, Any]:
    version = _core._compiler  # __VERSION__
    return {
        "pyattn": _core.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": f"gcc {version}" if version[:1].isdigit() else version,  # other compilers begin with their name
        "machine": platform.machine(),
        "isa": {"compiled": _core._levels_compiled(), "available": _core._levels(), "chosen": _core.isa()},
        "threads": _core.get_num_threads(),
    }


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...
def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Show versions, compiler, instruction-set levels and threads.

    Parameters
    ----------
    mode : {'stdout', 'dicts'}
        Print, the default, or return a dict.

    Returns
    -------
    dict or None
        None if printed.

    Raises
    ------
    ValueError
        mode is neither 'stdout' nor 'dicts'.

    Examples
    --------
    >>> import pyattn
    >>> sorted(pyattn.show_config(mode="dicts")["isa"])
    ['available', 'chosen', 'compiled']
    """
    as_choice(mode, "mode", ("stdout", "dicts"))
    config = _config()
    if mode == "dicts":
        return config
    levels = config.pop("isa")
    for name, value in config.items():
        sys.stdout.write(f"{name:9} {value}\n")
    sys.stdout.write(
        f"{'isa':9} {levels['chosen']} (this machine: {', '.join(levels['available'])}; "
        f"compiled: {', '.join(levels['compiled'])})\n"
    )
    return None


# threadpoolctl finds the core by its symbols.

_registered_with: list[ModuleType] = []


def _register_with_threadpoolctl() -> None:
    """Register with threadpoolctl, if imported, so that threadpool_limits includes pyattn; needs 3.2 or later."""
    threadpoolctl = sys.modules.get("threadpoolctl")
    if threadpoolctl is None or not hasattr(threadpoolctl, "register") or threadpoolctl in _registered_with:
        return

    class PyattnController(threadpoolctl.LibController):  # type: ignore[misc, name-defined] # a class at run time
        user_api = "pyattn"
        internal_api = "pyattn"
        filename_prefixes = ("_core",)
        check_symbols = ("attn_get_num_threads", "attn_set_num_threads")

        def get_num_threads(self) -> int:
            return int(self.dynlib.attn_get_num_threads())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.attn_set_num_threads(num_threads)

        def get_version(self) -> str:
            return _core.__version__

    threadpoolctl.register(PyattnController)
    _registered_with.append(threadpoolctl)


_register_with_threadpoolctl()
