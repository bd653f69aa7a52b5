"""Attention with parameters: many heads or one, in torch's layout or as papers write it, with a KV cache or without."""
