"""The one call that torch's encoder layer makes in eval mode, in place of calls of its parts."""

from __future__ import annotations

from typing import Any

__all__ = ["check_fast_path"]


def check_fast_path(theirs: Any) -> None:
    """Refuse what the fast path leaves out or fails with, unless the layer never takes it.

    Parameters
    ----------
    theirs : torch.nn.TransformerEncoderLayer
        With parts of any kind.

    Raises
    ------
    ValueError
        A part is not what the fast path takes it for.
    """
    import torch

    attention, norms = theirs.self_attn, (theirs.norm1, theirs.norm2)
    fast = attention.batch_first and attention.in_proj_bias is not None and attention.num_heads % 2 == 0
    fast = fast and theirs.activation_relu_or_gelu and len({getattr(norm, "eps", None) for norm in norms}) == 1
    if not (fast and torch.backends.mha.get_fastpath_enabled()):
        return
    biased = (*norms, theirs.linear1, theirs.linear2, attention.out_proj)
    cannot = {
        "add_bias_kv or add_zero_attn": attention.bias_k is not None or attention.add_zero_attn,
        "norms other than LayerNorm": any(type(norm) is not torch.nn.LayerNorm for norm in norms),
        "norms of several axes": any(len(getattr(norm, "normalized_shape", "1")) != 1 for norm in norms),
        "parts without a bias beside a self_attn with one": any(getattr(part, "bias", None) is None for part in biased),
    }
    for what, found in cannot.items():
        if found:
            raise ValueError(
                f"module has {what}, which the fast path of torch.nn.TransformerEncoderLayer does not compute; turn "
                "that off: torch.backends.mha.set_fastpath_enabled(False)"
            )
