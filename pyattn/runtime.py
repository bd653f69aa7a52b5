"""Threads, instruction-set level, and what this build is."""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import os
import platform
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, SupportsIndex, overload

import numpy as np

import pyattn._core as _core

__all__ = ["get_include", "get_num_threads", "isa", "set_num_threads", "show_config"]


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set how many threads a call uses that does not say so itself.

    Parameters
    ----------
    num_threads : int or None
        1 or more; above 1024 it is 1024. None restores the default: the environment variable PYATTN_NUM_THREADS, else
        OMP_NUM_THREADS, else the CPUs that affinity and cgroup leave to this process.

    Raises
    ------
    ValueError
        num_threads is less than 1.
    TypeError
        num_threads is not an integer.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.set_num_threads(1)
    >>> pyattn.get_num_threads()
    1
    >>> pyattn.set_num_threads(None)
    """
    _core.set_num_threads(num_threads)


def get_num_threads() -> int:
    """Tell how many threads a call uses that does not say so itself.

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
    """Tell the instruction-set level in use; the environment variable PYATTN_ISA forces one.

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
    """Tell the directory of attn.h, the header of the C core.

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
    package = os.path.dirname(os.path.abspath(__file__))  # pathlib would be a quarter of `import pyattn`
    installed = os.path.join(package, "include")
    in_tree = os.path.join(os.path.dirname(package), "csrc", "include")  # an editable install
    return installed if os.path.isdir(installed) else in_tree


def _config() -> dict[str, Any]:
    version = _core._compiler  # __VERSION__
    return {
        "pyattn": _core.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": f"gcc {version}" if version[:1].isdigit() else version,  # others begin with their name
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
        None where it was printed.

    Raises
    ------
    ValueError
        mode is something else.

    Examples
    --------
    >>> import pyattn
    >>> sorted(pyattn.show_config(mode="dicts")["isa"])
    ['available', 'chosen', 'compiled']
    """
    config = _config()
    if mode == "dicts":
        return config
    if mode != "stdout":
        raise ValueError(f"mode is {mode!r}, expected 'stdout' or 'dicts'")
    levels = config.pop("isa")
    for name, value in config.items():
        sys.stdout.write(f"{name:9} {value}\n")
    sys.stdout.write(
        f"{'isa':9} {levels['chosen']} (this machine: {', '.join(levels['available'])}; "
        f"compiled: {', '.join(levels['compiled'])})\n"
    )
    return None


# threadpoolctl, which may be imported before, after or never


def _register_with_threadpoolctl(threadpoolctl: ModuleType) -> None:
    """Make threadpoolctl.threadpool_limits hold for pyattn, too; a version without `register` (3.2) is left alone."""
    with contextlib.suppress(Exception):  # whatever is wrong here is no reason to fail someone else's import

        class PyattnController(threadpoolctl.LibController):  # type: ignore[misc, name-defined]
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


class _WatchForThreadpoolctl:  # a MetaPathFinder in all but name: importing importlib.abc takes longer than pyattn
    """Registers whenever threadpoolctl is executed, so that importing pyattn need not import it.

    It stays: a look at the spec is no import yet, and a reload forgets who registered.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "threadpoolctl":
            return None
        after = itertools.islice(itertools.dropwhile(lambda finder: finder is not self, sys.meta_path), 1, None)
        found = (finder.find_spec(fullname, path, target) for finder in after if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is not None and hasattr(type(spec.loader), "exec_module"):
            _register_after_exec(spec.loader)
        return spec


def _register_after_exec(loader: Any) -> None:
    """Replace the loader's next exec_module alone: the loader stays what it is, for runpy and whoever else asks it."""

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        loader.exec_module(module)
        if module.__name__ == "threadpoolctl":  # a zip file's loader loads others, too
            _register_with_threadpoolctl(module)

    with contextlib.suppress(TypeError):  # an object without a dict
        vars(loader)["exec_module"] = exec_module


sys.meta_path.insert(0, _WatchForThreadpoolctl())
if "threadpoolctl" in sys.modules:
    _register_with_threadpoolctl(sys.modules["threadpoolctl"])
