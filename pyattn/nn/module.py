"""`Module`, the base of all layers: named parameters and submodules, state_dict, training mode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_flag
from pyattn._util.halves import as_float32, as_stored_dtype, compute_dtype, is_half, round_to
from pyattn._util.names import naming_keywords_of_class
from pyattn._util.typing import FloatArray
from pyattn.nn.gradients import Backward, add_gradient, call_vjp, running
from pyattn.nn.inputs import call_rounding, check_parameter
from pyattn.nn.memory_order import MemoryOrder, reordered
from pyattn.nn.state import IncompatibleKeys, write_state

__all__ = ["Module"]

_Forward = TypeVar("_Forward", bound=Callable[..., Any], covariant=True)
_Self = TypeVar("_Self", bound="Module")  # typing.Self begins with Python 3.11

# Methods of other libraries' modules, and what to do here.
_ELSEWHERE = {
    "backward": "output, backward = module.vjp(x) gives the function that computes gradients",
    "from_torch": "call pyattn.interop.torch.from_torch(module)",
    "generate": "call pyattn.generate(model, source)",
    "save": "call pyattn.nn.save(module, path)",
    "trace": "MultiheadAttention, TransformerEncoderLayer and TransformerDecoderLayer have it, such as one of layers",
}


class _HasForward(Protocol[_Forward]):
    @property
    def forward(self) -> _Forward: ...


class _CallsForward:
    """Gives type checkers the signature of a module's own forward, overloads included, for its calls."""

    def __get__(self, module: _HasForward[_Forward], owner: Any = None) -> _Forward:
        return module.forward


class _ShowsForward:
    """Gives `inspect.signature` the signature of a module's forward; that of a class is its constructor's."""

    def __get__(self, module: Module | None, owner: Any = None) -> inspect.Signature:
        if module is None:
            raise AttributeError("__signature__")
        return inspect.signature(module.forward)


class Module:
    """Base of all layers: `torch.nn.Module` for NumPy.

    Assigning a float array to an attribute registers it as a parameter; assigning a module registers it as a part. Both
    keep their order. Parameters are ordinary arrays: edit one, or a view of it, and the next call uses it. A call does
    not change the module, so threads may share one.

    Parameters may be float16 or bfloat16, which take half of the memory, beside others of float32. Arithmetic is in
    float32, and so are results, except that a first input in half precision rounds them to its dtype.

    Attributes
    ----------
    training : bool
        Set by `train` and `eval`. Initially True, as in torch.

    Raises
    ------
    NotImplementedError
        The module is called, but its class does not define `forward`.
    TypeError
        An array of another float dtype is assigned, or a parameter or part is replaced by a value of another type. None
        is allowed.
    AttributeError
        A float array is assigned to a name that is not a parameter of this layer of pyattn. `register_parameter` adds
        one.
    KeyError
        The name of a new parameter or part is empty, has a dot, or is already another attribute.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = np.full(2, 3.0)
    ...
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> scale = Scale()
    >>> scale.factor[1] = 5.0
    >>> scale(np.ones(2))
    array([3., 5.])
    >>> scale.state_dict()
    {'factor': array([3., 5.])}
    """

    __signature__ = _ShowsForward()

    # Class defaults, so __init__ has nothing to do. Values are ordinary attributes. Names are in tuples, because a copy
    # made by copy.copy must not share a list of names with its original.
    training: bool = True
    _parameter_names: tuple[str, ...] = ()
    _module_names: tuple[str, ...] = ()
    _linear_weights: tuple[str, ...] = ()  # parameters (out, in) that inputs are multiplied with
    _widens_halves = True  # a first argument in half precision becomes float32
    _gradients: Mapping[str, FloatArray] = MappingProxyType({})  # of the module's own parameters

    if TYPE_CHECKING:
        __call__ = _CallsForward()
    else:

        def __call__(self, *args, **kwargs):
            """Call `forward`; a first argument in half precision is float32 there, and the results are rounded."""
            run = running()
            return run.call(self, args, kwargs) if run.records else call_rounding(self, self.forward, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's output; every subclass defines this."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the refusal of an unknown keyword say which one was meant."""
        super().__init_subclass__(**kwargs)
        naming_keywords_of_class(cls)

    # Registration

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name; those that other libraries have say what to do here."""
            if hasattr(type(self), name):  # a property that raised AttributeError: once more, for its own message
                return object.__getattribute__(self, name)
            hint = _ELSEWHERE.get(name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{f'; {hint}' if hint else ''}",
                name=name,
                obj=self,
            )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; float arrays are registered as parameters, modules as parts."""
        if name in self._parameter_names:
            self.register_parameter(name, value)
        elif isinstance(value, np.ndarray) and (value.dtype.kind == "f" or is_half(value.dtype)):
            self._require_parameter(name)
            self.register_parameter(name, value)
        elif name in self._module_names or isinstance(value, Module):
            self._register_module(name, value)
        else:
            object.__setattr__(self, name, value)

    def _require_parameter(self, name: str) -> None:
        """Refuse to add a parameter to a layer of pyattn, which would not use it."""
        own = type(self)
        known = (inspect.get_annotations(cls) for cls in own.__mro__)
        if (
            own.__module__ == __name__
            or own.__module__.partition(".")[0] != "pyattn"
            or any(name in names for names in known)
        ):
            return
        takes = ", ".join(name for name, _ in self.named_parameters()) or "none"
        raise AttributeError(
            f"{own.__name__} has no parameter {name!r}; its parameters are {takes}", name=name, obj=self
        )

    def __delattr__(self, name: str) -> None:
        """Delete an attribute and unregister it."""
        object.__delattr__(self, name)
        for names in ("_parameter_names", "_module_names"):
            if name in getattr(self, names):
                object.__setattr__(self, names, tuple(other for other in getattr(self, names) if other != name))

    def register_parameter(self, name: str, param: FloatArray | None) -> None:
        """Register an array as a parameter, as assignment does; None reserves its place.

        Parameters
        ----------
        name : str
            The attribute.
        param : ndarray or None
            float16, bfloat16, float32 or float64, not copied. None is left out of `state_dict`; an array may be
            assigned later.

        Raises
        ------
        TypeError
            param is neither None nor an array of one of these dtypes.
        KeyError
            The name is empty, has a dot, or is already another attribute.
        """
        if param is not None:
            check_parameter(param, name)
        self._register("_parameter_names", name, param)

    def _register_module(self, name: str, module: Module | None) -> None:
        if module is not None and not isinstance(module, Module):
            kind = type(module).__name__
            raise TypeError(f"{name} is a module and cannot become a value of type {kind}; `del` it first")
        self._register("_module_names", name, module)

    def _register(self, names: str, name: str, value: Any) -> None:
        known: tuple[str, ...] = getattr(self, names)
        if name not in known:
            if not name or "." in name:
                raise KeyError(f"the name {name!r} cannot be registered: it is empty or has a dot")
            if name in self._parameter_names or name in self._module_names or hasattr(Module, name):
                raise KeyError(f"{name} is already another attribute; choose another name")
        replaced = self.__dict__.get(name) is not value  # x.weight -= ... assigns the same array
        object.__setattr__(self, name, value)
        if replaced and name in self._gradients:
            self._set_gradients({other: grad for other, grad in self._gradients.items() if other != name})
        if name not in known:
            object.__setattr__(self, names, (*known, name))

    # Parameters and parts

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, FloatArray]]:
        """Go through the parameters, the module's own first, then those of its parts.

        Parameters
        ----------
        prefix : str
            Put before each name, with a dot. Default: ``""``, nothing.
        recurse : bool
            Include the parameters of the parts. Default: True.
        remove_duplicate : bool
            Yield an array with several names once, under the first. Default: True.

        Yields
        ------
        (str, ndarray)
            The name, such as ``'out_proj.weight'``, and the array itself.
        """
        seen: set[int] = set()
        walk = self._walk(prefix, set() if remove_duplicate else None) if recurse else [(prefix, self)]
        for path, module in walk:
            for name in module._parameter_names:
                array = module.__dict__[name]
                if array is None or (remove_duplicate and id(array) in seen):
                    continue
                seen.add(id(array))
                yield f"{path}.{name}" if path else name, array

    def parameters(self, recurse: bool = True) -> Iterator[FloatArray]:
        """Go through the parameters, each array once.

        Parameters
        ----------
        recurse : bool
            Include the parameters of the parts. Default: True.

        Yields
        ------
        ndarray
            The array itself.
        """
        for _, array in self.named_parameters(recurse=recurse):
            yield array

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Go through the module itself, its parts, their parts and so on, each once.

        Parameters
        ----------
        prefix : str
            Put before each name, with a dot. Default: ``""``, nothing.

        Yields
        ------
        (str, Module)
            The name, ``''`` for the module itself.
        """
        yield from self._walk(prefix, set())

    def modules(self) -> Iterator[Module]:
        """Go through the module itself, its parts, their parts and so on, each once.

        Yields
        ------
        Module
            The module itself first.
        """
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Go through the module's own parts, each once.

        Yields
        ------
        (str, Module)
            The attribute, and what it holds.
        """
        seen = set()
        for name in self._module_names:
            module = self.__dict__[name]
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Go through the module's own parts, each once.

        Yields
        ------
        Module
            A part.
        """
        for _, module in self.named_children():
            yield module

    def _walk(self, path: str, seen: set[int] | None) -> Iterator[tuple[str, Module]]:
        """Yield the module, then its parts in order, skipping modules in `seen`."""
        if seen is not None:
            if id(self) in seen:
                return
            seen.add(id(self))
        yield path, self
        for name in self._module_names:
            module = self.__dict__[name]
            if module is not None:
                yield from module._walk(f"{path}.{name}" if path else name, seen)

    # State

    def state_dict(self) -> dict[str, FloatArray]:
        """Collect the parameters by name.

        Returns
        -------
        dict of str to ndarray
            In order of registration. The arrays are the parameters themselves, not copies, as in torch.
        """
        return dict(self.named_parameters(remove_duplicate=False))

    def load_state_dict(self, state_dict: Mapping[str, npt.ArrayLike], strict: bool = True) -> IncompatibleKeys:
        """Write values into the parameters.

        Values are converted to the parameters' dtype and written in place, so every view of a parameter sees them.
        Nothing is written unless everything fits.

        Parameters
        ----------
        state_dict : mapping of str to array_like
            Real arrays of any dtype, such as a torch module's state_dict or an archive opened by `numpy.load`.
        strict : bool
            Require a value for every parameter, and no other values. Default: True.

        Returns
        -------
        IncompatibleKeys
            Lists of missing_keys and unexpected_keys.

        Raises
        ------
        ValueError
            Keys are missing or unexpected, or a shape differs; the message lists all of them.
        TypeError
            state_dict is not a mapping, or a value is not an array of real numbers.

        Examples
        --------
        >>> from pyattn import nn
        >>> linear = nn.Linear(2, 1)
        >>> linear.load_state_dict({"weight": [[1, 2]], "bias": [3]})
        IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        >>> linear.weight
        array([[1., 2.]], dtype=float32)
        >>> linear.load_state_dict({"weight": [[1], [2]], "scale": 1})
        Traceback (most recent call last):
        ValueError: this state does not fit Linear:
        - bias is missing
        - scale is unexpected
        - weight has shape (2, 1), expected (1, 2)
        """
        return write_state(self.state_dict(), state_dict, strict, type(self).__name__)

    # Gradients

    def vjp(self, *args: Any, checkpoint: bool = False, **kwargs: Any) -> tuple[Any, Backward]:
        """Call `forward`, and return its output with the way back to gradients.

        Gradients of the arguments are returned by the second result; those of parameters are added to `grads`, from
        several threads, too. Between the two calls, arguments and parameters must not change.

        Parameters
        ----------
        *args, **kwargs
            As for `forward`.
        checkpoint : bool
            Keep only the inputs of each layer of a stack, and compute the rest again on the way back: less memory for
            about a third more time, and the same bits. Default: False.

        Returns
        -------
        output
            The result of `forward`.
        backward : callable
            ``backward(grad_output)`` returns a tuple: for each argument that was passed, in forward's order, the
            gradient of the loss, or None if the argument is not an array of floats. It runs once, and raises
            RuntimeError the second time. Where forward returns a tuple, grad_output is the gradient of the first entry,
            or a tuple with None for entries without one, such as weights of attention.

        Raises
        ------
        NotImplementedError
            A class defines a forward of its own and no vjp to go with it; or an array of floats, or
            an activation that is a function of the caller's, has no gradient.

        Notes
        -----
        "vjp" is the vector-Jacobian product of reverse-mode differentiation, as in JAX. A class of one's own defines
        ``vjp`` with the signature of its ``forward``, from the vjp of its parts and `add_grad` for its own parameters.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> linear = nn.Linear.from_arrays(np.array([[1.0, 2.0]]))
        >>> output, backward = linear.vjp(np.array([3.0, 4.0]))
        >>> output
        array([11.])
        >>> backward(np.ones(1))
        (array([1., 2.]),)
        >>> linear.grads
        {'weight': array([[3., 4.]])}
        """
        return call_vjp(self, args, kwargs, as_flag(checkpoint, "checkpoint"))

    vjp._is_general = True  # type: ignore[attr-defined]  # of all modules, unless their class has its own

    @property
    def grads(self) -> dict[str, FloatArray]:
        """Gradients of the parameters that have one, by the names of `state_dict`.

        Each backward adds to them, until `zero_grad`. An array has its parameter's shape and memory order, and is the
        gradient itself, not a copy; the dict is a new one each time. A parameter with several names has one gradient,
        under the first. Its parts are joined when `grads` of a module with all of these names is read, so call
        `zero_grad` of that module, too. Assigning a parameter, `to` and `to_order` drop the gradients of the arrays
        that they replace.
        """
        found: dict[str, FloatArray] = {}
        first: dict[int, tuple[Module, str, str]] = {}  # the place and the name of each array
        for path, module in self._walk("", set()):
            for name in module._parameter_names:
                array, grad = module.__dict__[name], module._gradients.get(name)
                if array is None:
                    continue
                owner, own, full = first.setdefault(id(array), (module, name, f"{path}.{name}" if path else name))
                if grad is None:
                    continue
                if grad is not owner._gradients.get(own):  # tied: all owners then hold the sum
                    add_gradient(owner, own, grad)
                    module._set_gradients({**module._gradients, name: owner._gradients[own]})
                found[full] = owner._gradients[own]
        return found

    def add_grad(self, name: str, grad: npt.ArrayLike) -> None:
        """Add to the gradient of a parameter, in a `vjp` of one's own.

        Parameters
        ----------
        name : str
            Name of a parameter of the module itself, not of a part.
        grad : array_like
            Gradient of the parameter's shape; copied.

        Raises
        ------
        ValueError
            The module has no such parameter, or the shape is another one.
        TypeError
            grad does not hold real numbers.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = np.full(2, 3.0)
        ...
        ...     def forward(self, x):
        ...         return self.factor * x
        ...
        ...     def vjp(self, x):
        ...         def backward(grad):
        ...             self.add_grad("factor", (grad * x).sum(axis=0))
        ...             return (self.factor * grad,)
        ...
        ...         return self.forward(x), backward
        >>> scale = Scale()
        >>> _, backward = scale.vjp(np.ones((4, 2)))
        >>> backward(np.ones((4, 2)))[0][0]
        array([3., 3.])
        >>> scale.grads
        {'factor': array([4., 4.])}
        """
        parameter = self.__dict__[name] if name in self._parameter_names else None
        if parameter is None:
            own = ", ".join(one for one in self._parameter_names if self.__dict__[one] is not None) or "none"
            raise ValueError(f"name is {name!r}, and the module's own parameters are {own}")
        array = as_float32(_core.as_real(grad, "grad"))
        if array.shape != parameter.shape:
            raise ValueError(f"grad has shape {array.shape}, expected {parameter.shape} as {name}")
        add_gradient(self, name, array.astype(compute_dtype(parameter.dtype)))

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for module in self.modules():
            module._set_gradients({})

    def _set_gradients(self, gradients: Mapping[str, FloatArray]) -> None:
        object.__setattr__(self, "_gradients", gradients)

    def __getstate__(self) -> dict[str, Any]:
        """Leave gradients out of copies and pickles."""
        return {name: value for name, value in self.__dict__.items() if name != "_gradients"}

    # Mode and dtype

    def train(self: _Self, mode: bool = True) -> _Self:
        """Set ``training`` of the module and all of its parts.

        It turns dropout on or off.

        Parameters
        ----------
        mode : bool
            True, the default, for training.

        Returns
        -------
        Module
            The module itself.

        Raises
        ------
        TypeError
            mode is not a bool.
        """
        training = as_flag(mode, "mode")
        for module in self.modules():
            module.training = training
        return self

    def eval(self: _Self) -> _Self:
        """Set ``training`` to False in the module and all of its parts.

        Returns
        -------
        Module
            The module itself.
        """
        return self.train(False)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of the parameters; None without parameters or with mixed dtypes."""
        dtypes = {array.dtype.newbyteorder("=") for array in self.parameters()}
        return dtypes.pop() if len(dtypes) == 1 else None

    def to(self: _Self, dtype: npt.DTypeLike) -> _Self:
        """Convert all parameters to a dtype.

        New arrays replace those of another dtype, so old views no longer follow the module.

        Parameters
        ----------
        dtype : dtype
            float16, bfloat16, float32 or float64, NumPy's or torch's. ``"cpu"`` is accepted and does nothing.

        Returns
        -------
        Module
            The module itself.

        Raises
        ------
        TypeError
            dtype is something else.

        Examples
        --------
        >>> from pyattn import nn
        >>> nn.Linear(2, 3).to("float64").dtype
        dtype('float64')
        """
        if str(dtype) == "cpu":
            return self
        wanted = as_stored_dtype(dtype)
        self._replace({id(array): round_to(array, wanted) for array in self.parameters() if array.dtype != wanted})
        for module in self.modules():
            module._set_dtype(wanted)
        return self

    def to_order(self: _Self, order: MemoryOrder, copy: bool = False) -> _Self:
        """Give the weights of all linear layers a memory order.

        Shapes and results stay the same, bit for bit. New modules have ``"in_out"``, which is up to 1.6 times as fast
        for one row, such as a token at a time; some 16 rows times weights that no cache holds are up to 1.5 times as
        fast with ``"out_in"``, and from 64 rows on both are the same. New arrays replace those of the other order, so
        old views no longer follow the module. Embeddings, weights tied to them, and `SelfAttention` keep their order,
        and modules made from arrays, files or torch modules have that of their arrays.

        Parameters
        ----------
        order : {"in_out", "out_in"}
            ``"in_out"``: stored like the W of ``x @ W``. ``"out_in"``: C order, as in torch.
        copy : bool
            Replace arrays that share memory with others, too: with views, a mapped file or a torch module. Default:
            False.

        Returns
        -------
        Module
            The module itself.

        Raises
        ------
        ValueError
            order is neither of the two, or a weight shares memory and copy is False. Nothing is replaced then.
        TypeError
            copy is not a bool.

        Examples
        --------
        >>> from pyattn import nn
        >>> linear = nn.Linear(3, 2)
        >>> linear.weight.strides
        (4, 8)
        >>> linear.to_order("out_in").weight.strides
        (12, 4)
        """
        wanted: MemoryOrder = as_choice(order, "order", ("in_out", "out_in"))
        weights, others = {}, []
        for path, module in self.named_modules():
            for name in module._parameter_names:
                array = module.__dict__[name]
                if array is not None and name in module._linear_weights:
                    weights[f"{path}.{name}" if path else name] = array
                elif array is not None:
                    others.append(array)
        self._replace(reordered(weights, others, wanted, as_flag(copy, "copy")))
        return self

    def _replace(self, arrays: Mapping[int, FloatArray]) -> None:
        """Replace parameters by others, found by the id of the old one, so that ties stay."""
        places = [(module, name) for module in self.modules() for name in module._parameter_names]
        for module, name in places:
            new = arrays.get(id(module.__dict__[name]))
            if new is not None:
                setattr(module, name, new)

    def _set_dtype(self, dtype: np.dtype[Any]) -> None:
        """Convert what is not a parameter: `to` calls this for each module."""

    def float(self: _Self) -> _Self:
        """Convert all parameters to float32, as ``to(numpy.float32)`` does.

        Returns
        -------
        Module
            The module itself.
        """
        return self.to(np.float32)

    def half(self: _Self) -> _Self:
        """Convert all parameters to float16, as ``to(numpy.float16)`` does.

        Returns
        -------
        Module
            The module itself.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> linear, x = nn.Linear(3, 2).half(), np.ones(3, np.float32)
        >>> linear.dtype, linear(x).dtype, linear(x.astype(np.float16)).dtype
        (dtype('float16'), dtype('float32'), dtype('float16'))
        """
        return self.to(np.float16)

    def bfloat16(self: _Self) -> _Self:
        """Convert all parameters to bfloat16, as ``to("bfloat16")`` does.

        Returns
        -------
        Module
            The module itself.

        Raises
        ------
        ImportError
            ml_dtypes is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> linear = nn.Linear(3, 2).bfloat16()
        >>> linear.weight.dtype.name, linear(np.ones(3, np.float32)).dtype
        ('bfloat16', dtype('float32'))
        """
        return self.to("bfloat16")

    def double(self: _Self) -> _Self:
        """Convert all parameters to float64, as ``to(numpy.float64)`` does.

        Returns
        -------
        Module
            The module itself.
        """
        return self.to(np.float64)

    # Representation

    def extra_repr(self) -> str:
        """Return the text between the brackets of the repr; subclasses may define this.

        Returns
        -------
        str
            Of one line or more.
        """
        return ""

    def __repr__(self) -> str:
        """Write `extra_repr`, then one or more lines for each part, as torch does."""
        extra = self.extra_repr()
        parts = [f"({name}): {self.__dict__[name]!r}".replace("\n", "\n  ") for name in self._module_names]
        lines = [*extra.splitlines(), *parts]
        inside = extra if not parts and len(lines) <= 1 else "\n  " + "\n  ".join(lines) + "\n"
        return f"{type(self).__name__}({inside})"
