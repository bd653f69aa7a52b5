"""Modules that hold a list of other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, SupportsIndex, TypeVar, overload

from pyattn._util.arguments import as_index
from pyattn.nn.module import Module

__all__ = ["ModuleList", "check_module", "modules_of"]

_Part = TypeVar("_Part", bound=Module)


class ModuleList(Module, Generic[_Part]):
    """A list of modules: `torch.nn.ModuleList` for NumPy.

    Parameters
    ----------
    modules : iterable of Module, optional
        Their names are '0', '1' and so on. Default: none.

    Raises
    ------
    TypeError
        modules is not an iterable of modules, or an index is not an integer.
    IndexError
        An index is out of range.

    Examples
    --------
    >>> from pyattn import nn
    >>> layers = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 1)])
    >>> len(layers), layers[-1]
    (2, Linear(in_features=3, out_features=1, bias=True))
    >>> list(layers.state_dict())
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """

    @overload  # ModuleList() takes any module; the type of ModuleList([]) is that of its annotation
    def __init__(self: ModuleList[Module]) -> None: ...
    @overload
    def __init__(self, modules: Iterable[_Part]) -> None: ...
    def __init__(self, modules: Iterable[_Part] = ()) -> None:
        super().__init__()
        for module in modules_of(modules, "modules"):
            self.append(module)

    def append(self, module: _Part) -> ModuleList[_Part]:
        """Add a module at the end.

        Parameters
        ----------
        module : Module
            Itself, not a copy.

        Returns
        -------
        ModuleList
            The list itself.

        Raises
        ------
        TypeError
            module is not a Module.
        """
        check_module(module, "module")
        self._register_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        """Count the modules."""
        return len(self._module_names)

    def __iter__(self) -> Iterator[_Part]:
        """Go through the modules in order."""
        return iter([self.__dict__[name] for name in self._module_names])

    def __getitem__(self, index: SupportsIndex) -> _Part:
        """Return a module by its index; a negative one counts from the end."""
        n = as_index(index, "index")
        if not -len(self) <= n < len(self):
            raise IndexError(f"index is {n}, expected less than {len(self)}, the number of modules")
        module: _Part = self.__dict__[self._module_names[n]]
        return module

    def __repr__(self) -> str:
        """Write consecutive modules with equal reprs as one entry, as torch does."""
        runs: list[tuple[int, int, str]] = []  # first, last, repr
        for n, module in enumerate(self):
            text = repr(module)
            first = runs.pop()[0] if runs and runs[-1][2] == text else n
            runs.append((first, n, text))
        lines = [f"({a}): {text}" if a == b else f"({a}-{b}): {b - a + 1} x {text}" for a, b, text in runs]
        inside = "".join("\n  " + line.replace("\n", "\n  ") for line in lines)
        return f"{type(self).__name__}({inside}\n)" if lines else f"{type(self).__name__}()"


def check_module(module: object, name: str) -> None:
    """Require a module."""
    if not isinstance(module, Module):
        hint = ": call it, to make one" if isinstance(module, type) and issubclass(module, Module) else ""
        kind = f"the class {module.__name__}" if isinstance(module, type) else f"of type {type(module).__name__}"
        raise TypeError(f"{name} is {kind}, expected a module of pyattn.nn{hint}")


def modules_of(modules: Iterable[_Part], name: str) -> list[_Part]:
    """Read several modules."""
    if not isinstance(modules, Iterable):
        fix = f"; for one, pass [{name}]" if isinstance(modules, Module) else ""
        raise TypeError(f"{name} is of type {type(modules).__name__}, expected a list of modules of pyattn.nn{fix}")
    given = list(modules)
    for n, module in enumerate(given):
        check_module(module, f"{name}[{n}]")
    return given
