"""Weights that hooks of torch's modules compute before every call, and that are an older call's until then."""

from __future__ import annotations

from typing import Any

__all__ = ["run_hooks"]


def run_hooks(module: Any) -> None:
    """Have torch compute the weights of weight_norm, spectral_norm and prune as eval mode would now.

    Parameters
    ----------
    module : torch.nn.Module
        With parts of any kind.
    """
    from torch.nn.utils.prune import BasePruningMethod
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):  # called, in training mode, it would write its vectors
                setattr(part, hook.name, hook.compute_weight(part, do_power_iteration=False))
            elif isinstance(hook, (BasePruningMethod, WeightNorm)):
                hook(part, None)
