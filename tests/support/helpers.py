"""Small things that many tests need: bits, another Python, how patient to be, how much to draw."""

from __future__ import annotations

import functools
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)  # of Markdown
SANITIZED = any(os.environ.get(name, "") not in ("", "0") for name in ("PYATTN_SANITIZED", "PYATTN_SANITIZE"))
EVERYTHING = os.environ.get("PYATTN_TEST_ALL", "0") != "0"  # `make suite-all` and `test-all` set it


def for_each(names, values):
    """Like pytest.mark.parametrize, but all in one test: pytest takes longer for a test than most of these calls.

    Arrays of fixtures are copied for each round. All values are tried; what the test printed names those that fail.
    """
    import pytest  # not above: scripts of run_python import this file and do without

    names = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    values = list(values)

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**others):
            assert values, f"no values of {names}"
            failures = []
            for value in values:
                given = dict(zip(names, value if len(names) > 1 else [value], strict=True))
                try:
                    test(**{name: _fresh(x) for name, x in others.items()}, **given)
                except (Exception, pytest.fail.Exception) as failure:
                    print("with", given, type(failure).__name__, failure)
                    failures.append(failure)
            if failures:
                raise failures[0]

        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate


def _fresh(x):
    """Copy an array, or a list or tuple of arrays."""
    if isinstance(x, np.ndarray):
        return x.copy(order="K")
    return type(x)(map(_fresh, x)) if type(x) in (list, tuple) else x


def tenth(count: int) -> int:
    """How many of `count` repetitions or drawn cases to run: a tenth, and all of them in `make suite-all`."""
    return count if EVERYTHING else -(-count // 10)


def bits(array) -> np.ndarray:
    """The array's bits as unsigned integers: unlike numbers, NaN and the two zeros compare as they are stored."""
    array = np.asarray(array)
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return native.view(f"u{array.dtype.itemsize}").reshape(array.shape)


def assert_same_bits(actual, expected, about=""):
    """Of arrays, or of all that two tuples of arrays and None have."""
    if isinstance(expected, tuple):
        for n, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert (one is None) == (other is None), f"array {n} {about}"
            if other is not None:
                assert_same_bits(one, other, f"array {n} {about}")
        return
    assert actual.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), about
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=str(about))


def part(result, *index):
    """The same rows of all that an AttentionResult has."""
    arrays = (result.output, result.weights, result.lse)
    return type(result)(*(None if array is None else array[index] for array in arrays))


def normal(*shape, dtype="float32", seed=0) -> np.ndarray:
    """Numbers of the normal distribution, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make_arrays(*shapes, dtype="float32") -> list[np.ndarray]:
    """Arrays of numbers of one normal distribution, such as query, key and value, the same each time."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def run_python(script: str, *, options=(), timeout=120, **environment) -> subprocess.CompletedProcess:
    """Run a script in an interpreter of its own, which finds the same pyattn and these helpers. It must return 0.

    An environment variable of None is taken away.
    """
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **environment}
    env = {name: text for name, text in env.items() if text is not None}
    command = [sys.executable, *options, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
