"""``python -m pyattn explain``: pages of the example, of files, and what it says of files that it cannot use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import ROOT
from test_trace_html import Reader

import pyattn
from pyattn import __main__ as command


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    """Run it in a folder of its own: status, standard output, standard error, and the page, or None."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, page="explain.html"):
        status = command.main(["explain", *map(str, arguments)])
        captured = capsys.readouterr()
        path = tmp_path / page
        return status, captured.out, captured.err, path.read_text("utf-8") if path.exists() else None

    return run


def test_the_page_of_the_example_is_written_and_named(explain, article):
    status, out, err, page = explain()
    assert (status, out, err) == (0, "explain.html: open it in a browser\n", "")
    np.testing.assert_array_equal(np.array(Reader(page).table("scores")["cells"], float), article["scores"])


def test_the_text_is_printed_when_asked_for(explain, article):
    _, out, err, page = explain("--text", "-o", "mine.html", page="mine.html")
    assert page is not None
    matrices = (article[name] for name in ("x", "w_query", "w_key", "w_value"))
    assert out == f"{pyattn.trace(*matrices)}\n"
    assert err == "mine.html: open it in a browser\n"


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_matrices_of_a_file_are_explained_with_its_options(explain, tmp_path, kind):
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape) for name, shape in
              {"x": (4, 3), "w_query": (3, 2), "w_key": (3, 2), "w_value": (3, 5)}.items()}  # fmt: skip
    options = {"scale": 0.5, "is_causal": True, "score": "cosine", "round_weights": 2, "tokens": ["我", "b", "c", "d"]}
    path = tmp_path / f"matrices.{kind}"
    if kind == "npz":
        np.savez(path, **arrays, **options)
    else:
        path.write_text(json.dumps({name: x.tolist() for name, x in arrays.items()} | options), encoding="utf-8")
    status, out, _, _ = explain(path, "--text")
    assert status == 0
    assert out == f"{pyattn.trace(**arrays, **options)}\n"


def test_queries_keys_and_values_of_a_file_are_explained(explain, tmp_path):
    arrays = {"query": [[1, 2]], "key": [[1, 0], [0, 1]], "value": [[1], [2]]}
    (tmp_path / "a.json").write_text(json.dumps(arrays))
    _, out, _, _ = explain("a.json", "--text")
    assert out == f"{pyattn.trace_attention(**arrays)}\n"


def traced(kind, convention):
    """Of each kind that to_dict has to tell in its own way."""
    rng = np.random.default_rng(1)
    column = convention == "column"
    x, w_query, w_key, w_value = (rng.standard_normal(shape) for shape in ((4, 3), (3, 2), (3, 2), (3, 5)))
    options = {
        "bias": {"bias": [None, rng.standard_normal(2), rng.standard_normal(5)]},
        "causal and added": {"is_causal": True, "attn_mask": rng.standard_normal((4, 4))},
        "bool": {"attn_mask": rng.random((4, 4)) < 0.6, "tokens": ["我", "<b>", "c", "d"]},
        "bilinear": {"score": "bilinear", "score_weight": rng.standard_normal((2, 2)), "round_weights": 2},
        "not finite": {"scale": None, "normalize": "sparsemax"},
    }
    if kind == "heads":
        module = pyattn.MultiheadAttention(6, 2, add_bias_kv=True, add_zero_attn=True, rng=0)
        given = rng.standard_normal((3, 6))
        return module.trace(given.T if column else given, tokens=list("abc"), convention=convention)
    if kind == "empty rows":
        module = pyattn.MultiheadAttention(6, 2, rng=0)
        blocked = np.arange(4)[:, np.newaxis] == [0] * 4
        given = rng.standard_normal((4, 6))
        return module.trace(given.T if column else given, attn_mask=blocked, empty_rows="nan", convention=convention)
    if kind == "cross":
        arrays = (x[:, :2], rng.standard_normal((5, 2)), rng.standard_normal((5, 1)))
        arrays = [array.T for array in arrays] if column else arrays
        return pyattn.trace_attention(*arrays, key_tokens=list("vwxyz"), convention=convention)
    if kind == "not finite":
        x[0, 0], x[1, 1] = np.nan, np.inf
    matrices = [array.T if column else array for array in (x, w_query, w_key, w_value)]
    return pyattn.trace(*matrices, convention=convention, **options[kind])


def without_ids(page):
    return re.sub(r"pyattn-[0-9a-f]{12}", "", page)


@pytest.mark.parametrize("convention", ["row", "column"])
@pytest.mark.parametrize(
    "kind", ["bias", "causal and added", "bool", "bilinear", "not finite", "cross", "heads", "empty rows"]
)
def test_the_dict_of_a_trace_gives_its_page_again(explain, tmp_path, kind, convention):
    trace = traced(kind, convention)
    trace.save_html(tmp_path / "expected.html")
    (tmp_path / "trace.json").write_text(json.dumps(trace.to_dict(), allow_nan=False))
    status, out, err, page = explain("trace.json", "--text")
    assert (status, err) == (0, "explain.html: open it in a browser\n")
    assert out == f"{trace}\n"
    assert without_ids(page) == without_ids((tmp_path / "expected.html").read_text("utf-8"))


def test_an_input_that_is_changed_in_a_dict_changes_all_that_follows(explain, tmp_path):
    trace = traced("bias", "row")
    entries = trace.to_dict()
    entries["x"][2][1] = 7.0
    (tmp_path / "trace.json").write_text(json.dumps(entries))
    _, out, _, _ = explain("trace.json", "--text")
    x = trace.x.copy()
    x[2, 1] = 7
    biases = [None, trace.b_key[0], trace.b_value[0]]
    assert out == f"{pyattn.trace(x, trace.w_query, trace.w_key, trace.w_value, bias=biases)}\n"


@pytest.mark.parametrize(
    ("kind", "entry", "value", "message"),
    [
        ("bool", "visible", [[True]], "visible has shape (1, 1); it must be (4, 4)"),
        ("cross", "values", [[1.0]], "values has 1 row, keys has 5: each key needs one value"),
        ("cross", "keys", "some", "keys must be a matrix of numbers: could not convert string to float: 'some'"),
        ("cross", "score", "dots", "score is 'dots'"),
        ("cross", "empty_rows", "inf", "empty_rows is 'inf'"),
        ("heads", "heads", [{}], "entries lacks x, w_key, "),
        ("heads", "heads", [], "heads must be a list of traces: pass what to_dict() returned"),
        ("heads", "w_out", [[1.0]], "w_out has shape (1, 1); it must be (6, out_dim), as heads have 6 outputs"),
        ("heads", "b_out", [[1.0]], "b_out has shape (1, 1); it must be (1, 6), as w_out"),
    ],
)
def test_a_dict_that_was_spoilt_is_told_why(explain, tmp_path, kind, entry, value, message):
    (tmp_path / "a.json").write_text(json.dumps(traced(kind, "row").to_dict() | {entry: value}))
    status, _, err, page = explain("a.json")
    assert (status, page) == (2, None)
    assert err.startswith(f"python -m pyattn explain: {message}")


def test_names_that_are_not_used_are_told(explain):
    status, _, err, _ = explain(ROOT / "tests" / "support" / "article.json")
    assert status == 0
    assert re.search(r"article\.json: not used: about, keys, .*outputs_of_rounded\n", err)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"x": [[1]]}', "a.json lacks w_query, w_key, w_value: it needs x, w_query, w_key and w_value, or "
                                   "query, key and value; it has x"),
        ("a.json", '{"X": [[1]], "W_Q": [[1]], "W_K": [[1]], "W_V": [[1]]}', "a.json lacks x, w_query, w_key, w_value: "
         "it needs x, w_query, w_key and w_value, or query, key and value; it has X, W_Q, W_K, W_V; did you mean x for "
         "X and w_query for W_Q and w_key for W_K and w_value for W_V?"),
        ("a.json", '{"q": [[1]], "k": [[1]], "v": [[1]]}', "a.json lacks x, w_query, w_key, w_value: it needs x, "
         "w_query, w_key and w_value, or query, key and value; it has q, k, v; did you mean query for q and key for k "
         "and value for v?"),
        ("a.json", '{"query": [[1]], "key": [[1]], "value": [[1]], "mask": [[true]]}', "a.json: mask is not used; did "
         "you mean attn_mask?"),
        ("a.json", '{"query": [[1]], "key": [[1]], "value": [[1]], "causal": true}', "a.json: causal is not used; did "
         "you mean is_causal?"),
        ("a.json", '{"query": [[1]], "key": [[1]], "value": [[1]], "attn_mask": [[1]]}', "a.json: attn_mask holds "
         "integers; write true (attend) and false, or numbers with a decimal point"),
        ("a.json", "[1]", "a.json holds a JSON list, expected an object: {...}"),
        ("a.json", "hm", "a.json is damaged or not JSON: "),
        ("a.npz", "hm", "a.npz is damaged"),
        ("a.txt", "hm", "a.txt has an unknown ending: it must be .npz or .json"),
        ("a.json", None, "[Errno 2] No such file or directory: 'a.json'"),
        ("a.npz", None, "[Errno 2] No such file or directory: 'a.npz'"),
        ("a.json", '{"query": [1], "key": [[1]], "value": [[1]]}', "query has shape (1,); it must be (length, "),
        ("a.json", '{"query": [["x"]], "key": [[1]], "value": [[1]]}', "query holds text: pass numbers"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_explained_is_told_why(explain, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    status, out, err, page = explain(name)
    assert (status, out, page) == (2, "", None)
    assert err.startswith(f"python -m pyattn explain: {message}")
    assert err.count("\n") == 1


def test_a_byte_order_mark_is_accepted(explain, tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + b'{"query": [[1]], "key": [[1]], "value": [[1]]}')
    assert explain("a.json")[0] == 0


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"query": {"[" * 900}1{"]" * 900}, "key": [[1]], "value": [[1]]}}'])
def test_deep_nesting_gets_a_line(explain, tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    status, out, err, page = explain("a.json")
    assert (status, out, err.count("\n"), page) == (2, "", 1, None)


def test_an_output_without_a_name_gets_a_line(explain):
    status, out, err, page = explain("-o", "")
    assert (status, out, err, page) == (2, "", "python -m pyattn explain: -o needs the name of a file\n", None)


def test_a_trace_comes_back_from_its_dict():
    """Field by field; files are tested above."""
    trace = traced("causal and added", "column")
    again = pyattn.tracing.Trace.from_dict(trace.to_dict())
    for name, entry in trace.to_dict().items():
        assert again.to_dict()[name] == entry, name
    for convention in ("row", "column"):
        heads = traced("heads", convention)
        assert pyattn.tracing.HeadTraces.from_dict(heads.to_dict()).to_dict() == heads.to_dict()
    with pytest.raises(ValueError, match=r"^entries lacks x, .*: pass what to_dict"):
        pyattn.tracing.Trace.from_dict({"keys": [[1]]})


def test_objects_in_a_file_are_never_unpickled(explain, tmp_path):
    class Loud:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "unpickled"),))

    np.savez(tmp_path / "a.npz", x=np.array([Loud()], dtype=object))
    assert explain("a.npz")[0] == 2
    assert not (tmp_path / "unpickled").exists()


def test_a_page_that_cannot_be_written_is_told(explain):
    status, _, err, _ = explain("-o", "no/such/folder.html")
    assert status == 2
    assert "No such file or directory" in err


def test_it_is_a_subcommand(tmp_path):
    command = [sys.executable, "-m", "pyattn", "explain", "-o", str(tmp_path / "page.html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size < 60_000
