"""The samples with which torch tests its own functions and modules."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings


def import_internal(name):
    """Import a module of torch.testing._internal, which asks for expecttest, but for its TestCase alone."""
    stand_in = "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None
    if stand_in:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(f"torch.testing._internal.{name}")
    finally:
        if stand_in:
            del sys.modules["expecttest"]
