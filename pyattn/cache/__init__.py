"""KV cache: the keys and values of the tokens so far, for every layer."""

from pyattn.cache.kv_cache import KVCache

__all__ = ["KVCache"]
