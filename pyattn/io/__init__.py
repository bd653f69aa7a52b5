"""Files: named arrays in .npz and .safetensors, and the config.json of a model. They cannot hold code."""

from pyattn.io.arrays import load, save

__all__ = ["load", "save"]
