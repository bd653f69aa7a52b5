"""Docstrings of what users reach are complete: each parameter in order, its type, meaning and default, and results."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re

import pyattn

MODULES = (
    "pyattn",
    *(
        f"pyattn.{name}"
        for name in ("cache", "functional", "generation", "io", "masks", "models", "nn", "plot", "runtime")
    ),
    *(f"pyattn.{name}" for name in ("interop.bertviz", "interop.torch", "nn.init", "testing", "tracing")),
)


def public_functions():
    """Name, function and docstring of functions, methods and constructors; a constructor's is its class's."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
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
        if line.startswith(" "):
            for name in names:
                entries[name] = (entries[name][0], f"{entries[name][1]} {line.strip()}")
        else:
            head, _, kind = line.partition(" : ")
            names = head.split(", ")
            entries.update(dict.fromkeys(names, (kind, "")))
    return entries


def faults_of(function, docstring):
    """What the docstring lacks."""
    if not docstring:
        return ["no docstring"]
    first = inspect.cleandoc(docstring).splitlines()[0]
    faults = [] if len(first) <= 110 else ["a first line that is too long"]
    sections = sections_of(docstring)
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
        if parameter.default not in (parameter.empty, None) and not re.search("default", description, re.IGNORECASE):
            faults.append(f"{parameter.name} without its default, {parameter.default}")
    returned = inspect.signature(function).return_annotation
    if returned not in (inspect.Signature.empty, "None", None) and function.__name__ != "__init__":
        faults += [] if {"Returns", "Yields"} & sections.keys() else ["no Returns"]
    return faults


def test_docstrings_of_public_functions_are_complete():
    found = {name: faults_of(function, docstring) for name, function, docstring in public_functions()}
    assert {"pyattn.functional.softmax", "Linear.__init__", "MultiheadAttention.forward"} <= found.keys()
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_the_result_of_attention_documents_its_fields():
    entries = entries_of(sections_of(pyattn.AttentionResult.__doc__)["Attributes"])
    assert tuple(entries) == pyattn.AttentionResult._fields
    for kind, description in entries.values():
        assert "(..., heads, L" in kind
        assert description
