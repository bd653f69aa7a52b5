"""The version, said once: setup.py, the C core and `pyattn.__version__` read it here."""

__version__ = "0.1.0"
