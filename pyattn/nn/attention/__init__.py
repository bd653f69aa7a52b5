"""Attention with parameters: multi-head in torch's layout or per head as in papers, single-head, with a KV cache."""
