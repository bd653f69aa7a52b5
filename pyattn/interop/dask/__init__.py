"""Attention and encoders on many processes or machines, with dask.

Importing this module requires dask.
"""

try:
    import dask.array  # noqa: F401
except ImportError as missing:
    raise ImportError("pyattn.interop.dask needs dask: pip install 'dask[array]' distributed") from missing

from pyattn.interop.dask._attention import attention
from pyattn.interop.dask._documents import Documents, map_documents

__all__ = ["Documents", "attention", "map_documents"]
