"""Calls of the core, recorded and made again while Python code and a second thread change all that they were given."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import warnings
from unittest import mock

import numpy as np
from support import calls as small_calls
from support.halves import HALVES

from pyattn import _core

MOST_BYTES = 1 << 16  # of the arrays of a call: larger ones only take longer to copy
WITHOUT_ARRAYS = {"get_num_threads", "set_num_threads", "isa"}
REFUSALS = (TypeError, ValueError, IndexError, OverflowError, MemoryError)


# Calls of the core ---------------------------------------------------------------------------------------------------


def record(calls):
    """Make each call once. Returns what it called in the core as (name, arguments, keywords), the same shapes once."""
    functions = {name: getattr(_core, name) for name in dir(_core) if name[0] != "_" and name not in WITHOUT_ARRAYS}
    functions = {name: function for name, function in functions.items() if type(function) is type(len)}
    seen = {}

    def recorder(name, function):
        def call(*args, **options):
            given = _copy((args, options))
            if _bytes_of(given) <= MOST_BYTES:
                seen.setdefault(repr((name, _kind_of(given))), (name, *given))
            return function(*args, **options)

        return call

    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            record_one = recorder(name, function)
            for module in [module for key, module in sys.modules.items() if key.split(".")[0] == "pyattn"]:
                for attribute, value in list(vars(module).items()):
                    if value is function:
                        stack.enter_context(mock.patch.object(module, attribute, record_one))
            if name == "attention":
                stack.enter_context(mock.patch.object(small_calls, "checked", record_one))
        for call in calls:
            call()
    return list(seen.values())


def _map(function, x):
    """Apply a function to all that lists, tuples and dictionaries hold."""
    if isinstance(x, dict):
        return {name: _map(function, value) for name, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_map(function, value) for value in x))
    if type(x) in (list, tuple):
        return type(x)(_map(function, value) for value in x)
    return function(x)


def _copy(x):
    return _map(lambda leaf: leaf.copy(order="K") if isinstance(leaf, np.ndarray) else leaf, x)


def _kind_of(x):
    """What tells one call from another: shapes and dtypes of arrays, strings, and the types of all else."""
    return _map(lambda leaf: (leaf.shape, leaf.dtype.str) if isinstance(leaf, np.ndarray) else type(leaf), x)


def _bytes_of(x):
    sizes = []
    _map(lambda leaf: sizes.append(leaf.nbytes) if isinstance(leaf, np.ndarray) else None, x)
    return sum(sizes)


# Python code that a call runs ----------------------------------------------------------------------------------------

disturb = lambda may_resize: None  # noqa: E731 (replaced for each call)


class Hooked(np.ndarray):
    """An array that changes others when a view or a copy of it is made, or when its class is asked for."""

    def __array_finalize__(self, other):
        disturb(False)

    @property
    def __class__(self):
        disturb(False)
        return np.ndarray


class Exported:
    """An array by way of `__array__`, which changes others."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        disturb(True)
        return self.array


class Number:
    """A number whose conversion changes arrays."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        disturb(True)
        return self.value.__index__()

    def __float__(self):
        disturb(True)
        return float(self.value)


class Seeds(np.random.SeedSequence):
    """Changes arrays when a seed is drawn."""

    def generate_state(self, *arguments):
        disturb(True)
        return super().generate_state(*arguments)


# What is done to the arguments of a call -----------------------------------------------------------------------------


class Arguments:
    """The arrays and lists of one call, and how they are changed while it runs."""

    def __init__(self, rng: random.Random):
        self.rng, self.arrays, self.lists, self.left = rng, [], [], rng.randrange(8)
        self.dtype = rng.choice([None, None, *HALVES.values()])  # of all arrays of floats; None: their own
        self.changing = False

    def wrapped(self, x):
        """A copy of the arguments, some of them in objects that run Python code."""
        if type(x) is list:
            self.lists.append([self.wrapped(value) for value in x])
            return self.lists[-1]
        if isinstance(x, dict):
            return {name: self.wrapped(value) for name, value in x.items()}
        if isinstance(x, tuple):
            items = [self.wrapped(value) for value in x]
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        if isinstance(x, np.ndarray):
            return self._wrapped_array(x.copy(order="K"))
        if type(x) in (int, float) and self.rng.random() < 0.3:
            return Number(x)
        return x

    def _wrapped_array(self, array):
        if array.dtype.kind == "f" and self.dtype is not None:
            array = array.astype(self.dtype)
        kind = self.rng.choice(
            ["plain"] * 6 + ["hooked", "exported", "list", "swapped", "wide", "half", "strided", "integers"]
        )
        if kind == "hooked":
            array = array.view(Hooked)
        elif kind == "swapped" and array.dtype.kind != "V":
            array = array.astype(array.dtype.newbyteorder())
        elif kind == "wide" and array.dtype.kind == "f":
            array = array.astype(np.float64)
        elif kind == "half" and array.dtype.kind == "f":
            array = array.astype(self.rng.choice([*HALVES.values()]))
        elif kind == "strided" and array.ndim:
            array = np.repeat(array, 2, -1)[..., ::2]
        elif kind == "integers" and array.dtype.kind == "f":
            array = array.astype(np.int64)
        self.arrays.append(array)
        return Exported(array) if kind == "exported" else array.tolist() if kind == "list" else array

    def change(self, may_resize):
        """Change something, if the call has changes left. A change that NumPy is making is not disturbed itself."""
        if self.left <= 0 or not self.arrays or self.changing:
            return
        self.left -= 1
        self.changing = True
        if self.lists and self.rng.random() < 0.2:
            _change_list(self.rng, self.rng.choice(self.lists), self.arrays)
        with contextlib.suppress(Exception):  # NumPy refuses many of them
            _change_array(self.rng, self.rng.choice(self.arrays), may_resize)
        self.changing = False


def _change_list(rng, items, arrays):
    how = rng.randrange(4)
    if how == 0 and items:
        items[rng.randrange(len(items))] = rng.choice(arrays)
    elif how == 1:
        items.append(rng.choice(arrays))
    elif how == 2 and items:
        items.pop()
    else:
        items[:] = items[::-1]


def _change_array(rng, array, may_resize):
    how = rng.choice(["axes", "flat", "turned", "split", "resize", "dtype", "strides", "flags", "numbers"])
    if how == "axes":
        array.shape = (1,) * rng.choice([1, 2, 7, 30]) + array.shape
    elif how == "flat":
        array.shape = (-1,)
    elif how == "turned":
        array.shape = array.shape[::-1]
    elif how == "split":
        array.shape = (*array.shape[:-1], rng.choice([1, 2, 3, 4]), -1)
    elif how == "resize":
        # Without its check NumPy leaves views without memory: only where there are none.
        alone = may_resize and type(array) is np.ndarray and array.base is None
        array.resize([rng.randrange(9) for _ in range(rng.randrange(4))], refcheck=not alone)
    elif how == "dtype":
        array.dtype = rng.choice(["f4", "f8", "i1", "?", "f2", ">f4", "i8", "c8"])
    elif how == "strides":
        array.strides = [rng.choice([0, stride, -stride]) for stride in array.strides]
    elif how == "flags":
        array.flags.writeable = not array.flags.writeable
    else:
        array[...] = rng.choice([0, 1, -1, 2**31, 2**62, np.nan, np.inf, 1e38])


def fuzz(recorded, seed, count, with_thread):
    """Make `count` calls drawn from those recorded, each function as often. Returns how many gave a result.

    Only a refusal may be raised.
    """
    rng, current, stop, results = random.Random(seed), [None], threading.Event(), 0
    functions = sorted({name for name, *_ in recorded})
    by_function = {function: [call for call in recorded if call[0] == function] for function in functions}

    def change_now_and_then():
        while not stop.is_set():
            if current[0]:
                current[0].change(False)
            time.sleep(0)

    def call_once():
        name, args, options = rng.choice(by_function[rng.choice(functions)])
        arguments = Arguments(random.Random(rng.random()))
        if name in ("attention", "multi_head", "layer") and rng.random() < 0.2 and "rng" not in options:
            options = options | {"rng": Seeds(0), "dropout_p": 0.5}
        args, options = arguments.wrapped(args), arguments.wrapped(options)
        current[0] = arguments
        globals()["disturb"] = arguments.change
        try:
            getattr(_core, name)(*args, **options)
        except REFUSALS:
            return 0
        finally:
            current[0] = None
            globals()["disturb"] = lambda may_resize: None
        return 1

    thread = threading.Thread(target=change_now_and_then)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *about, **options: disturb(True)
        if with_thread:
            sys.setswitchinterval(1e-5)
            thread.start()
        try:
            for _ in range(count):
                results += call_once()
        finally:
            stop.set()
            if with_thread:
                thread.join()
    return results
