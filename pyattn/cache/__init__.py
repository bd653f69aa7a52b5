"""What decoding keeps: the keys and values of the tokens so far, of every layer."""

from pyattn.cache.kv_cache import KVCache

__all__ = ["KVCache"]
