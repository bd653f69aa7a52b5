"""Parameter initialisation: `torch.nn.init` for NumPy.

Every function fills its array in place and returns it. `rng` is an argument of `numpy.random.default_rng`: None for
fresh entropy, an int or SeedSequence for reproducible numbers, or a Generator, whose state advances. The same `rng`
gives the same numbers in float32 and float64, up to rounding.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from pyattn._util.arguments import as_choice, as_finite, as_number
from pyattn._util.halves import is_half, round_to
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray

__all__ = [
    "calculate_gain",
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

FanMode = Literal["fan_in", "fan_out"]

_GAINS = {"sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
_GAINS |= dict.fromkeys(["linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))], 1.0)


def uniform_(tensor: FloatArray, a: float = 0.0, b: float = 1.0, *, rng: RNG = None) -> FloatArray:
    """Fill an array from the uniform distribution over a <= x <= b.

    Parameters
    ----------
    tensor : ndarray of floats
        Filled in place.
    a, b : float
        The bounds. Default: 0.0 and 1.0.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or a or b is not a number.
    ValueError
        tensor is read-only, or a > b.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> nn.init.uniform_(np.empty(3), -1, 1, rng=0).round(4)
    array([ 0.2739, -0.4604, -0.9181])
    """
    _check_writable(tensor)
    a, b = as_number(a, "a"), as_number(b, "b")
    if not 0 <= b - a < math.inf:
        raise ValueError(f"a is {a} and b is {b}, expected finite bounds with a <= b")
    tensor[...] = round_to(as_generator(rng).uniform(a, b, tensor.shape), tensor.dtype)
    return tensor


def normal_(tensor: FloatArray, mean: float = 0.0, std: float = 1.0, *, rng: RNG = None) -> FloatArray:
    """Fill an array from the normal distribution.

    Parameters
    ----------
    tensor : ndarray of floats
        Filled in place.
    mean : float
        Default: 0.0.
    std : float
        Standard deviation, 0 or more. Default: 1.0.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or mean or std is not a number.
    ValueError
        tensor is read-only, or std is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> nn.init.normal_(np.empty(3), std=0.02, rng=0).round(4)
    array([ 0.0025, -0.0026,  0.0128])
    """
    _check_writable(tensor)
    mean, std = as_number(mean, "mean"), as_finite(std, "std", least=0)
    tensor[...] = round_to(as_generator(rng).normal(mean, std, tensor.shape), tensor.dtype)
    return tensor


def constant_(tensor: FloatArray, val: float) -> FloatArray:
    """Fill an array with one number.

    Parameters
    ----------
    tensor : ndarray of floats
        Filled in place.
    val : float
        The number.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or val is not a number.
    ValueError
        tensor is read-only.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> nn.init.constant_(np.empty(2), 0.5)
    array([0.5, 0.5])
    """
    _check_writable(tensor)
    tensor[...] = round_to(np.asarray(as_number(val, "val")), tensor.dtype)
    return tensor


def zeros_(tensor: FloatArray) -> FloatArray:
    """Fill an array with 0.

    Parameters
    ----------
    tensor : ndarray of floats
        Filled in place.

    Returns
    -------
    ndarray
        tensor.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> nn.init.zeros_(np.empty(2))
    array([0., 0.])
    """
    return constant_(tensor, 0.0)


def ones_(tensor: FloatArray) -> FloatArray:
    """Fill an array with 1.

    Parameters
    ----------
    tensor : ndarray of floats
        Filled in place.

    Returns
    -------
    ndarray
        tensor.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> nn.init.ones_(np.empty(2))
    array([1., 1.])
    """
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: FloatArray, gain: float = 1.0, *, rng: RNG = None) -> FloatArray:
    """Fill a weight from a uniform distribution, by Glorot initialisation.

    Numbers are within ``gain * sqrt(6 / (fan_in + fan_out))`` of 0. Glorot and Bengio (2010). A weight is (fan_out,
    fan_in), as in a linear layer; further axes multiply both fans.

    Parameters
    ----------
    tensor : ndarray of floats, (fan_out, fan_in, ...)
        Filled in place.
    gain : float
        A factor, 0 or more; see `calculate_gain`. Default: 1.0.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or gain is not a number.
    ValueError
        tensor is read-only or has less than 2 axes, or gain is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> bool(abs(nn.init.xavier_uniform_(np.empty((50, 100)))).max() <= 0.2)
    True
    """
    bound = math.sqrt(3) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, rng=rng)


def xavier_normal_(tensor: FloatArray, gain: float = 1.0, *, rng: RNG = None) -> FloatArray:
    """Fill a weight from a normal distribution, by Glorot initialisation.

    The standard deviation is ``gain * sqrt(2 / (fan_in + fan_out))``. Glorot and Bengio (2010). A weight is (fan_out,
    fan_in), as in a linear layer; further axes multiply both fans.

    Parameters
    ----------
    tensor : ndarray of floats, (fan_out, fan_in, ...)
        Filled in place.
    gain : float
        A factor, 0 or more; see `calculate_gain`. Default: 1.0.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or gain is not a number.
    ValueError
        tensor is read-only or has less than 2 axes, or gain is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> weight = nn.init.xavier_normal_(np.empty((300, 500)), rng=0)
    >>> print(f"{weight.std():.3f}")  # sqrt(2 / 800)
    0.050
    """
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), rng=rng)


def kaiming_uniform_(
    tensor: FloatArray,
    a: float = 0,
    mode: FanMode = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: RNG = None,
) -> FloatArray:
    """Fill a weight from a uniform distribution, by He initialisation.

    Numbers are within ``gain * sqrt(3 / fan)`` of 0. He et al. (2015). A weight is (fan_out, fan_in), as in a linear
    layer; further axes multiply both fans.

    Parameters
    ----------
    tensor : ndarray of floats, (fan_out, fan_in, ...)
        Filled in place.
    a : float
        The negative slope of 'leaky_relu'. Default: 0.
    mode : {'fan_in', 'fan_out'}
        'fan_in', the default, preserves the variance in the forward pass, 'fan_out' in the backward pass.
    nonlinearity : str
        Activation after the layer; see `calculate_gain`. Default: 'leaky_relu'.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or a is not a number.
    ValueError
        tensor is read-only or has less than 2 axes; another mode or nonlinearity.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> weight = nn.init.kaiming_uniform_(np.empty((50, 96)), nonlinearity="relu", rng=0)
    >>> print(f"{abs(weight).max():.2f}")  # sqrt(6 / 96)
    0.25
    """
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, rng=rng)


def kaiming_normal_(
    tensor: FloatArray,
    a: float = 0,
    mode: FanMode = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    rng: RNG = None,
) -> FloatArray:
    """Fill a weight from the normal distribution with ``std = gain / sqrt(fan)``.

    He et al. (2015). A weight is (fan_out, fan_in), as in a linear layer; further axes multiply both fans.

    Parameters
    ----------
    tensor : ndarray of floats, (fan_out, fan_in, ...)
        Filled in place.
    a : float
        The negative slope of 'leaky_relu'. Default: 0.
    mode : {'fan_in', 'fan_out'}
        'fan_in', the default, preserves the variance in the forward pass, 'fan_out' in the backward pass.
    nonlinearity : str
        Activation after the layer; see `calculate_gain`. Default: 'leaky_relu'.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray
        tensor.

    Raises
    ------
    TypeError
        tensor is not an array of floats, or a is not a number.
    ValueError
        tensor is read-only or has less than 2 axes; another mode or nonlinearity.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> weight = nn.init.kaiming_normal_(np.empty((300, 200)), nonlinearity="relu", rng=0)
    >>> print(f"{weight.std():.2f}")  # sqrt(2 / 200)
    0.10
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), rng=rng)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor on a weight that keeps the variance through a nonlinearity.

    Parameters
    ----------
    nonlinearity : str
        'linear', 'sigmoid', 'tanh', 'relu', 'leaky_relu' or 'selu'; torch's convolution names count as 'linear'.
    param : float, optional
        The negative slope of 'leaky_relu'. Default: 0.01.

    Returns
    -------
    float
        1 for 'linear'.

    Raises
    ------
    TypeError
        param is not a number.
    ValueError
        nonlinearity is unknown.

    Examples
    --------
    >>> from pyattn import nn
    >>> nn.init.calculate_gain("tanh")
    1.6666666666666667
    """
    return _gain(nonlinearity, param, "param")


def _gain(nonlinearity: str, given: Any, name: str) -> float:
    if as_choice(nonlinearity, "nonlinearity", [*_GAINS, "leaky_relu"]) != "leaky_relu":
        return _GAINS[nonlinearity]
    return math.sqrt(2 / (1 + as_number(0.01 if given is None else given, name) ** 2))


def _check_writable(tensor: Any) -> None:
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"tensor is of type {type(tensor).__name__}, expected a numpy.ndarray to fill in place")
    if tensor.dtype.kind != "f" and not is_half(tensor.dtype):
        raise TypeError(f"tensor has dtype {tensor.dtype}, expected floats")
    if not tensor.flags.writeable:
        raise ValueError("tensor is read-only; pass a copy")


def _fans(tensor: FloatArray) -> tuple[int, int]:
    """Return fan_in, the inputs of each output, and fan_out, the outputs of each input."""
    _check_writable(tensor)
    if tensor.ndim < 2:
        raise ValueError(f"tensor has shape {tensor.shape}, expected 2 axes or more: (fan_out, fan_in, ...)")
    further = math.prod(tensor.shape[2:])
    return tensor.shape[1] * further, tensor.shape[0] * further


def _xavier_std(tensor: FloatArray, gain: float) -> float:
    fan_in, fan_out = _fans(tensor)
    factor = as_finite(gain, "gain", least=0)
    return factor * math.sqrt(2 / max(1, fan_in + fan_out))  # both fans are 0 only for an empty tensor


def _kaiming_std(tensor: FloatArray, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _fans(tensor)
    fan = fan_in if as_choice(mode, "mode", get_args(FanMode)) == "fan_in" else fan_out
    return _gain(nonlinearity, a, "a") / math.sqrt(max(1, fan))
