"""Read and write named arrays in .npz and .safetensors files, which cannot contain code."""

from pyattn.io.arrays import load, save

__all__ = ["load", "save"]
