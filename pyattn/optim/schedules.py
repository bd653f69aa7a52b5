"""Learning-rate schedules: each sets ``lr`` in an optimiser's ``param_groups``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex

from pyattn._util.arguments import as_count, as_finite, as_number
from pyattn._util.names import naming_keywords_of_class
from pyattn.optim.optimizer import Optimizer

__all__ = ["CosineWarmupLR", "LRScheduler", "LambdaLR", "TransformerLR"]


class LRScheduler:
    """Base of all schedules: `torch.optim.lr_scheduler.LRScheduler` for NumPy.

    Making one sets the learning rates of the first step. Call `step` after each `Optimizer.step`. A subclass defines
    `get_lr`.

    Parameters
    ----------
    optimizer : Optimizer
        Its ``param_groups`` are changed.

    Attributes
    ----------
    base_lrs : list of float
        The learning rates of the groups before their first schedule; each group holds its own as ``"initial_lr"``.
    last_epoch : int
        How many times `step` was called.

    Raises
    ------
    TypeError
        optimizer is not an Optimizer.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> class Halving(optim.LRScheduler):
    ...     def get_lr(self):
    ...         return [lr / 2**self.last_epoch for lr in self.base_lrs]
    >>> optimizer = optim.SGD(nn.Linear(2, 1), lr=1.0)
    >>> schedule = Halving(optimizer)
    >>> schedule.step()
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is of type {type(optimizer).__name__}, expected one of pyattn.optim")
        self.optimizer = optimizer
        for group in optimizer.param_groups:  # as torch does: a later schedule begins there, too
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set_lr()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the refusal of an unknown keyword say which one was meant."""
        super().__init_subclass__(**kwargs)
        naming_keywords_of_class(cls)

    def get_lr(self) -> list[float]:
        """Compute the learning rates for `last_epoch`; every subclass defines this.

        Returns
        -------
        list of float
            One for each group.

        Raises
        ------
        NotImplementedError
            The class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def get_last_lr(self) -> list[float]:
        """Return the learning rates in use.

        Returns
        -------
        list of float
            One for each group.
        """
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        """Set the learning rates of the next step."""
        self.last_epoch += 1
        self._set_lr()

    def _set_lr(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Collect what changes with each step.

        Returns
        -------
        dict
            ``base_lrs`` and ``last_epoch``.
        """
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from this state, and set the learning rates.

        Parameters
        ----------
        state_dict : dict
            From `state_dict`, or of a schedule of torch; other entries than these are ignored.

        Raises
        ------
        TypeError
            state_dict is not a dict with ``base_lrs`` and ``last_epoch``.
        ValueError
            It is of an optimiser with another number of groups, or a value is out of range.
        """
        if not isinstance(state_dict, Mapping) or not {"base_lrs", "last_epoch"} <= {*state_dict}:
            raise TypeError(
                f"state_dict is of type {type(state_dict).__name__}, expected a dict with 'base_lrs' and 'last_epoch'"
            )
        given = state_dict["base_lrs"]
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"base_lrs is of type {type(given).__name__}, expected a list of numbers, one a group")
        base_lrs = [as_finite(lr, "base_lrs", least=0) for lr in given]
        if len(base_lrs) != len(self.base_lrs):
            raise ValueError(f"the state has {len(base_lrs)} groups, expected {len(self.base_lrs)}")
        self.last_epoch = as_count(state_dict["last_epoch"], "last_epoch", least=0)
        self.base_lrs = base_lrs
        self._set_lr()


class LambdaLR(LRScheduler):
    """``lr = base_lr * lr_lambda(n)`` after n steps, as torch's `LambdaLR`.

    Parameters
    ----------
    optimizer : Optimizer
        Its ``param_groups`` are changed.
    lr_lambda : function or sequence of functions
        Takes the number of steps, returns a factor; a sequence has one for each group.

    Attributes
    ----------
    base_lrs : list of float
        The learning rates of the groups before their first schedule; each group holds its own as ``"initial_lr"``.
    last_epoch : int
        How many times `step` was called.

    Raises
    ------
    TypeError
        lr_lambda is neither a function nor a sequence of functions.
    ValueError
        The sequence has another length than the optimiser's groups.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> optimizer = optim.SGD(nn.Linear(2, 1), lr=1.0)
    >>> schedule = optim.LambdaLR(optimizer, lambda n: 0.9**n)
    >>> schedule.step()
    >>> schedule.get_last_lr()
    [0.9]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], SupportsFloat] | Sequence[Callable[[int], SupportsFloat]],
    ) -> None:
        groups = len(getattr(optimizer, "param_groups", ()))
        if not isinstance(lr_lambda, Iterable) and not callable(lr_lambda):
            raise TypeError(
                f"lr_lambda is of type {type(lr_lambda).__name__}, expected a function, such as lambda n: 0.9**n, or "
                "a list of functions"
            )
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        for n, function in enumerate(self.lr_lambdas):
            if not callable(function):
                raise TypeError(f"lr_lambda[{n}] is of type {type(function).__name__}, expected a function")
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"lr_lambda has {len(self.lr_lambdas)} functions, expected {groups}: one for each group")
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Multiply the first learning rates.

        Returns
        -------
        list of float
            One for each group.
        """
        factors = [as_number(factor(self.last_epoch), "the result of lr_lambda") for factor in self.lr_lambdas]
        return [lr * factor for lr, factor in zip(self.base_lrs, factors, strict=True)]


class TransformerLR(LRScheduler):
    """The schedule of "Attention Is All You Need", section 5.3.

    ``lr = d_model**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)`` in step n = 1, 2, 3 ...: it grows to the end of the
    warm-up, and falls with the square root of the steps. The optimiser's own lr is ignored; the paper takes
    ``Adam(model, betas=(0.9, 0.98), eps=1e-9)``.

    Parameters
    ----------
    optimizer : Optimizer
        Its ``param_groups`` are changed.
    d_model : int
        The model's width; a larger one has smaller learning rates.
    warmup_steps : int
        1 or more. Default: 4000.
    factor : float
        Multiplies all learning rates. Default: 1.0.

    Attributes
    ----------
    base_lrs : list of float
        The learning rates of the groups before their first schedule; each group holds its own as ``"initial_lr"``.
    last_epoch : int
        How many times `step` was called.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        d_model or warmup_steps is below 1, or factor is negative or not finite.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> optimizer = optim.Adam(nn.Linear(2, 1), betas=(0.9, 0.98), eps=1e-9)
    >>> schedule = optim.TransformerLR(optimizer, d_model=512)
    >>> f"{schedule.get_last_lr()[0]:.3g}"
    '1.75e-07'
    """

    def __init__(
        self,
        optimizer: Optimizer,
        d_model: SupportsIndex,
        warmup_steps: SupportsIndex = 4000,
        factor: SupportsFloat = 1.0,
    ) -> None:
        self.d_model = as_count(d_model, "d_model", least=1)
        self.warmup_steps = as_count(warmup_steps, "warmup_steps", least=1)
        self.factor = as_finite(factor, "factor", least=0)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Compute the paper's learning rate.

        Returns
        -------
        list of float
            The same for each group.
        """
        n = self.last_epoch + 1
        lr = self.factor * self.d_model**-0.5 * min(n**-0.5, n * self.warmup_steps**-1.5)
        return [lr] * len(self.base_lrs)


class CosineWarmupLR(LRScheduler):
    """Linear warm-up, then half a cosine down to 0.

    After n steps the factor of the learning rate is ``n / warmup_steps`` in the warm-up, then
    ``(1 + cos(2 * pi * num_cycles * t)) / 2`` with t from 0 to 1 up to total_steps (Loshchilov and Hutter 2016). These
    are the numbers of transformers' ``get_cosine_schedule_with_warmup``: the first step has the learning rate 0.

    Parameters
    ----------
    optimizer : Optimizer
        Its ``param_groups`` are changed.
    warmup_steps : int
        0 or more.
    total_steps : int
        All steps, warm-up included. After them the cosine goes on, so the learning rate rises again: stop there.
    num_cycles : float
        How many waves of the cosine. Default: 0.5, down to 0.

    Attributes
    ----------
    base_lrs : list of float
        The learning rates of the groups before their first schedule; each group holds its own as ``"initial_lr"``.
    last_epoch : int
        How many times `step` was called.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        A number of steps or num_cycles is negative, or total_steps is below warmup_steps.

    Examples
    --------
    >>> from pyattn import nn, optim
    >>> optimizer = optim.AdamW(nn.Linear(2, 1), lr=1.0)
    >>> schedule, lrs = optim.CosineWarmupLR(optimizer, 2, 6), []
    >>> for _ in range(7):
    ...     lrs.append(round(schedule.get_last_lr()[0], 3))
    ...     schedule.step()
    >>> lrs
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: SupportsIndex,
        total_steps: SupportsIndex,
        num_cycles: SupportsFloat = 0.5,
    ) -> None:
        self.warmup_steps = as_count(warmup_steps, "warmup_steps", least=0)
        self.total_steps = as_count(total_steps, "total_steps", least=0)
        self.num_cycles = as_finite(num_cycles, "num_cycles", least=0)
        if self.total_steps < self.warmup_steps:
            raise ValueError(f"total_steps is {self.total_steps}, below warmup_steps, {self.warmup_steps}")
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Multiply the first learning rates.

        Returns
        -------
        list of float
            One for each group.
        """
        n, warmup = self.last_epoch, self.warmup_steps
        if n < warmup:
            factor = n / warmup
        else:
            progress = (n - warmup) / max(1, self.total_steps - warmup)
            factor = 0.5 * (1.0 + math.cos(math.pi * self.num_cycles * 2.0 * progress))
        return [lr * factor for lr in self.base_lrs]
