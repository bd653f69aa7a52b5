"""Docstrings of what users reach are complete: each parameter in order, its type, meaning and default, and results."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pyattn

MODULES = (
    "pyattn",
    *(
        f"pyattn.{name}"
        for name in ("cache", "functional", "generation", "io", "masks", "models", "nn", "optim", "plot", "runtime")
    ),
    *(
        f"pyattn.{name}"
        for name in (
            "interop.bertviz",
            "interop.dask",
            "interop.torch",
            "interop.transformers",
            "models.examples",
            "nn.init",
            "nn.losses",
        )
    ),
    *(f"pyattn.{name}" for name in ("testing", "tracing")),
)


def public_functions():
    """Name, function and docstring of functions, methods and constructors; a constructor's is its class's."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) or inspect.isbuiltin(found):  # functions in C are builtins
                yield f"{module.__name__}.{name}", found, found.__doc__
            elif inspect.isclass(found) and not issubclass(found, (tuple, Exception, type(pyattn.nn.Module))):
                made = dataclasses.is_dataclass(found)  # by the package: its fields are attributes
                for method in dir(found):
                    function = inspect.getattr_static(found, method)
                    function = getattr(function, "__func__", function)  # of class and static methods
                    if function is pyattn.nn.Module.forward:  # which raises NotImplementedError
                        continue
                    if not inspect.isfunction(function) or not function.__module__.startswith("pyattn."):
                        continue
                    if method == "__init__" and not made:
                        yield f"{name}.{method}", function, found.__doc__
                    elif not method.startswith("_"):
                        yield f"{name}.{method}", function, function.__doc__


def sections_of(docstring):
    """Title to lines, where a title is underlined."""
    parts = re.split(r"^(\w+)\n-+\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip().splitlines() for part in parts[2::2]), strict=True))


def entries_of(lines):
    """Name to (type, description); `a, b : type` is both."""
    entries, names = {}, []
    for line in lines:
        if not line or line.startswith(" "):  # a blank line precedes a table
            for name in names:
                entries[name] = (entries[name][0], f"{entries[name][1]} {line.strip()}")
        else:
            head, _, kind = line.partition(" : ")
            names = head.split(", ")
            entries.update(dict.fromkeys(names, (kind, "")))
    return entries


def has_raise(function):
    """Whether the function's own body, without functions inside it, has a raise statement."""
    if inspect.isbuiltin(function):
        return False
    nodes = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body
    while nodes:
        if any(isinstance(node, ast.Raise) for node in nodes):
            return True
        inner = [node for node in nodes if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        nodes = [child for node in inner for child in ast.iter_child_nodes(node)]
    return False


def faults_of(function, docstring):
    """What the docstring lacks."""
    if not docstring:
        return ["no docstring"]
    sections = sections_of(docstring)
    faults = ["no Raises"] if "Raises" not in sections and has_raise(function) else []
    parameters = list(inspect.signature(function).parameters.values())
    parameters = [p for p in parameters if p.name not in ("self", "cls") and p.kind is not p.VAR_POSITIONAL]
    parameters = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    documented = entries_of(sections.get("Parameters", []))
    documented = {name: entry for name, entry in documented.items() if not name.startswith("*")}
    if list(documented) != [p.name for p in parameters] and parameters:
        return [*faults, f"parameters {list(documented)}, expected {[p.name for p in parameters]}"]
    for parameter in parameters:
        kind, description = documented[parameter.name]
        faults += [] if kind and description else [f"{parameter.name} without type or description"]
        if parameter.default not in (parameter.empty, None) and not re.search(
            "default", f"{kind} {description}", re.IGNORECASE
        ):
            faults.append(f"{parameter.name} without its default, {parameter.default}")
    returned = inspect.signature(function).return_annotation
    returned = "ndarray" if inspect.isbuiltin(function) else returned  # functions in C have no annotations
    if returned not in (inspect.Signature.empty, "None", None) and function.__name__ != "__init__":
        faults += [] if {"Returns", "Yields"} & sections.keys() else ["no Returns"]
    return faults


def test_docstrings_of_public_functions_are_complete():
    found = {name: faults_of(function, docstring) for name, function, docstring in public_functions()}
    functions = {"pyattn.functional.softmax", "pyattn.functional.linear"}  # in Python, and in C
    assert functions | {"Linear.__init__", "MultiheadAttention.forward"} <= found.keys()
    assert {name: faults for name, faults in found.items() if faults} == {}


def public_docstrings():
    """Name and docstring of modules, what they export, and the methods and properties of exported classes."""
    for module in map(importlib.import_module, (*MODULES, "pyattn.reference")):
        yield module.__name__, module.__doc__
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.ismodule(found) or inspect.isclass(found) or inspect.isroutine(found):
                yield f"{module.__name__}.{name}", found.__doc__
            members = dir(found) if inspect.isclass(found) else ()
            for member in (name for name in members if not name.startswith("_")):
                attribute = inspect.getattr_static(found, member)
                function = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
                if inspect.isfunction(function) and function.__module__.startswith("pyattn"):  # not matplotlib's
                    yield f"{module.__name__}.{name}.{member}", attribute.__doc__


def test_summaries_have_at_most_80_characters():
    first = {name: inspect.cleandoc(text).splitlines()[0] for name, text in public_docstrings() if text}
    assert len(first) > 500
    assert {name: line for name, line in first.items() if len(line) > 80} == {}


def public_members():
    """File and first line of what users reach: functions, and all public attributes of classes."""
    for module in map(importlib.import_module, (*MODULES, "pyattn.reference")):
        for found in (getattr(module, name) for name in module.__all__):
            names = [name for name in dir(found) if not name.startswith("_")] if inspect.isclass(found) else []
            for member in [found, *(inspect.getattr_static(found, name) for name in names)]:
                member = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
                if code is not None:
                    yield code.co_filename, code.co_firstlineno


def test_docstrings_of_internal_functions_have_one_line():
    public, package = set(public_members()), Path(pyattn.__file__).parent
    checked, faults = 0, []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if (str(path), first) not in public:
                    checked += 1
                    if "\n" in (ast.get_docstring(node) or ""):
                        faults.append(f"{path.relative_to(package)}:{node.lineno} {node.name}")
    assert checked > 500
    assert faults == []


def test_the_result_of_attention_documents_its_fields():
    entries = entries_of(sections_of(pyattn.AttentionResult.__doc__)["Attributes"])
    assert list(entries) == list(pyattn.AttentionResult.__annotations__)
    for kind, description in entries.values():
        assert "(..., heads, L" in kind
        assert description
