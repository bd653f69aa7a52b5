"""``python -m pyattn compare ours.npz theirs.npz``: what it finds in two files, and its exit status."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn
from pyattn import nn
from pyattn.__main__ import main

QUERY, KEY, VALUE = np.random.default_rng(0).standard_normal((3, 2, 5, 8), np.float32)
INPUTS = {"query": QUERY, "key": KEY, "value": VALUE}


@pytest.fixture
def compared(tmp_path, capsys):
    """Compare two dicts of arrays as files; return the exit status and what is printed."""

    def compare(ours, theirs, *options, endings=(".npz", ".npz")):
        files = [str(tmp_path / f"{name}{ending}") for name, ending in zip(("a", "b"), endings, strict=True)]
        for file, arrays in zip(files, (ours, theirs), strict=True):
            nn.save(arrays, file) if file.endswith(".safetensors") else np.savez(file, **arrays)
        status = main(["compare", *files, *options])
        shown = capsys.readouterr()
        assert shown.err == ""
        return status, shown.out

    return compare


def line_of(name, text):
    return next(line for line in text.splitlines() if line.startswith(f"{name} "))


def test_equal_files_are_equal(compared):
    arrays = {"a": np.array([1, np.nan, np.inf]), "ids": np.arange(3), "words": np.array(["x"]), "none": np.zeros(0)}
    status, text = compared(arrays, arrays)
    assert status == 0
    assert text.endswith("Equal: the numbers of 4 arrays are the same.\n")


def test_a_difference_is_told_in_ulp_and_in_relative_terms(compared):
    ours = np.array([[1, 0.5], [0.25, 2]], np.float32)
    theirs = ours.copy()
    theirs[0, 1] += 3 * np.spacing(np.float32(2))
    status, text = compared({"a": ours, "same": ours}, {"a": theirs, "same": ours})
    assert status == 1
    error = 3 * 2.0**-22
    cells = line_of("a", text).split()
    assert cells[4:7] == [f"{error:.2g}", f"{error / 2:.2g}", "3"]
    assert f"<- differs in 1 of 4, most at [0, 1]: 0.5 and {theirs[0, 1]!s}" in text
    assert text.endswith("Different: a.\n")
    assert compared({"a": ours}, {"a": theirs}, "--ulp", "3")[0] == 0
    assert compared({"a": ours}, {"a": theirs}, "--ulp", "2.9")[0] == 1


def test_missing_names_and_other_shapes_are_differences(compared):
    status, text = compared({"a": np.zeros(2), "b": np.ones(3)}, {"c": np.ones(3), "a": np.zeros((1, 2))})
    assert status == 1
    assert line_of("a", text).endswith("<- other shapes")
    assert "(2,) and (1, 2)" in line_of("a", text)
    assert line_of("b", text).endswith("<- only ours has it")
    assert line_of("c", text).endswith("<- only theirs has it")
    assert text.endswith("Different: a, b, c.\n")


def test_whole_numbers_flags_and_text_are_compared(compared):
    ours = {"ids": np.arange(4), "flags": np.array([True]), "words": np.array(["x", "y"])}
    theirs = {"ids": np.array([0, 1, 2, 4]), "flags": np.array([False]), "words": np.array(["x", "z"])}
    status, text = compared(ours, theirs)
    assert status == 1
    assert line_of("ids", text).endswith("<- differs in 1 of 4, first at [3]: 3 and 4")
    assert line_of("words", text).endswith("<- differs in 1 of 2, first at [1]: 'y' and 'z'")
    assert text.endswith("Different: ids, flags, words.\n")


def test_a_nan_on_one_side_is_a_difference_beyond_any_ulp(compared):
    status, text = compared({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, 2.0])}, "--ulp", "1e300")
    assert status == 1
    assert line_of("a", text).split()[3:6] == ["inf", "inf", "inf"]


def test_a_nan_on_both_sides_is_not_a_difference(compared):
    """Not even where numbers of another place differ, or the dtype has no ULP."""
    nat = np.array(["NaT", "2020-01-01"], "M8[D]")
    ours = {"z": np.array([np.nan, 1j]), "long": np.array([np.nan, 1], np.longdouble), "days": nat}
    theirs = {"z": np.array([np.nan, 2j]), "long": np.array([np.nan, 2], np.longdouble), "days": nat}
    status, text = compared(ours, theirs)
    assert status == 1
    assert line_of("z", text).endswith("<- differs in 1 of 2, first at [1]: 1j and 2j")
    assert "<- differs in 1 of 2, " in line_of("long", text)
    assert text.endswith("Different: z, long.\n")


def test_records_are_compared_with_anything(compared):
    record = np.array([(np.nan, 1)], [("u", "f4"), ("v", "i4")])
    ours = {"fields": record, "numbers": record, "second": record}
    theirs = {
        "fields": np.zeros(1, [("w", "f4")]),
        "numbers": np.zeros(1),
        "second": np.array([(np.nan, 2)], record.dtype),
    }
    status, text = compared(ours, theirs)
    assert status == 1
    assert text.endswith("Different: fields, numbers, second.\n")


def test_numbers_in_the_other_byte_order_are_numbers(compared):
    ours, theirs = np.array([1, 2], ">f4"), np.array([1, 3], "<f4")
    status, text = compared({"a": ours, "same": ours}, {"a": theirs, "same": ours.astype("<f4")})
    assert status == 1
    assert line_of("a", text).split()[2:4] == ["float32", "1"]
    assert text.endswith("Different: a.\n")
    assert compared({"a": ours}, {"a": theirs}, "--ulp", "1e9")[0] == 0


def test_a_single_number_has_no_place(compared):
    ours, theirs = {"loss": np.float64(1), "word": np.array("a\nb" * 50)}, {"loss": np.float64(2), "word": np.array("")}
    text = compared(ours, theirs)[1]
    assert line_of("loss", text).endswith("<- differs: 1.0 and 2.0")
    assert re.search(r"<- differs: 'a\\nba\\nb.*\.\.\. and ''$", line_of("word", text))


def test_names_cannot_break_a_line_or_write_to_the_terminal(compared):
    names = ["a\nb", "\x1b[31m", "\u043a\u043b\u044e\u0447"]
    status, text = compared(dict.fromkeys(names, np.zeros(1)), dict.fromkeys(names, np.ones(1)))
    assert status == 1
    assert text.endswith("Different: a\\nb, \\x1b[31m, \u043a\u043b\u044e\u0447.\n")
    assert len([line for line in text.splitlines() if "<- differs in 1 of 1" in line]) == 3


def test_two_kinds_of_files_and_of_dtypes_are_compared(compared):
    arrays = {"a": QUERY, "b": KEY}
    doubles = {"a": QUERY.astype(np.float64), "b": KEY}
    status, text = compared(arrays, doubles, endings=(".npz", ".safetensors"))
    assert status == 0
    assert "float32 and float64" in line_of("a", text)


def call(**options):
    return {**INPUTS, "output": pyattn.attention(QUERY, KEY, VALUE, **options)}


def test_results_of_attention_are_judged_by_their_rounding_bounds(compared):
    near = call()
    near["output"] = near["output"] * (1 + np.float32(2e-7))
    status, text = compared(call(), near)
    assert status == 0
    assert re.search(r"<- rounding in \d+ of 80, most at \[", line_of("output", text))
    assert "differs" not in text
    assert text.endswith("Equal: rounding explains every difference.\n")


def test_the_mistake_behind_results_of_attention_is_named(compared):
    status, text = compared(call(), call(scale=1 / 8))
    assert status == 1
    assert "Cause, in scores: theirs divides the scores by head_dim, not by its square root." in text


def test_options_of_the_call_are_read_from_the_files(compared):
    mask = np.tri(5, dtype=bool)
    right = {**call(attn_mask=mask), "attn_mask": mask}
    unmasked = {**right, "output": call()["output"]}
    assert compared(right, right)[0] == 0
    status, text = compared(right, unmasked)
    assert status == 1
    assert re.search(r"Cause, in scores: theirs .*mask", text)


@pytest.mark.parametrize("name", ["query", "unknown"])
def test_other_inputs_or_names_leave_the_numbers_alone(name, compared):
    """Without one call of attention, results are compared as any array is."""
    ours, theirs = {**call(), "unknown": QUERY}, {**call(scale=1 / 8), "unknown": QUERY}
    theirs[name] = QUERY[::-1]
    status, text = compared(ours, theirs)
    assert status == 1
    assert "Cause" not in text
    assert f"Different: {', '.join(n for n in ours if n in (name, 'output'))}.\n" in text
    assert text.endswith(
        "To compare the outputs as one call of attention, and to find the mistake, leave out unknown.\n"
    )


def test_other_inputs_are_another_call(compared):
    status, text = compared(call(), {**call(), "query": QUERY[::-1]})
    assert status == 1
    assert text.endswith("Different: query.\nquery differs, so the files hold two different calls of attention.\n")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"key": KEY[..., :7]}, "cannot be computed with query (2, 5, 8), key (2, 5, 7), value (2, 5, 8)"),
        ({"attn_mask": np.tri(4, dtype=bool)}, "masks that broadcast to (..., L, S)"),
        ({"query": np.array(["a", "b"])}, "query holds text"),
    ],
)
def test_inputs_that_attention_refuses_are_told(changed, problem, compared):
    ours, theirs = call() | changed, call(scale=1) | changed
    status, text = compared(ours, theirs)
    assert status == 1
    *_, verdict, hint = text.splitlines()
    assert verdict == "Different: output."
    assert hint.startswith("The outputs are not compared as those of one call of attention: ")
    assert problem in hint


@pytest.mark.parametrize("largest", [1, 30])
def test_the_same_call_in_two_dtypes_is_judged_in_float32(largest, compared):
    """One file has the inputs rounded; that must not hide the mistake, or look like one."""
    doubles = largest * np.random.default_rng(0).standard_normal((3, 2, 5, 8))
    cast = dict(zip(INPUTS, doubles, strict=True))
    rounded = {name: x.astype(np.float32) for name, x in cast.items()}
    ours = {**rounded, "output": pyattn.attention(*rounded.values())}
    right = {**cast, "output": pyattn.attention(*cast.values())}
    status, text = compared(ours, right)
    assert status == 0, text
    assert line_of("query", text).endswith("<- equal in float32")
    assert text.endswith("Equal: rounding explains every difference.\n")
    status, text = compared(ours, {**cast, "output": pyattn.attention(*cast.values(), is_causal=True)})
    assert status == 1
    assert "Cause, in scores: theirs is causal." in text


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        ({"query": "q", "key": "k", "value": "v", "output": "out"}, "q as query, k as key, v as value, out as output"),
        ({"attn_mask": "mask"}, "mask as attn_mask"),
        ({"is_causal": "causal"}, "causal as is_causal"),
    ],
)
def test_near_names_of_a_call_are_told_what_to_be(names, advice, compared):
    given = {**call(), "attn_mask": np.tri(5, dtype=bool), "is_causal": np.True_}
    given = {name: x for name, x in given.items() if name in names or name in call()}
    ours, theirs = ({names.get(name, name): x for name, x in one.items()} for one in (given, given | call(scale=1)))
    status, text = compared(ours, theirs)
    assert status == 1
    assert text.endswith(f"To compare the outputs as one call of attention, and to find the mistake, save {advice}.\n")


def test_files_that_cannot_be_compared_get_a_line(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", a=[1])
    np.savez(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    names = ("a.npz", "bad.npz", "a.txt", "missing.npz", "none.npz")
    one, bad, text, missing, none = (str(tmp_path / name) for name in names)
    for files, message in (
        ([one], "1 file is given; name two: python -m pyattn compare ours.npz theirs.npz"),
        ([one] * 3, "3 files are given; name two: "),
        ([one, text], f"{text} has an unknown ending: it must be .npz or .safetensors"),
        ([one, missing], "[Errno 2] No such file or directory: "),
        ([none, none], "neither file holds an array"),
        ([one, bad], f"{bad} is damaged or not a .npz file: "),
    ):
        assert main(["compare", *files]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"python -m pyattn compare: {message}")
        assert shown.err.count("\n") == 1


@pytest.mark.parametrize("ulp", ["-1", "nan", "inf", "two"])
def test_ulp_is_a_number_of_zero_or_more(ulp, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "a.npz", "b.npz", f"--ulp={ulp}"])
    assert ended.value.code == 2
    assert f"expected a number of 0 or more, not {ulp!r}" in capsys.readouterr().err
