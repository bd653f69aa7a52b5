"""Docstrings of public functions are complete: each parameter, in order, its meaning and its default."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from helpers import ROOT

import pyattn


def public_functions():
    """Their syntax trees."""
    for path in sorted((ROOT / "pyattn").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            overload = "overload" in map(ast.unparse, getattr(node, "decorator_list", ()))
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not overload:
                yield pytest.param(node, id=f"{path.stem}.{node.name}")


every_function = pytest.mark.parametrize("function", list(public_functions()))


def sections_of(docstring):
    """Title to lines, where a title is underlined."""
    parts = re.split(r"^(\w+)\n-+\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip().splitlines() for part in parts[2::2]), strict=True))


def entries_of(lines):
    """Name to (type, description); `a, b : type` is both."""
    entries, names = {}, []
    for line in lines:
        if line.startswith(" "):
            for name in names:
                entries[name] = (entries[name][0], f"{entries[name][1]} {line.strip()}")
        else:
            head, _, kind = line.partition(" : ")
            names = head.split(", ")
            entries.update(dict.fromkeys(names, (kind, "")))
    return entries


@every_function
def test_parameters_are_documented(function):
    arguments = function.args.args + function.args.kwonlyargs
    documented = entries_of(sections_of(ast.get_docstring(function)).get("Parameters", []))
    assert list(documented) == [argument.arg for argument in arguments]
    for name, (kind, description) in documented.items():
        assert kind, f"{name} has no type"
        assert description, f"{name} has no description"

    defaults = [None] * (len(function.args.args) - len(function.args.defaults)) + function.args.defaults
    for argument, default in zip(arguments, defaults + function.args.kw_defaults, strict=True):
        kind, description = documented[argument.arg]
        if default is not None:
            assert re.search(r"default|unless given", description, re.IGNORECASE), f"{argument.arg} has which default?"
        if isinstance(default, ast.Constant) and default.value is False:
            assert description.endswith("Default: False."), argument.arg


@every_function
def test_results_are_documented(function):
    if function.returns is not None and ast.unparse(function.returns) != "None":
        assert sections_of(ast.get_docstring(function)).get("Returns")


def test_the_result_of_attention_documents_its_fields():
    entries = entries_of(sections_of(pyattn.AttentionResult.__doc__)["Attributes"])
    assert tuple(entries) == pyattn.AttentionResult._fields
    for kind, description in entries.values():
        assert "(..., heads, L" in kind
        assert description
