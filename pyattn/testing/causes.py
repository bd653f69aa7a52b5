"""Why an attention is wrong: the formula with one mistake in it, computed for each mistake that people make.

What reproduces the numbers that came back explains them. A mistake is a sentence to act on, and a way to compute its
output. One that makes no difference to a case, or is impossible with its shapes, is passed over, so that few need to
say when they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn.testing.formula import LENIENCY, Setting, Variant, softmax

__all__ = ["find_cause", "reads_floats_as_flags"]

Array = npt.NDArray[Any]
Mistake = tuple[str, Callable[[], Variant]]

MOST_FAILURES = 30  # looked at


def find_cause(failures: Sequence[tuple[Setting, Array]]) -> str | None:
    """Name the mistake that reproduces the first result and most of the others.

    Parameters
    ----------
    failures : sequence of (Setting, ndarray)
        Cases with wrong results.

    Returns
    -------
    str or None
        A cause and its fix; None where no known mistake explains the first.
    """
    first, *others = failures[:MOST_FAILURES]
    counts = dict.fromkeys(_explanations(*first), 1)
    for setting, actual in others if len(counts) > 1 else ():
        for sentence in _explanations(setting, actual, only=counts):
            counts[sentence] += 1
    return max(counts, key=lambda sentence: counts[sentence], default=None)  # the first of those that are level


def _explanations(setting: Setting, actual: Array, only: dict[str, int] | None = None) -> list[str]:
    """Sentences of the mistakes that reproduce a result, without repetition."""
    found: dict[str, None] = {}
    right = setting.exact()
    for family in _FAMILIES:
        for sentence, compute in family(setting):
            if sentence in found or (only is not None and sentence not in only):
                continue
            try:
                variant = compute()
            except (ValueError, IndexError):  # impossible with these shapes
                continue
            # One that makes no difference to this case is no explanation, unless it is about nothing but rounding.
            if variant.reproduces(actual) and (family is _rounding or not variant.reproduces(right)):
                found[sentence] = None
    return list(found)


def reads_floats_as_flags(setting: Setting, actual: Array) -> bool:
    """Tell whether a float mask was read as a bool one.

    Parameters
    ----------
    setting : Setting
        Of a case with such a mask.
    actual : ndarray
        What came back.

    Returns
    -------
    bool
    """
    return any(compute().reproduces(actual) for compute in _as_flags(setting))


def _scaling(s: Setting) -> Iterator[Mistake]:
    """Go through other scales."""
    dim = s.query.shape[-1]
    root = float(np.sqrt(dim))
    if s.told_scale:
        yield "the argument scale is not used", partial(s.attend, scale=s.usual_scale)
        yield "scores are divided by scale: multiply them", partial(s.attend, scale=1 / s.scale)
        twice = "the scores are scaled twice, by the argument and by 1 / sqrt(head_dim): scale replaces the latter"
        yield twice, partial(s.attend, scale=s.scale * s.usual_scale)
        return
    usual = f"{s.usual_scale:g}" if not np.isclose(s.usual_scale, 1 / root) else "1 / sqrt(head_dim)"
    meant = "" if s.usual_scale == 1 else "; if that is meant, as in an article's first example, pass scale=1"
    yield f"the scores are not scaled: multiply query @ key.T by {usual}{meant}", partial(s.attend, scale=1.0)
    for name, scale in (
        ("divided by head_dim, or by its square root twice", 1 / dim),
        ("multiplied by sqrt(head_dim), not divided by it", root),
        ("divided by sqrt(head_dim)", 1 / root),
        ("divided by the square root of a length, not of head_dim", 1 / np.sqrt(s.pairs[-1])),
        ("divided by the square root of a length, not of head_dim", 1 / np.sqrt(s.pairs[-2])),
        ("divided by sqrt(v_dim)", 1 / np.sqrt(s.value.shape[-1])),
        ("divided by sqrt(heads * head_dim)", 1 / np.sqrt(s.pairs[-3] * dim) if len(s.pairs) > 3 else s.scale),
    ):
        yield f"the scores are {name}: multiply query @ key.T by {usual}", partial(s.attend, scale=scale)
    yield (
        "the scale is applied after the softmax: multiply the scores by it, not the weights",
        partial(s.attend, scale=1.0, after=s.scale),
    )


def _weighing(s: Setting) -> Iterator[Mistake]:
    """Go through what becomes of the scores. A mistake that matters by overflow alone is made in the case's dtype."""

    def weighed(weigh: Callable[[Array], Array], dtype: npt.DTypeLike = np.float64) -> Callable[[], Variant]:
        return partial(s.attend, weigh=weigh, dtype=dtype)

    keys = "it has to run over the keys, axis=-1"
    yield f"the softmax runs over the queries: {keys}", weighed(partial(softmax, axis=-2))
    yield f"the softmax runs over the whole array of scores: {keys}", weighed(partial(softmax, axis=None))
    for axis in range(-3, -1 - len(s.pairs), -1):
        yield f"the softmax runs over axis {axis}, heads or a batch: {keys}", weighed(partial(softmax, axis=axis))
    yield "there is no softmax: the scores themselves weigh the values", weighed(lambda x: x)

    unity = "the weights do not sum to 1: divide them by weights.sum(axis=-1, keepdims=True)"
    other = "the sum of the exponentials has lost its axis, and rows are divided by sums of others: pass keepdims=True"
    for minus in (_row_maximum, _zero, _flat_maximum):
        yield unity, weighed(partial(_exponentials, minus=minus))
        yield other, weighed(partial(_share, minus=minus, keepdims=False))
    other = "the maximum of the scores has lost its axis, and rows lose the maxima of others: pass keepdims=True"
    yield other, weighed(partial(_share, minus=_flat_maximum))

    own = s.case.query.dtype
    overflow = "exp overflows or underflows: subtract each row's maximum, scores.max(axis=-1, keepdims=True), first"
    yield overflow, weighed(partial(_share, minus=_zero), own)
    underflow = "exp overflows or underflows: what is subtracted has to be each row's own maximum, over axis=-1"
    yield underflow, weighed(partial(_share, minus=np.max), own)
    yield underflow, weighed(partial(_share, minus=partial(np.max, axis=-2, keepdims=True)), own)

    yield "the softmax is taken twice", weighed(lambda x: softmax(softmax(x)))
    yield "the softmax has base 2: take exp(scores), not 2 ** scores", weighed(lambda x: softmax(x * np.log(2)))
    yield "scores are divided by their sum, without exp", weighed(lambda x: x / x.sum(axis=-1, keepdims=True))
    yield "the logarithm of the softmax weighs the values", weighed(lambda x: np.log(softmax(x)))
    mean = "the weighted values are averaged over the keys: take their sum"
    yield mean, partial(s.attend, after=1 / s.pairs[-1])
    yield "the weights are transposed: weights @ value, with a row for each query", weighed(lambda x: softmax(x).mT)


def _row_maximum(x: Array) -> Array:
    return np.asarray(x.max(axis=-1, keepdims=True))


def _flat_maximum(x: Array) -> Array:
    return np.asarray(x.max(axis=-1))


def _zero(x: Array) -> Array:
    return np.zeros_like(x)


def _exponentials(x: Array, minus: Callable[[Array], Array]) -> Array:
    return np.asarray(np.exp(x - minus(x)))


def _share(x: Array, minus: Callable[[Array], Array], keepdims: bool = True) -> Array:
    exponentials = _exponentials(x, minus)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=keepdims))


def _operands(s: Setting) -> Iterator[Mistake]:
    """Go through what is taken for query, key and value."""
    q, k, v = s.query, s.key, s.value
    yield "query and key are swapped: scores = query @ key.T, a row for each query", partial(s.attend, query=k, key=q)
    yield "key and value are swapped", partial(s.attend, key=v, value=k)
    yield "query and value are swapped", partial(s.attend, query=v, value=q)
    yield "the weighted sum is of keys, not of values", partial(s.attend, value=k)
    yield "the weighted sum is of queries, not of values", partial(s.attend, value=q)
    yield "scores are taken between queries and queries, not keys", partial(s.attend, key=q)
    yield "scores are taken between keys and keys, not queries", partial(s.attend, query=k)
    yield "key is not transposed: scores = query @ key.T", partial(s.attend, key=k.mT)
    reshaped = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]).mT
    yield "key is reshaped, which mixes its numbers, where it has to be transposed", partial(s.attend, key=reshaped)
    yield "the weights are returned, not weights @ value", partial(s.attend, value=np.eye(s.pairs[-1]))
    rows = "inputs are read as columns, (head_dim, length), where a row is meant for each: pass query.T, key.T, value.T"
    for scale in (s.scale, s.pairs[-2] ** -0.5):
        yield f"{rows}, and transpose the result", partial(_columns, s, scale)


def _columns(s: Setting, scale: float) -> Variant:
    """Attend between features, which are as many as positions."""
    q, k, v = (x.mT for x in (s.query, s.key, s.value))
    visible = np.ones((*q.shape[:-1], k.shape[-2]), bool)
    return s.attend(query=q, key=k, value=v, scale=scale, visible=visible, bias=0).map(lambda x: x.mT)


_NAMES = {"mask": "the mask", "is_causal": "the causal mask"}
_CAUSAL = "query i attends to keys 0 to i, itself included"
_EMPTY = "a row with nothing to attend to"


def _masking(s: Setting) -> Iterator[Mistake]:
    """Go through each reason for hiding keys, with the others in force."""
    for name, seen in s.parts.items():
        others = s.visible(without=name)
        if name == "mask":
            polarity = "the mask is inverted: True = attend, as in PyTorch's scaled_dot_product_attention and JAX"
            yield from _seeing(s, f"{polarity}; if True hides on purpose, pass ~mask", ~seen & others)
            if s.pairs[-1] == s.pairs[-2]:
                yield from _seeing(s, "the mask is transposed: its rows are for queries", seen.mT & others)
        if name == "is_causal":
            yield from _bands(s, others)
        what = _NAMES.get(name, name)
        floats = ", or raise a TypeError for bools, if floats are meant" if name == "mask" else ""
        tiny = ", or what it adds is tiny, as -1e-9 is" if name == "mask" else ""
        unused = f"{what} makes no difference: it is not used{tiny}"
        yield unused, partial(s.attend, visible=others)
        for fill in (-1e4, -1e3, -100.0, -50.0, -20.0, -10.0, -5.0):
            leak = f"what {what} hides gets a score such as -1e4, which other scores come near: hide with -numpy.inf"
            yield leak, partial(s.attend, fill=fill)
            yield leak, partial(s.attend, visible=others, bias=s.bias + np.where(seen, 0, fill))
        zero = f"{what} is multiplied with the scores, and a score of 0 hides nothing: hide with -numpy.inf"
        yield zero, partial(s.attend, fill=0.0)
        if len(s.pairs) > 2:
            first = f"every entry of the batch gets the first entry's share of {what}"
            yield from _seeing(s, first, np.broadcast_to(seen[:1], s.pairs) & others)
        yield (
            f"{what} is added to the scores as 0 and 1: hide with numpy.where(mask, scores, -numpy.inf){floats}",
            partial(s.attend, visible=others, bias=s.bias + seen),
        )
        yield (
            f"{what} is applied after the softmax, so the weights no longer sum to 1: hide scores, not weights",
            partial(s.attend, visible=others, after=seen),
        )
    if not s.parts:
        uncalled = "a causal mask is applied that nobody asked for: make it an argument, is_causal"
        yield uncalled, partial(s.attend, visible=np.tri(*s.pairs[-2:], dtype=bool))


def _bands(s: Setting, others: Array) -> Iterator[Mistake]:
    """Go through other causal masks."""
    queries, keys = s.pairs[-2:]
    j, upper_left = np.arange(keys), np.arange(queries)[:, np.newaxis]
    lower_right = upper_left + keys - queries
    i = lower_right if s.case.arguments.get("align") == "lower_right" else upper_left
    for text, band in (
        (f"is off by one and hides a query's own key: {_CAUSAL}", j < i),
        (f"is off by one and shows the next key: {_CAUSAL}", j <= i + 1),
        (f"hides the past, not the future: {_CAUSAL}", j >= i),
        (f"hides the past, not the future: {_CAUSAL}", j > i),
        ("is aligned at the upper left corner, and align asks for the lower right", j <= upper_left),
        ("is aligned at the lower right corner, and align asks for the upper left", j <= lower_right),
    ):
        yield from _seeing(s, f"the causal mask {text}", band & others)


def _nothing_to_see(s: Setting) -> Iterator[Mistake]:
    """Go through what becomes of empty rows, and of NaN that is masked."""
    hidden, own, every = ~s.visible(), s.case.query.dtype, np.ones(s.pairs, bool)
    if hidden.all(axis=-1).any():
        mean = f"{_EMPTY} averages all values, as a large negative number in place of -numpy.inf has it: give it 0"
        yield mean, partial(s.attend, fill=-1e9)
        for fill in (-1e9, -1e12, float(np.finfo(own).min)):
            yield mean, partial(s.attend, visible=every, bias=s.bias + np.where(hidden, fill, 0), dtype=own)
        yield f"{_EMPTY} becomes NaN, as the softmax of -numpy.inf alone is 0 / 0: give it 0", s.attend
    if np.isfinite(s.key).all() and np.isfinite(s.value).all():
        return
    poison = "a masked NaN reaches the output, as 0 * NaN is NaN: put 0 in its place where no query may look"
    yield poison, s.attend
    yield poison, partial(s.attend, visible=every, bias=s.bias + np.where(hidden, -np.inf, 0))


def _seeing(s: Setting, sentence: str, visible: Array) -> Iterator[Mistake]:
    """Hide other keys; rows that see nothing then are NaN, 0, or an average."""
    yield sentence, partial(s.attend, visible=visible)
    yield sentence, partial(s.attend, visible=visible, fill=-1e9)
    yield sentence, partial(s.attend, visible=visible, weigh=lambda x: np.nan_to_num(softmax(x)))


def _biasing(s: Setting) -> Iterator[Mistake]:
    """Go through what a float mask is taken for."""
    if not isinstance(s.bias, np.ndarray):
        return
    yield "the float mask is not used: it is added to the scores", partial(s.attend, bias=0)
    yield "the float mask is subtracted from the scores: it is added", partial(s.attend, bias=-s.bias)
    scaled = "the float mask is scaled with the scores: it is added after scaling"
    yield scaled, partial(s.attend, bias=s.bias * s.scale)
    late = "the float mask is added to the weights: it is added to the scores"
    yield late, partial(s.attend, bias=0, weigh=lambda x: softmax(x) + s.bias)
    for compute in _as_flags(s):
        yield "the float mask is read as flags: it is added to the scores", compute


def _as_flags(s: Setting) -> Iterator[Callable[[], Variant]]:
    for seen in (s.bias != 0, s.bias > 0, s.bias == 0):
        for fill in (-np.inf, -1e9):
            yield partial(s.attend, bias=0, visible=seen & s.visible(), fill=fill)


def _axes(s: Setting) -> Iterator[Mistake]:
    """Go through what goes wrong with more than two axes."""
    q, k, v = s.query, s.key, s.value
    yield "the output is transposed", lambda: s.attend().map(lambda x: x.mT)
    if q.ndim < 3:
        return
    yield "key.T reverses all axes: transpose the last two, key.swapaxes(-1, -2)", partial(s.attend, key=k.T.mT)
    yield "every entry of the batch meets the first entry's keys and values", partial(s.attend, key=k[:1], value=v[:1])
    flat = "the softmax runs over the keys of all entries of the batch: keep the entries apart"
    yield flat, partial(_across, s, q.shape[:-2])
    shared = "heads that share keys are in the wrong order: query head h reads key head h // (heads / key heads)"
    yield f"{shared}; use numpy.repeat, not numpy.tile", partial(_tiled, s)
    if q.ndim < 4:
        return
    yield "heads attend to each other's keys: keep them apart", partial(_across, s, q.shape[-3:-2])
    swapped = [x.swapaxes(-3, -2) for x in (q, k, v)]
    read = "axes are read as (batch, length, heads, dim); if that is meant, pass layout='bshd'"
    visible = np.ones((*swapped[0].shape[:-1], swapped[1].shape[-2]), bool)
    seen = partial(s.attend, query=swapped[0], key=swapped[1], value=swapped[2], visible=visible, bias=0)
    yield read, lambda: seen().map(lambda x: x.swapaxes(-3, -2))
    given = "the output's axes are (batch, length, heads, dim), expected (batch, heads, length, dim)"
    yield given, lambda: s.attend().map(lambda x: x.swapaxes(-3, -2))
    mixed = "reshape mixes heads and positions, where axes have to change places: use swapaxes"
    yield f"in the output, {mixed}", lambda: s.attend().map(lambda x: x.swapaxes(-3, -2).reshape(x.shape))
    split = [x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]).swapaxes(-3, -2) for x in (q, k, v)]
    both = partial(s.attend, query=split[0], key=split[1], value=split[2])
    yield f"in the inputs, {mixed}", both
    yield f"in the inputs and the output, {mixed}", lambda: both().map(lambda x: x.swapaxes(-3, -2).reshape(x.shape))


def _tiled(s: Setting) -> Variant:
    """Attend with query head h reading key head h % (key heads)."""
    axis = -2 if s.layout == "bshd" else -3
    heads, kv_heads = s.case.query.shape[axis], s.case.key.shape[axis]
    order = np.arange(heads) % kv_heads * (heads // kv_heads)
    return s.attend(key=s.key[..., order, :, :], value=s.value[..., order, :, :])


def _across(s: Setting, joined: tuple[int, ...]) -> Variant:
    """Attend with the last leading axes, of these sizes, counted as positions."""
    kept = s.query.shape[: s.query.ndim - 2 - len(joined)]
    q, k, v = (x.reshape(*kept, -1, x.shape[-1]) for x in (s.query, s.key, s.value))
    visible = np.ones((*kept, q.shape[-2], k.shape[-2]), bool)
    shape = (*s.query.shape[:-1], v.shape[-1])
    return s.attend(query=q, key=k, value=v, visible=visible, bias=0).map(lambda x: x.reshape(shape))


def _rounding(s: Setting) -> Iterator[Mistake]:
    """Judge a result by more rounding than there should be."""
    sums = "nothing but rounding, and more than need be: long sums lose digits when numbers are added one by one"
    yield sums, partial(_rounded, s, LENIENCY)
    for dtype in (np.float32, np.float16):
        loss = float(np.finfo(dtype).eps) / 2 / s.unit_roundoff
        if loss > 1:
            lossy = f"something is computed in {np.dtype(dtype).name}, and the result is as far off"
            yield lossy, partial(_rounded, s, loss)


def _rounded(s: Setting, loss: float) -> Variant:
    exact = s.attend()
    tolerance = exact.tolerance / LENIENCY * loss
    if tolerance.max(initial=0) > 0.1 * np.abs(s.value).max(initial=0):
        raise ValueError("so much rounding would explain anything")
    return Variant(exact.output, tolerance)


# Where several mistakes explain as much, the first counts. NaN and averages come first: beside these, most others make
# no difference.
_FAMILIES = (_nothing_to_see, _scaling, _weighing, _operands, _masking, _biasing, _axes, _rounding)
