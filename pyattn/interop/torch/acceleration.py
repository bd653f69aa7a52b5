"""Let pyattn compute the modules of a torch model that it computes faster, on their own memory."""

from __future__ import annotations

import copyreg
import functools
import re
import weakref
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy
from torch.utils._device import DeviceContext

from pyattn._util.arguments import as_flag
from pyattn._util.messages import short_repr
from pyattn._util.warnings import warn
from pyattn.interop.torch.kinds import Compute, find_kind, make_compute
from pyattn.interop.torch.reading import is_faster_in_torch, leaves_rows
from pyattn.interop.torch.snapshot import Snapshot, UnfitError
from pyattn.interop.torch.tensors import original_class
from pyattn.interop.torch.threads import call_on_torchs_threads
from pyattn.interop.torch.training import find_differentiable

__all__ = ["Acceleration", "accelerate", "restore"]

_Makes: TypeAlias = tuple[Callable[[Any], Compute] | None, Callable[[Any], Compute] | None]
_Computes: TypeAlias = tuple[Compute | None, Compute | None]
_PACKAGES = "pyattn", "torch", "transformers"
_STATE = "_pyattn_state"  # in an accelerated module's __dict__


class Acceleration:
    """What `accelerate` has replaced; as a context manager, for how long.

    `restore` is called at the end of a ``with`` statement.

    Parameters
    ----------
    model : torch.nn.Module
        As given to `accelerate`.
    strict : bool
        As given to `accelerate`.
    training : bool
        As given to `accelerate`.

    Attributes
    ----------
    replaced : dict of str to str
        The class of each module that pyattn computes, by its name in the model.
    kept : dict of str to str
        Why a module stays torch's, by its name in the model: one of a known class, or one of several layers, in a
        `torch.nn.ModuleList`, of a class that pyattn does not know.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> layer = torch.nn.Linear(3, 2).eval()  # doctest: +SKIP
    >>> with pyattn.interop.torch.accelerate(layer) as report:  # doctest: +SKIP
    ...     report.replaced
    {'': 'Linear'}
    """

    def __init__(self, model: torch.nn.Module, strict: bool, training: bool) -> None:
        self._model, self._strict = weakref.ref(model), strict  # the model refers to this
        self._training = training
        self._warned: set[str] = set()
        self._kept: Counter[tuple[str, str]] = Counter()  # by class and reason
        self._leaves_rows = False  # many rows, as torch multiplies them faster
        self.replaced: dict[str, str] = {}
        self.kept: dict[str, str] = {}

    def __enter__(self) -> Acceleration:
        """Return the report."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the model."""
        model = self._model()
        if model is not None:
            restore(model)

    def __repr__(self) -> str:
        """Count the classes, and list the reasons."""
        counts = Counter(self.replaced.values())
        nothing = "nothing" if self.kept else "nothing, as pyattn knows none of its modules"
        lines = ["replaced: " + (", ".join(f"{count} {name}" for name, count in counts.items()) or nothing)]
        lines += [f"kept: {count} {name}, as {why}" for (name, why), count in self._kept.items()]
        if self._leaves_rows:
            lines.append("kept: calls with 8 rows of bfloat16 or more, as PyTorch computes them faster on this CPU")
        return "\n".join(lines)

    def _keep(self, name: str, module: torch.nn.Module, reason: str) -> None:
        self.kept[name] = reason
        self._kept[type(module).__name__, reason] += 1

    def _fall_back(self, name: str, reason: UnfitError) -> None:
        """Warn, once for each reason but for its numbers, that torch computes a call; raise with strict."""
        if self._strict:
            raise RuntimeError(f"pyattn cannot compute this call of {name}: {reason}") from None
        kind = re.sub(r"\d+", "#", str(reason))  # shapes may be new in every call
        if kind not in self._warned:
            self._warned.add(kind)
            warn(RuntimeWarning, f"PyTorch computes {name} itself: {reason}", outside=_PACKAGES)


class _State:
    """How an accelerated module computes; made anew when the module has changed."""

    __slots__ = ("acceleration", "differentiable", "laid_out", "make", "multiplies", "reading")

    def __init__(self, acceleration: Acceleration, makes: _Makes, module: torch.nn.Module) -> None:
        self.acceleration = acceleration
        self.make, self.differentiable = makes
        self.multiplies = any(one.ndim == 2 for one in module.parameters())  # what it is given, with its weights
        self.laid_out = False  # whether accelerate has laid the weight out as (in, out)
        self.reading: tuple[_Computes, Snapshot] | None = None  # in one piece, as threads share it

    def read(self, module: torch.nn.Module) -> tuple[_Computes, Snapshot]:
        """Return what computes the module as it is now, without gradients and with them."""
        reading = self.reading
        if reading is None or not reading[1].is_current():
            for part in module.modules():  # whose readings would keep replaced parameters alive
                if _STATE in vars(part):
                    vars(part)[_STATE].reading = None
            snapshot = Snapshot(module)
            reading = self.reading = _make((self.make, self.differentiable), module), snapshot
        return reading


def _make(makes: _Makes, module: torch.nn.Module) -> _Computes:
    """Make what computes a module, without gradients and with them; None: its parts do."""
    plain, differentiable = (None if make is None else make_compute(make, module) for make in makes)
    return plain, differentiable


def accelerate(
    model: torch.nn.Module,
    *,
    order: Literal["in_out"] | None = None,
    strict: bool = False,
    training: bool = False,
) -> Acceleration:
    """Compute a model of torch in pyattn, on the CPU: its inference, or training, too.

    pyattn replaces torch's `MultiheadAttention`, `TransformerEncoder`, `TransformerDecoder` and their layers, `Linear`,
    `Embedding`, `LayerNorm`, `RMSNorm`, `GELU`, `SiLU`, and a `Sequential` of two linear layers around an activation.
    In transformers it replaces whole layers of BERT, RoBERTa, DistilBERT, ALBERT, ViT, GPT-2, Llama, Mistral and Qwen2.
    The model and its modules stay the same objects. Until `restore`, their classes are subclasses of the same name.
    Inputs and outputs are tensors. Parameters stay in torch's memory, without a copy, and may change or move. Call
    accelerate again after you change another attribute, such as eps, or a class. Hooks, ``state_dict``, ``repr``,
    ``train`` and ``to`` work as before. Copies and saved files have torch's own classes and are not accelerated.

    `torch.get_num_threads` sets the number of threads, unless pyattn's own number is set. On Linux, torch's own threads
    compute. On CPUs with bfloat16 instructions, torch computes calls of eight rows or more with bfloat16 weights,
    because it is faster there.

    With ``training=True`` pyattn computes gradients, too, and modules in training mode: of attention, torch's and that
    of the models of transformers above, of `Linear`, `Embedding`, the norms, `GELU` and `SiLU`. In such calls layers
    run torch's own code, whose parts are pyattn's, so that dropout, hooks and frozen parameters work as in torch.

    torch computes the calls that pyattn cannot, with one warning for each reason: without ``training=True``, gradients
    are enabled and a tensor requires one, or the model is in training mode; autocast is on, a layer's part has a hook,
    a layer of transformers returns attention weights, or tensors are on another device. `torch.compile`,
    `torch.export` and `torch.jit.trace` see torch's own code, and so do `torch.func` and forward mode. torch computes
    gradients of gradients and batches of gradients. Restore the model before `torch.jit.script`.

    A query with nothing to attend to gives 0 where torch's attention gives NaN. With ``is_causal=True``,
    ``need_weights=False`` and ``add_bias_kv`` or ``add_zero_attn``, torch's `MultiheadAttention` applies the causal
    mask to the extra keys, too. In pyattn every query sees them, as in torch with ``need_weights=True``.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU, in float32, float64, float16 or bfloat16. For inference, call ``model.eval()``, and the model within
        `torch.inference_mode` or `torch.no_grad`.
    order : {'in_out'}, optional
        Store the weights of linear layers in memory as (in, out), which makes decoding faster, until `restore`. Their
        shape stays, but they and copies of the model are not contiguous. Weights that share memory with other
        parameters, such as an embedding, stay as they are. Default: None, all stay.
    strict : bool
        Raise instead of letting torch compute a call. Default: False.
    training : bool
        Compute calls in training mode, and gradients. Default: False, torch does.

    Returns
    -------
    Acceleration
        What was replaced, what not, and why. As a context manager it calls `restore` at the end.

    Raises
    ------
    TypeError
        model is not a torch.nn.Module, or strict or training is not a bool.
    ValueError
        order is neither 'in_out' nor None.
    ImportError
        PyTorch is not installed.

    Warns
    -----
    RuntimeWarning
        In a call of the model that torch computes, with the reason; with strict it is a RuntimeError.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()  # doctest: +SKIP
    >>> report = pyattn.interop.torch.accelerate(layer)  # doctest: +SKIP
    >>> with torch.inference_mode():  # doctest: +SKIP
    ...     layer(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    >>> pyattn.interop.torch.restore(layer)  # doctest: +SKIP
    """
    _check_module(model)
    if order not in (None, "in_out"):
        raise ValueError(f"order is {short_repr(order)}, expected 'in_out' or None")
    acceleration = Acceleration(model, as_flag(strict, "strict"), as_flag(training, "training"))
    restore(model)
    states: dict[torch.nn.Module, _State] = {}
    layers = _find_layers(model)
    for name, module in model.named_modules():
        makes = find_kind(module), find_differentiable(module) if training else None
        if makes == (None, None):
            if module in layers:
                acceleration._keep(name, module, "pyattn does not know this class, at most its parts")
            continue
        try:
            _make(makes, module)
        except UnfitError as reason:
            acceleration._keep(name, module, str(reason))
            continue
        states[module] = _State(acceleration, makes, module)
        acceleration.replaced[name] = type(module).__name__
    acceleration._leaves_rows = any(map(leaves_rows, states))
    if order is not None:
        _lay_out(model, states)
    for module, state in states.items():
        kind: Any = type(module)
        vars(module)[_STATE] = state
        module.__class__ = _accelerated(kind)
    return acceleration


def _check_module(model: object) -> None:
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}, expected an instance: {model.__name__}(...)")
    if isinstance(model, str):
        raise TypeError("model is a string, expected torch.nn.Module: load it, as by transformers' from_pretrained")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}, expected torch.nn.Module")


def _find_layers(model: torch.nn.Module) -> set[torch.nn.Module]:
    """Find the layers of which a model has several; not groups of them."""
    kind = torch.nn.ModuleList
    listed = {part for stack in model.modules() if isinstance(stack, kind) for part in stack.children()}
    return {one for one in listed if one._modules and not any(isinstance(part, kind) for part in one.modules())}


def _lay_out(model: torch.nn.Module, states: dict[torch.nn.Module, _State]) -> None:
    """Lay the weights of linear layers out as (in, out), where no other module has the same memory."""
    owned = (one for part in model.modules() for held in (part._parameters, part._buffers) for one in held.values())
    owners = Counter(map(_address, owned))
    for module, state in states.items():
        weight = module.weight if isinstance(module, torch.nn.Linear) else None
        if weight is None or weight.is_shared() or not weight.is_contiguous() or min(weight.shape) < 2:
            continue
        if owners[_address(weight)] == 1:
            _set_memory(weight, lambda data: data.T.contiguous().T)
            state.laid_out = True


def _address(tensor: torch.Tensor | None) -> int | None:
    """Return where a tensor's memory begins, if it has one that an array can have."""
    if tensor is None or is_lazy(tensor) or not tensor.is_cpu or tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage().data_ptr())


def _set_memory(parameter: torch.nn.Parameter, lay: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Move a parameter's numbers, in the mode in which it was made: torch looks at that later."""
    with torch.inference_mode(parameter.is_inference()), torch.no_grad():
        parameter.data = lay(parameter.data)


def restore(model: torch.nn.Module) -> None:
    """Let torch compute a model again, as before `accelerate`.

    Parameters
    ----------
    model : torch.nn.Module
        It stays the same object, with the same parameters. One that is not accelerated stays as it is.

    Raises
    ------
    TypeError
        model is not a torch.nn.Module.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> pyattn.interop.torch.restore(torch.nn.Linear(3, 2))  # doctest: +SKIP
    """
    _check_module(model)
    for module in model.modules():
        kind: Any = type(module)
        state = vars(module).pop(_STATE, None)
        weight: Any = module._parameters.get("weight")  # another one by now, perhaps, in the same order
        if state is not None and state.laid_out and weight is not None:
            _set_memory(weight, torch.Tensor.contiguous)
        if kind is not original_class(kind):
            module.__class__ = original_class(kind)
            continue
        while kind is not object and original_class(kind.__base__) is kind.__base__:
            kind = kind.__base__
        if kind is not object:  # a parametrization of torch has derived a class of its own since
            kind.__bases__ = tuple(original_class(base) for base in kind.__bases__)


@functools.cache
def _accelerated(original: Any) -> Any:
    """Derive the class of accelerated modules, of the same name; copies and pickles are of the original."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # they see the original
            return original.forward(self, *args, **kwargs)
        state = vars(self).get(_STATE)
        if state is None:  # e.g. a copy that another library made of the dict
            return original.forward(self, *args, **kwargs)
        try:
            return _compute(self, state, args, kwargs)
        except UnfitError as reason:
            state.acceleration._fall_back(original.__name__, reason)
        return original.forward(self, *args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        _, _, state, *rest = super(kind, self).__reduce_ex__(protocol)
        state = {name: value for name, value in state.items() if name != _STATE}
        make = vars(copyreg)["_reconstructor"]  # the stubs lack it
        return make, (original, object, None), state, *rest

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = super(kind, self)._apply(*args, **kwargs)
        state = vars(self).get(_STATE)
        if state is not None:
            state.reading = None  # which would keep the memory of replaced parameters
        return result

    own = {"_pyattn_original": original, "forward": forward, "__reduce_ex__": reduce, "_apply": apply}
    own |= {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    kind: Any = type(original.__name__, (original,), own)
    return kind


def _compute(module: Any, state: _State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a call in the core, or in torch where that is faster, or raise `UnfitError`."""
    if torch.is_autocast_enabled("cpu"):
        raise UnfitError("autocast is on")
    training = state.acceleration._training
    if module.training and not training:
        raise UnfitError("it is in training mode; call model.eval(), or pass training=True to accelerate")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UnfitError("torch.func sees each of its steps")
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() or _is_watched():
        raise UnfitError("forward-mode gradients or a mode of torch see each of its steps")
    forward = original_class(type(module)).forward
    is_faster = state.multiplies and is_faster_in_torch(next(iter((*args, *kwargs.values())), None))
    if is_faster and not torch.is_grad_enabled():  # reading the module would take longer than it gains
        return forward(module, *args, **kwargs)
    (compute, differentiable), snapshot = state.read(module)
    if torch.is_grad_enabled() and (snapshot.requires_grad() or _any_requires_grad((*args, *kwargs.values()))):
        if not training:
            raise UnfitError(
                "gradients are enabled; call it within torch.inference_mode(), or pass training=True to accelerate"
            )
        compute = differentiable
    elif training and (compute is None or module.training or snapshot.is_training()):
        compute = differentiable
    else:
        snapshot.check_calls()
    if is_faster or compute is None:  # its parts compute, or torch
        return forward(module, *args, **kwargs)
    try:
        if compute is differentiable:  # which sets the number of threads in each operation
            return compute(module, *args, **kwargs)
        return call_on_torchs_threads(compute, *args, **kwargs)
    except (TypeError, ValueError) as error:
        raise UnfitError(f"{error}") from error


def _is_watched() -> bool:
    """Tell whether a mode sees functions of torch, other than the one that makes tensors on a device."""
    count = torch._C._len_torch_function_stack()
    return any(type(torch._C._get_function_stack_at(n)) is not DeviceContext for n in range(count))


def _any_requires_grad(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
