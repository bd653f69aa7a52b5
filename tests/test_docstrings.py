"""Docstrings of public functions are complete: each parameter, in order, its meaning and its default."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from helpers import ROOT

import pyattn


def public_functions():
    """Syntax trees of functions, methods and constructors; the docstring of a constructor is that of its class."""
    for path in sorted((ROOT / "pyattn").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "pyattn").with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and is_public(node):
                yield pytest.param(node, ast.get_docstring(node), id=f"{module}.{node.name}")
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for method in (part for part in node.body if isinstance(part, ast.FunctionDef)):
                    if is_public(method) or method.name == "__init__":
                        docstring = ast.get_docstring(node if method.name == "__init__" else method)
                        yield pytest.param(method, docstring, id=f"{module}.{node.name}.{method.name}")


def is_public(node):
    """What only has `*args` says in words what it takes, and a property is documented as an attribute."""
    decorators = set(map(ast.unparse, node.decorator_list))
    return not node.name.startswith("_") and not decorators & {"overload", "property"} and node.args.vararg is None


every_function = pytest.mark.parametrize(("function", "docstring"), list(public_functions()))


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
def test_parameters_are_documented(function, docstring):
    arguments = [arg for arg in function.args.args + function.args.kwonlyargs if arg.arg not in ("self", "cls")]
    documented = entries_of(sections_of(docstring).get("Parameters", []))
    assert list(documented) == [argument.arg for argument in arguments]
    for name, (kind, description) in documented.items():
        assert kind, f"{name} has no type"
        assert description, f"{name} has no description"

    defaults = function.args.defaults + function.args.kw_defaults
    defaults = [None] * (len(arguments) - len(defaults)) + defaults
    for argument, default in zip(arguments, defaults, strict=True):
        kind, description = documented[argument.arg]
        if default is not None:
            assert re.search(r"default|unless given", description, re.IGNORECASE), f"{argument.arg} has which default?"
        if isinstance(default, ast.Constant) and default.value is False:
            assert description.endswith("Default: False."), argument.arg


@every_function
def test_results_are_documented(function, docstring):
    if function.returns is not None and ast.unparse(function.returns) != "None":
        section = "Yields" if ast.unparse(function.returns).startswith("Iterator[") else "Returns"
        assert sections_of(docstring).get(section)


def test_methods_are_found():
    found = {parameter.id for parameter in public_functions()}
    assert {"functional.softmax", "nn.linear.Linear.__init__", "nn.linear.Linear.forward"} <= found


def test_the_result_of_attention_documents_its_fields():
    entries = entries_of(sections_of(pyattn.AttentionResult.__doc__)["Attributes"])
    assert tuple(entries) == pyattn.AttentionResult._fields
    for kind, description in entries.values():
        assert "(..., heads, L" in kind
        assert description
