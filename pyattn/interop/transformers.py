"""Attention for the models of Hugging Face's transformers.

The library is imported when `register` is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["register"]

# Arguments of transformers' attention that change what it computes, in models that pyattn does not know.
_UNKNOWN = "softcap", "s_aux", "sinks", "cache", "indices", "block_indices"


def register() -> None:
    """Add pyattn to transformers as an implementation of attention.

    Then ``AutoModel.from_pretrained(..., attn_implementation="pyattn")``, or
    ``model.set_attn_implementation("pyattn")``, lets pyattn compute the attention of a model on the CPU, with
    gradients and dropout in training. Masks are those of transformers' "sdpa": causal, padding and sliding windows,
    with any cache. ``output_attentions=True`` works, too, in torch where gradients are required. In a model whose code
    does not ask for an implementation, such as Bloom's, attention stays transformers' own. To compute whole layers in
    pyattn, which gains more, call `pyattn.interop.torch.accelerate`.

    Raises
    ------
    ImportError
        transformers or PyTorch is not installed.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.interop.transformers.register()  # doctest: +SKIP
    >>> model.set_attn_implementation("pyattn")  # doctest: +SKIP
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask, sdpa_mask
    except ImportError as missing:
        raise ImportError("pyattn.interop.transformers needs transformers: pip install transformers torch") from missing
    AttentionInterface.register("pyattn", _attend)

    def make_mask(*args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Make masks as for "sdpa"; as for "eager" where a model's own code adds them to scores."""
        home = type(config).__module__.replace(".configuration_", ".modeling_")
        make = sdpa_mask if hasattr(sys.modules.get(home), "ALL_ATTENTION_FUNCTIONS") else eager_mask
        return make(*args, config=config, **kwargs)

    AttentionMaskInterface.register("pyattn", make_mask)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention as transformers calls it, from (N, heads, length, dim) to (N, length, heads, dim)."""
    from pyattn.interop.torch.attention import attend_as_transformers

    for name in _UNKNOWN:
        if more.get(name) is not None:
            raise ValueError(f"attn_implementation 'pyattn' does not support {name}; use 'eager'")
    length = query.shape[-2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and length > 1
    if causal:  # an empty static cache is longer
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
    if position_bias is not None:
        from transformers.integrations.sdpa_attention import create_position_bias_mask

        attention_mask = create_position_bias_mask(position_bias, attention_mask, causal, query, key)
        causal = False
    need_weights = bool(more.get("output_attentions")) or _collects_weights()
    return attend_as_transformers(query, key, value, attention_mask, dropout, causal, scaling, need_weights)


def _collects_weights() -> bool:
    """Tell whether the model that is being called returns attention weights."""
    from transformers.utils import output_capturing

    collected: Any = output_capturing._active_collector.get()
    return any(name.endswith("attentions") for name in collected or ())
