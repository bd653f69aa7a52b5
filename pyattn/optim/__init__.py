"""Optimisers, gradient clipping and schedules: `torch.optim` for NumPy.

An optimiser updates the parameters of a module in place, from `module.grads`. Options, formulas, their order of
operations and the form of `state_dict` are torch's, so a run can move from one library to the other.

>>> from pyattn import nn, optim
>>> optim.AdamW(nn.Linear(3, 2), lr=3e-4)
AdamW(lr=0.0003, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01, amsgrad=False, maximize=False)
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.optim.adam import Adam, AdamW
from pyattn.optim.clipping import clip_grad_norm_
from pyattn.optim.optimizer import Optimizer
from pyattn.optim.schedules import CosineWarmupLR, LambdaLR, LRScheduler, TransformerLR
from pyattn.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CosineWarmupLR",
    "LRScheduler",
    "LambdaLR",
    "Optimizer",
    "TransformerLR",
    "clip_grad_norm_",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)
