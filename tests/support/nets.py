"""Small modules with every kind of attribute that a module can have, and their counterpart in torch."""

from __future__ import annotations

import numpy as np

from pyattn import nn


class Scale(nn.Module):
    """A parameter, a registered parameter that is None, and attributes that are not parameters."""

    def __init__(self, size, dtype=np.float32):
        super().__init__()
        self.size = size
        self.factor = np.arange(1, size + 1, dtype=dtype)
        self.register_parameter("offset", None)
        self.places = np.arange(size)

    def forward(self, x):
        y = x * self.factor
        return y if self.offset is None else y + self.offset

    def extra_repr(self):
        return f"size={self.size}"


class Net(nn.Module):
    """A module of modules, one of them under two names."""

    def __init__(self, rng=0):
        super().__init__()
        self.first = nn.Linear(4, 3, rng=rng)
        self.gain = np.ones((), np.float32)
        self.scale = Scale(3)
        self.again = self.scale
        self.absent = self.scale
        self.absent = None

    def forward(self, x):
        return self.again(self.scale(self.first(x))) * self.gain


X = np.random.default_rng(0).standard_normal((5, 4), np.float32)
KEYS = ["gain", "first.weight", "first.bias", "scale.factor", "again.factor"]


def torch_net(torch):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.arange(1.0, 4.0))
            self.register_parameter("offset", None)

        def extra_repr(self):
            return "size=3"

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 3)
            self.gain = torch.nn.Parameter(torch.ones(()))
            self.scale = Scale()
            self.again = self.scale
            self.absent = self.scale
            self.absent = None

    return Net()


def state_of(net):
    """Copy the state_dict."""
    return {key: array.copy() for key, array in net.state_dict().items()}
