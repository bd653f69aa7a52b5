"""Read and write named arrays in .npz and .safetensors files.

Reading a file never runs code from it.
"""

from pyattn.io.arrays import load, save

__all__ = ["load", "save"]
