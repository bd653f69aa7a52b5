"""Judge the results of any attention.

>>> import numpy as np, pyattn
>>> query = key = value = np.eye(3)
>>> pyattn.testing.assert_attention_close(pyattn.attention(query, key, value), query, key, value)
"""

from pyattn.testing.closeness import assert_attention_close

__all__ = ["assert_attention_close"]
