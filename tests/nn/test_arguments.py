"""Arguments: defaults are torch's, and integers and numbers that one of them refuses are refused by all of its kind."""

from __future__ import annotations

import inspect
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from support.helpers import for_each

import pyattn
from pyattn import functional, masks, nn
from pyattn._util.arguments import as_choice, as_count, as_probability

X = np.ones((2, 3))
COUNTS = {
    "length": lambda n: functional.positional_encoding(n, 4),
    "embed_dim": lambda n: functional.positional_encoding(3, n),
    "start": lambda n: functional.positional_encoding(3, 4, n),
    "L": masks.causal,
    "in_features": lambda n: nn.Linear(n, 3),
    "num_embeddings": lambda n: nn.Embedding(n, 3),
    "normalized_shape": nn.LayerNorm,
    "rotary_dim": lambda n: functional.rotary_frequencies(64, rotary_dim=n),
    "seq_len": lambda n: functional.rotary_frequencies(64, seq_len=n),
    "num_layers": lambda n: pyattn.KVCache(n, 1, 4),
    "axis": lambda n: pyattn.softmax(X, n),
    "index": lambda n: nn.ModuleList([nn.Dropout()] * 2)[n],
}
NUMBERS = {
    "base": lambda x: functional.positional_encoding(3, 4, base=x),
    "theta": lambda x: functional.rotary_frequencies(64, theta=x),
    "eps": lambda x: nn.LayerNorm(3, x),
    "scale": lambda x: nn.SelfAttention(3, 2, scale=x),
    "p": nn.Dropout,
}
every_count = pytest.mark.parametrize(("name", "call"), COUNTS.items(), ids=COUNTS)
every_number = pytest.mark.parametrize(("name", "call"), NUMBERS.items(), ids=NUMBERS)


@every_count
@for_each("n", [True, np.True_, 1.0, "1", None, X, [1, 1.5]])
def test_what_is_no_integer_is_refused(name, call, n):
    if n is None and name in ("axis", "rotary_dim", "seq_len"):
        call(n)  # means something there
        return
    with pytest.raises(TypeError, match=rf"^{name}(\[\d\])? is of type \w+, expected an int"):
        call(n)


@every_count
def test_integers_of_any_type_are_taken(name, call):
    for n in (1, np.int8(1), np.uint64(1), np.array(1)):
        call(2 * n if name == "rotary_dim" else n)


@for_each("name", [name for name in COUNTS if name not in ("axis", "index", "normalized_shape")])
@pytest.mark.parametrize("n", [2**63, 10**400], ids=["64 bits", "digits"])
def test_a_size_beyond_all_arrays_is_refused(name, n):
    """A message with all digits of some would not fit on a page, or be an error of its own."""
    with pytest.raises(ValueError, match=rf"^{name} is too large, expected at most \d{{19}}$"):
        COUNTS[name](n)


@every_number
@pytest.mark.parametrize("x", [True, np.True_, "1", None, 1j, np.complex128(1), np.array("1"), X], ids=repr)
def test_what_is_no_number_is_refused(name, call, x):
    if x is None and name in ("theta", "scale"):
        call(x)  # means something there
        return
    with pytest.raises(TypeError, match=rf"^{name} is of type \w+, expected a number(; pass 1 not to scale.*)?$"):
        call(x)


@every_number
def test_numbers_of_any_type_are_taken(name, call):
    for x in (Fraction(1, 2), Decimal("0.5"), np.float16(0.5), np.array(0.5), 1, np.uint8(1)):
        call(2 + x if name == "theta" else x)


@every_number
@pytest.mark.parametrize(
    "x", [math.nan, math.inf, 10**400, -(10**400), Fraction(10**400)], ids=["nan", "inf", "int", "-int", "fraction"]
)
def test_what_is_beyond_all_numbers_is_refused(name, call, x):
    with pytest.raises(ValueError, match=rf"^{name} is (nan|inf|too large), expected a (finite number|probability)"):
        call(x)


def test_a_probability_is_told_from_a_number():
    with pytest.raises(ValueError, match=r"^p is 1\.5, expected a probability from 0 to 1$"):
        as_probability(1.5, "p")
    assert as_probability(np.float32(0.25), "p") == 0.25
    assert type(as_probability(1, "p")) is float


@for_each(
    ("call", "message"),
    [
        (
            lambda: functional.positional_encoding(3, 4, 2**53 - 1),
            "start is 9007199254740991 and length 3, expected positi",
        ),
        (
            lambda: pyattn.functional.dropout_keep_mask((True, 3), 0.5),
            r"shape is \(True, 3\), expected a sequence of ints",
        ),
    ],
)
def test_the_others_are_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_what_a_message_quotes_is_short():
    for call in (lambda: as_choice("x" * 10_000, "a", ("b", "c")), lambda: as_count(-(10**4000), "n", least=0)):
        with pytest.raises(ValueError, match=r"^(a|n) is ") as caught:
            call()
        assert len(str(caught.value)) < 150


# Names and defaults

OURS = {"activation": "relu", "dtype": np.float32, "modules": ()}  # torch's default is a function or None


def defaults_of(call):
    return {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}


@pytest.mark.peers
def test_names_their_order_and_their_defaults_are_torchs(torch):
    """Arguments shared with torch have its names, order and defaults; its functions in C have no signature."""
    peer = torch.nn
    pairs = [(getattr(nn, name), getattr(peer, name)) for name in nn.__all__ if hasattr(peer, name) and name != "init"]
    calls = [pair for ours, theirs in pairs for pair in ((ours, theirs), (ours.forward, theirs.forward))]
    functions = set(functional.__all__) & set(dir(peer.functional))
    pairs = [(getattr(functional, name), getattr(peer.functional, name)) for name in functions]
    calls += [pair for pair in pairs if not inspect.isbuiltin(pair[1])]
    assert len(calls) > 30
    for ours, theirs in calls:
        given, known = defaults_of(ours), defaults_of(theirs)
        shared = [name for name in given if name in known]
        assert shared == [name for name in known if name in given], ours
        for name in shared:
            assert given[name] in (known[name], OURS.get(name, known[name])), (ours, name)
    given, known = defaults_of(nn.Seq2SeqTransformer), defaults_of(peer.Transformer)
    others = {name for name in given.keys() & known.keys() if given[name] != known[name]}
    assert others == {"activation", "batch_first", "dtype"}
