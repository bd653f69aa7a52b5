"""Frequencies of rotary position embedding, and their scaling for longer sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_count, as_finite, as_flag, as_index
from pyattn._util.messages import short_repr
from pyattn._util.typing import FloatArray, Layout

__all__ = ["RotaryFrequencies", "depends_on_length", "rotary_frequencies", "sequence_length"]

Array = npt.NDArray[np.float64]

_THETA = 10000.0

# Required and optional keys of each rope_type.
_ANYWHERE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (
        (),
        (
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor"),
        ("factor", "original_max_position_embeddings", "attention_factor"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor"),
        ("original_max_position_embeddings",),
    ),
}


class RotaryFrequencies(NamedTuple):
    """Result of `rotary_frequencies`.

    Attributes
    ----------
    inv_freq : ndarray of float64, (rotary_dim // 2,)
        Angle in radians by which each pair rotates from one position to the next.
    attention_factor : float
        Factor on sines and cosines: 1.0 except for YaRN and LongRoPE.

    Examples
    --------
    >>> import pyattn
    >>> frequencies = pyattn.functional.rotary_frequencies(4)
    >>> frequencies.inv_freq, frequencies.attention_factor
    (array([1.  , 0.01]), 1.0)
    """

    inv_freq: Array
    attention_factor: float


def rotary_frequencies(
    dim: SupportsIndex,
    *,
    theta: SupportsFloat | None = None,
    rotary_dim: SupportsIndex | None = None,
    scaling: Mapping[str, Any] | None = None,
    max_position_embeddings: SupportsIndex | None = None,
    seq_len: SupportsIndex | None = None,
) -> RotaryFrequencies:
    """Compute the angle by which each pair of features rotates per position.

    ``inv_freq[n] = theta ** (-2 * n / rotary_dim)``, rescaled as a model's `rope_scaling` says to reach beyond its
    training length. The formulas are those of Hugging Face's transformers, computed in float64 instead of float32.

    Parameters
    ----------
    dim : int
        Features of a head.
    theta : float, optional
        The base of the frequencies. Default: None, ``scaling["rope_theta"]`` or 10000.
    rotary_dim : int, optional
        Number of a head's features to rotate, even. Default: None, ``scaling["partial_rotary_factor"]`` times
        dim, or all of them.
    scaling : mapping, optional
        ``rope_scaling`` or ``rope_parameters`` of a config.json: see Notes. Default: None, as published by Su et al.
    max_position_embeddings : int, optional
        Of the same config.json: dynamic needs it, and other types use it if keys are missing. Default: None.
    seq_len : int, optional
        Sequence length, on which dynamic and longrope depend. Default: None, a length that needs no scaling.

    Returns
    -------
    RotaryFrequencies
        inv_freq and attention_factor.

    Raises
    ------
    ValueError
        An argument is out of range, or scaling has an unknown rope_type, lacks a key or has an unknown one; the
        message lists the keys of the rope_type.
    TypeError
        An argument, or a value in scaling, has another type.

    Notes
    -----
    ``scaling["rope_type"]`` (older files: ``"type"``) says how frequencies are scaled for longer sequences. With
    f = theta ** (-2 n / rotary_dim), M = ``original_max_position_embeddings`` and s = ``factor``:

    - ``default``: f.
    - ``linear``: f / s: positions are interpolated (Chen et al., "Extending context window ... via positional
      interpolation", 2023). Takes factor.
    - ``dynamic``: f with a larger theta, ``theta * (s * L / M - (s - 1)) ** (d / (d - 2))`` for a sequence of length L
      above M = max_position_embeddings and d = rotary_dim: "dynamic NTK" (bloc97 and emozilla, 2023). Takes factor.
    - ``yarn``: f / s for pairs that rotate less than ``beta_slow`` (1) times in M positions, f for those above
      ``beta_fast`` (32), and a ramp over n in between, whose ends are integers unless ``truncate`` is false.
      attention_factor is ``0.1 ln s + 1``, or with ``mscale`` a and ``mscale_all_dim`` b
      ``(0.1 a ln s + 1) / (0.1 b ln s + 1)`` (Peng et al., "YaRN", 2023). The default of factor is
      max_position_embeddings / M.
    - ``longrope``: f divided by ``long_factor[n]`` for sequences longer than M, else by ``short_factor[n]``;
      attention_factor is ``sqrt(1 + ln s / ln M)`` (Ding et al., "LongRoPE", 2024). factor as in yarn.
    - ``llama3``: f for wavelengths (2 pi / f) below M / ``high_freq_factor``, f / s above M / ``low_freq_factor``,
      linear in 1 / wavelength in between (Grattafiori et al., "The Llama 3 herd of models", 2024).

    The default of M is max_position_embeddings. A key that is None (null) counts as missing. Every rope_type also
    takes ``rope_theta`` and ``partial_rotary_factor``.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.rotary_frequencies(8).inv_freq
    array([1.   , 0.1  , 0.01 , 0.001])
    >>> pyattn.functional.rotary_frequencies(8, scaling={"rope_type": "linear", "factor": 4.0}).inv_freq
    array([0.25   , 0.025  , 0.0025 , 0.00025])
    >>> pyattn.functional.rotary_frequencies(8, scaling={"rope_type": "linear", "beta": 4.0})
    Traceback (most recent call last):
    ValueError: scaling lacks 'factor' and has 'beta', which rope_type 'linear' does not take;
    it takes 'factor' and may have 'rope_theta', 'partial_rotary_factor'
    """
    kind, keys = _read_scaling(scaling)
    size = _rotary_dim(as_count(dim, "dim", least=0), rotary_dim, keys)
    base = _theta(theta, keys)
    most = None
    if max_position_embeddings is not None:
        most = as_count(max_position_embeddings, "max_position_embeddings", least=2)
    length = 0 if seq_len is None else as_count(seq_len, "seq_len", least=0)
    if kind == "dynamic":
        base *= _stretch(size, _number(keys, "factor"), most, length)
    f = base ** (-np.arange(0, size, 2) / max(size, 1))
    if kind == "linear":
        return RotaryFrequencies(f / _number(keys, "factor"), 1.0)
    if kind == "yarn":
        return _yarn(f, base, keys, _trained_length(kind, keys, most), most)
    if kind == "longrope":
        return _longrope(f, keys, _trained_length(kind, keys, most), most, length)
    if kind == "llama3":
        return RotaryFrequencies(_llama3(f, keys, _trained_length(kind, keys, most)), 1.0)
    return RotaryFrequencies(f, 1.0)


def depends_on_length(scaling: Mapping[str, Any] | None) -> bool:
    """Tell whether `rotary_frequencies` depends on the length of the sequence."""
    return _read_scaling(scaling)[0] in ("dynamic", "longrope")


def sequence_length(
    scaling: Mapping[str, Any] | None,
    x: FloatArray,
    offset: SupportsIndex,
    position_ids: npt.ArrayLike | None,
    layout: Layout,
) -> int | None:
    """Return the sequence length of some rows, or None if `rotary_frequencies` does not depend on it."""
    if not depends_on_length(scaling):
        return None
    axis = 3 if layout == "bshd" else 2
    if position_ids is None and x.ndim >= axis:
        return max(0, as_index(offset, "offset") + int(x.shape[-axis]))
    ids = _core.as_array([] if position_ids is None else position_ids, "position_ids")
    return max(0, int(ids.max()) + 1) if ids.size and ids.dtype.kind in "iu" else None


# The rope_types


def _stretch(size: int, factor: float, most: int | None, length: int) -> float:
    """Compute the factor of dynamic on theta; 1 for a single pair, whose frequency is always 1."""
    if most is None:
        raise ValueError("rope_type 'dynamic' needs max_position_embeddings; config.json has it next to rope_scaling")
    if size <= 2:
        return 1.0
    return float((factor * max(length, most) / most - (factor - 1)) ** (size / (size - 2)))


def _yarn(f: Array, base: float, keys: dict[str, Any], trained: int, most: int | None) -> RotaryFrequencies:
    """Interpolate low frequencies and keep high ones."""
    size = 2 * len(f)
    factor = _factor("yarn", keys, trained, most)
    fast, slow = _number(keys, "beta_fast", 32.0), _number(keys, "beta_slow", 1.0)
    if fast < slow:
        raise ValueError(f"scaling['beta_fast'] is {fast}, expected beta_slow, {slow}, or more")
    truncate = as_flag(keys.get("truncate", True), "scaling['truncate']")
    low, high = (size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(f)) - low) / (high - low or 0.001), 0, 1)
    return RotaryFrequencies(f / factor * ramp + f * (1 - ramp), _yarn_attention_factor(factor, keys))


def _yarn_attention_factor(factor: float, keys: dict[str, Any]) -> float:
    if "attention_factor" in keys:
        return _number(keys, "attention_factor")
    logarithm = 0.1 * math.log(max(factor, 1.0))
    scale, all_dim = _number(keys, "mscale", 0.0, zero=True), _number(keys, "mscale_all_dim", 0.0, zero=True)
    if scale and all_dim:
        return (scale * logarithm + 1) / (all_dim * logarithm + 1)
    return logarithm + 1


def _longrope(f: Array, keys: dict[str, Any], trained: int, most: int | None, length: int) -> RotaryFrequencies:
    """Divide each pair's frequency by its own factor from the configuration."""
    divisors = {name: _list(keys, name, len(f)) for name in ("short_factor", "long_factor")}
    inv_freq = f / divisors["long_factor" if length > trained else "short_factor"]
    if "attention_factor" in keys:
        return RotaryFrequencies(inv_freq, _number(keys, "attention_factor"))
    factor = _factor("longrope", keys, trained, most)
    return RotaryFrequencies(inv_freq, math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(trained)))


def _llama3(f: Array, keys: dict[str, Any], trained: int) -> Array:
    """Divide the frequencies of long wavelengths, with a smooth transition to short ones."""
    factor, low, high = (_number(keys, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if not low < high:
        raise ValueError(f"scaling['high_freq_factor'] is {high}, expected more than low_freq_factor, {low}")
    ramp = np.clip((trained * f / (2 * math.pi) - low) / (high - low), 0, 1)
    return (1 - ramp) * f / factor + ramp * f


# Reading


def _read_scaling(scaling: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Read the rope_type and its keys that are not None; refuse unknown keys."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling is of type {type(scaling).__name__}, expected a dict, as rope_scaling of config.json")
    keys = {name: value for name, value in scaling.items() if value is not None}
    kinds = [as_choice(keys[name], f"scaling[{name!r}]", _KEYS) for name in ("rope_type", "type") if name in keys]
    kind: str = kinds[0] if kinds else "default"
    if kinds and kinds[-1] != kind:
        raise ValueError(f"scaling has rope_type {kind!r} and type {kinds[-1]!r}; leave one of the two out")
    required, optional = _KEYS[kind]
    missing = [name for name in required if name not in keys]
    unknown = [name for name in keys if name not in (*_ANYWHERE, *required, *optional)]
    if missing or unknown:
        complaints = [f"lacks {_listed(missing)}"] if missing else []
        complaints += [f"has {_listed(unknown)}, which rope_type {kind!r} does not take"] if unknown else []
        takes = [f"takes {_listed(required)}"] if required else []
        takes += [f"may have {_listed((*optional, 'rope_theta', 'partial_rotary_factor'))}"]
        raise ValueError(f"scaling {' and '.join(complaints)}; it {' and '.join(takes)}")
    return kind, keys


def _listed(names: Iterable[Any]) -> str:
    """List names, a dozen at most."""
    first = [short_repr(name) for name in itertools.islice(names, 13)]
    return ", ".join(first if len(first) < 13 else [*first[:12], "..."])


def _rotary_dim(dim: int, rotary_dim: SupportsIndex | None, keys: dict[str, Any]) -> int:
    """Return the number of features to rotate: given, a fraction of dim, or all."""
    size, why = dim, ""
    if "partial_rotary_factor" in keys:
        part = _number(keys, "partial_rotary_factor")
        size, why = int(dim * part), f", which is partial_rotary_factor, {part}, of dim {dim}"
    if rotary_dim is not None:
        given = as_count(rotary_dim, "rotary_dim", least=0)
        if why and given != size:
            raise ValueError(f"rotary_dim is {given}, but scaling says {size}{why}; leave one of the two out")
        size = given
    if size % 2 or size > dim:
        raise ValueError(f"rotary_dim is {size}{why}, expected an even number of at most dim, {dim}")
    return size


def _theta(theta: SupportsFloat | None, keys: dict[str, Any]) -> float:
    given = {"theta": theta} if theta is not None else {}
    bases = [_number(source, name) for source, name in ((given, "theta"), (keys, "rope_theta")) if name in source]
    bases = bases or [_THETA]
    if bases[0] != bases[-1]:
        raise ValueError(f"theta is {bases[0]}, but scaling['rope_theta'] is {bases[-1]}; leave one of the two out")
    if not bases[0] > 1:
        raise ValueError(f"theta is {bases[0]}, expected more than 1")
    return bases[0]


def _trained_length(kind: str, keys: dict[str, Any], most: int | None) -> int:
    name = "original_max_position_embeddings"
    if name in keys:
        return as_count(keys[name], f"scaling[{name!r}]", least=2)
    if most is None:
        raise ValueError(
            f"scaling lacks {name!r}, which rope_type {kind!r} needs; or pass max_position_embeddings of config.json"
        )
    return most


def _factor(kind: str, keys: dict[str, Any], trained: int, most: int | None) -> float:
    if "factor" in keys:
        return _number(keys, "factor")
    if most is None:
        raise ValueError(
            f"scaling lacks 'factor', which rope_type {kind!r} needs; or pass max_position_embeddings of config.json"
        )
    return most / trained


def _number(keys: Mapping[str, Any], name: str, default: float | None = None, *, zero: bool = False) -> float:
    """Read a number above 0; with zero=True, 0 is allowed."""
    x = keys.get(name, default)
    label = name if name == "theta" else f"scaling[{name!r}]"
    return as_finite(x, label, least=0) if zero else as_finite(x, label, above=0)


def _list(keys: dict[str, Any], name: str, pairs: int) -> Array:
    values = keys[name]
    if isinstance(values, (str, Mapping)) or not hasattr(values, "__len__"):
        raise TypeError(f"scaling[{name!r}] is of type {type(values).__name__}, expected a list of numbers")
    if len(values) != pairs:
        raise ValueError(f"scaling[{name!r}] has {len(values)} numbers, expected {pairs}, one for each pair")
    return np.array([_number({name: value}, name) for value in values])
