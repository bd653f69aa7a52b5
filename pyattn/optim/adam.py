"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, SupportsFloat

import pyattn._core as _core
from pyattn._util.arguments import as_finite, as_flag
from pyattn.optim.optimizer import Groups, HasGradients, Optimizer, Update, update_in_place

__all__ = ["Adam", "AdamW"]


class Adam(Optimizer):
    """Adam (Kingma and Ba 2014): `torch.optim.Adam` for NumPy.

    At step t, with ``g = grad + weight_decay * p``::

        exp_avg    = beta1 * exp_avg + (1 - beta1) * g
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g**2
        p -= lr / (1 - beta1**t) * exp_avg / (sqrt(exp_avg_sq / (1 - beta2**t)) + eps)

    A step is one pass over memory, in parallel, with the same bits for any number of threads. float16 and bfloat16
    parameters have state in float32, and are rounded once in a step. Denormal results are 0.

    Parameters
    ----------
    module : Module
        Its parameters are updated, from ``module.grads``.
    lr : float
        The learning rate. Default: 1e-3.
    betas : pair of float
        beta1 and beta2, from 0 to below 1. Default: (0.9, 0.999).
    eps : float
        Default: 1e-8.
    weight_decay : float
        Default: 0.
    amsgrad : bool
        Use the largest exp_avg_sq so far (Reddi et al. 2018). Default: False.
    maximize : bool
        Go up along the gradient. Default: False.
    groups : sequence of dict, optional
        Parameter groups, as in `AdamW`. Default: None, one group of all parameters.

    Attributes
    ----------
    param_groups : list of dict
        ``"params"``, a list of names, and the options of each group, which may be changed between steps.
    state : dict of str to dict
        ``step``, ``exp_avg``, ``exp_avg_sq`` and with amsgrad ``max_exp_avg_sq`` of each parameter, by name.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An argument is out of range, a name in groups is unknown or twice there, or the module has no parameters.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> optim.Adam(nn.Linear(3, 2), betas=(0.9, 0.98), eps=1e-9)
    Adam(lr=0.001, betas=(0.9, 0.98), eps=1e-09, weight_decay=0.0, amsgrad=False, maximize=False)
    """

    _arrays: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _counts: ClassVar[bool] = True
    _decoupled: ClassVar[bool] = False

    def __init__(
        self,
        module: HasGradients,
        lr: SupportsFloat = 1e-3,
        betas: tuple[SupportsFloat, SupportsFloat] = (0.9, 0.999),
        eps: SupportsFloat = 1e-8,
        weight_decay: SupportsFloat = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        groups: Groups = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(module, {**options, "amsgrad": amsgrad, "maximize": maximize}, groups)

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        betas = options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise TypeError(f"betas is {betas!r}, expected a pair of numbers")
        pair = tuple(as_finite(beta, f"betas[{n}]", least=0) for n, beta in enumerate(betas))
        for n, beta in enumerate(pair):
            if beta >= 1:
                raise ValueError(f"betas[{n}] is {beta}, expected a number below 1")
        return {
            "lr": as_finite(options["lr"], "lr", least=0),
            "betas": pair,
            "eps": as_finite(options["eps"], "eps", least=0),
            "weight_decay": as_finite(options["weight_decay"], "weight_decay", least=0),
            "amsgrad": as_flag(options["amsgrad"], "amsgrad"),
            "maximize": as_flag(options["maximize"], "maximize"),
        }

    def _uses(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return self._arrays if options["amsgrad"] else self._arrays[:2]

    def _check_kind(self, group: Mapping[str, Any]) -> None:
        super()._check_kind(group)
        if group.get("decoupled_weight_decay", self._decoupled) != self._decoupled:
            other = "Adam" if self._decoupled else "AdamW"
            raise ValueError(f"the state is of torch's {other}, which decays weights in another way; use {other}")

    def _update(self, update: Update) -> None:
        o, state = update.options, self.state.get(update.name, {})
        step = state.get("step", 0) + 1
        numbers = (o["lr"], *o["betas"], o["eps"], o["weight_decay"], step)
        update_in_place(_core.adam_step, update, (*numbers, self._decoupled, o["maximize"]))
        used = {key: moment for key, moment in update.moments.items() if moment is not None}
        self.state[update.name] = {**state, "step": step, **used}


class AdamW(Adam):
    """AdamW (Loshchilov and Hutter 2017): `torch.optim.AdamW` for NumPy.

    `Adam` whose weight decay does not pass through the moments: ``p *= 1 - lr * weight_decay`` comes before the update,
    and g is the gradient.

    Parameters
    ----------
    module : Module
        Its parameters are updated, from ``module.grads``.
    lr : float
        The learning rate. Default: 1e-3.
    betas : pair of float
        beta1 and beta2, from 0 to below 1. Default: (0.9, 0.999).
    eps : float
        Default: 1e-8.
    weight_decay : float
        Default: 1e-2.
    amsgrad : bool
        Use the largest exp_avg_sq so far (Reddi et al. 2018). Default: False.
    maximize : bool
        Go up along the gradient. Default: False.
    groups : sequence of dict, optional
        Parameters with options of their own: ``{"params": names, option: value, ...}``. Names are those of
        ``module.named_parameters()``. All other parameters form the last group. Default: None, one group of all
        parameters.

    Attributes
    ----------
    param_groups : list of dict
        ``"params"``, a list of names, and the options of each group, which may be changed between steps.
    state : dict of str to dict
        ``step``, ``exp_avg``, ``exp_avg_sq`` and with amsgrad ``max_exp_avg_sq`` of each parameter, by name.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An argument is out of range, a name in groups is unknown or twice there, or the module has no parameters.

    Examples
    --------
    Without weight decay of biases and norms, which have one axis:

    >>> from pyattn import nn, optim
    >>> model = nn.TransformerEncoderLayer(8, 2, 16)
    >>> small = [name for name, array in model.named_parameters() if array.ndim < 2]
    >>> optimizer = optim.AdamW(model, weight_decay=0.1, groups=[{"params": small, "weight_decay": 0}])
    >>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
    [(8, 0.0), (4, 0.1)]
    """

    _decoupled: ClassVar[bool] = True

    def __init__(
        self,
        module: HasGradients,
        lr: SupportsFloat = 1e-3,
        betas: tuple[SupportsFloat, SupportsFloat] = (0.9, 0.999),
        eps: SupportsFloat = 1e-8,
        weight_decay: SupportsFloat = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        groups: Groups = None,
    ) -> None:
        super().__init__(module, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, groups=groups)
