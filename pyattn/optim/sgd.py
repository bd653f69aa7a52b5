"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, SupportsFloat

import pyattn._core as _core
from pyattn._util.arguments import as_finite, as_flag
from pyattn.optim.optimizer import Groups, HasGradients, Optimizer, Update, update_in_place

__all__ = ["SGD"]


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: `torch.optim.SGD` for NumPy.

    ``buffer = momentum * buffer + (1 - dampening) * g``, ``p -= lr * buffer``, where
    ``g = grad + weight_decay * p``. At the first step the buffer is g. With nesterov (Sutskever et al. 2013) it is
    ``p -= lr * (g + momentum * buffer)``; without momentum ``p -= lr * g``.

    Parameters
    ----------
    module : Module
        Its parameters are updated, from ``module.grads``.
    lr : float
        The learning rate. Default: 1e-3.
    momentum : float
        Default: 0, without a buffer.
    dampening : float
        Default: 0.
    weight_decay : float
        Default: 0.
    nesterov : bool
        Needs momentum, and dampening 0. Default: False.
    maximize : bool
        Go up along the gradient. Default: False.
    groups : sequence of dict, optional
        Parameter groups, as in `AdamW`. Default: None, one group of all parameters.

    Attributes
    ----------
    param_groups : list of dict
        ``"params"``, a list of names, and the options of each group, which may be changed between steps.
    state : dict of str to dict
        ``momentum_buffer`` of each parameter, by name.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An argument is out of range, a name in groups is unknown or twice there, or the module has no parameters.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> optim.SGD(nn.Linear(3, 2), lr=0.1, momentum=0.9)
    SGD(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False)
    """

    _arrays: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        module: HasGradients,
        lr: SupportsFloat = 1e-3,
        momentum: SupportsFloat = 0,
        dampening: SupportsFloat = 0,
        weight_decay: SupportsFloat = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        groups: Groups = None,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(module, {**options, "nesterov": nesterov, "maximize": maximize}, groups)

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        least = {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0}
        names = ("lr", "momentum", "dampening", "weight_decay")
        found: dict[str, Any] = {
            name: as_finite(options[name], name, least=least.get(name, float("-inf"))) for name in names
        }
        found |= {name: as_flag(options[name], name) for name in ("nesterov", "maximize")}
        if found["nesterov"] and (found["momentum"] == 0 or found["dampening"] != 0):
            raise ValueError("nesterov=True needs a momentum above 0, and dampening=0")
        return found

    def _uses(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return self._arrays if options["momentum"] != 0 else ()

    def _update(self, update: Update) -> None:
        o, state = update.options, self.state.get(update.name, {})
        begins = state.get("momentum_buffer") is None
        numbers = (o["lr"], o["momentum"], o["dampening"], o["weight_decay"])
        update_in_place(_core.sgd_step, update, (*numbers, begins, o["nesterov"], o["maximize"]))
        if self._uses(o):
            self.state[update.name] = dict(update.moments)
