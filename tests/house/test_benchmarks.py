"""`python -m benchmarks` compares the same work, says what it could not compare, and weighs what is there."""

from __future__ import annotations

import itertools
import json
import re
import struct
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from support.helpers import ROOT, run_python

sys.path.append(str(ROOT))  # behind what is installed: pyattn may be, benchmarks never is

from benchmarks import __main__ as command
from benchmarks import models, overview, training
from benchmarks.cases import AdditiveCase, AttentionCase, EncoderLayerCase, LinearCase, MultiHeadCase
from benchmarks.grid import grid
from benchmarks.measure import Effort, Times
from benchmarks.onnx_model import Graph
from benchmarks.peers import Contender, NumPy, OnnxRuntime, Pyattn, Torch, enter
from benchmarks.run import run_case

SHORT = Effort(seconds=0.0, turns=1, tiny_turns=1, blocks=1)
SMALL = LinearCase("linear", (2, 3, 4), 1.0)


class Peer:
    """One with several ways, each by its name: the seconds it says that it took, and the error of its output."""

    def __init__(self, **ways):
        self.ways = ways

    def linear(self, case, inputs):
        right = inputs.x @ inputs.weight.T + inputs.bias
        return [
            Contender(lambda _, s=seconds: s, lambda e=error: right + e, way)
            for way, (seconds, error) in self.ways.items()
        ]


def result_of(**peers):
    return run_case(SMALL, 1, peers, {}, SHORT)


def test_every_case_has_a_name_of_its_own():
    names = Counter(case.name for case in grid())
    assert {"cache", "encoder", "generate", "linear", "mha", "prefill", "scores", "sentences"} <= {
        name.split()[0] for name in names
    }
    assert max(names.values()) == 1


def test_layers_and_models_have_a_bar_on_onnx_runtime():
    families = {"linear", "multi_head", "encoder_layer", "generate", "sentences"}
    layered = [case for case in grid() if case.operation in families]
    assert {case.operation for case in layered} == families
    for case in layered:
        assert "onnxruntime >= 1.05" in map(str, case.bars(1)), case.name


def results_of_the_chart():
    names = [case.name for case in grid() if re.search(overview.pattern(), case.name)]
    figures = {"torch": 2.0, "numpy": 0.5, "microseconds": 3.0}
    facts = {"processor": "A (family 1)", "pyattn": {"isa": {"chosen": "avx2"}}}
    versions = {"torch": "2.13.0+cpu", "onnxruntime": "MISSING", "jax": "MISSING", "numpy": "2.4"}
    results = [{"name": name, "threads": n, "figures": figures} for n in (2, 1) for name in names]
    return {"machine": facts | {"versions": versions}, "results": results}


def test_the_chart_has_cases_of_the_grid_and_their_peers():
    found = overview.ratios(results_of_the_chart())
    assert list(found) == list(overview.CASES)
    assert all(ratios == {"torch": 2.0, "numpy": 0.5} for ratios in found.values())
    about = overview.about(results_of_the_chart()["machine"])
    assert about == "A, avx2, 1 thread, float32 unless named\nPyTorch 2.13.0, NumPy 2.4"


def test_the_chart_names_the_generation_of_a_processor():
    facts = results_of_the_chart()["machine"] | {"processor": "AMD EPYC (family 25, model 1)"}
    assert overview.about(facts).startswith("AMD EPYC (Zen 3), avx2, ")


def test_no_mark_of_the_chart_hides_another():
    same = {name: dict.fromkeys(overview.PEERS, 1.0) for name in overview.CASES}
    rows = sorted(row for marks in overview.points(same).values() for _, row in marks)
    assert len(rows) == 4 * 12
    assert min(after - before for before, after in itertools.pairwise(rows)) > 0.15
    one = overview.points({"a": {"torch": 2.0}, "b": {"numpy": 3.0}})
    assert {peer: [(ratio, round(row)) for ratio, row in marks] for peer, marks in one.items() if marks} == {
        "torch": [(2.0, 0)],
        "numpy": [(3.0, 1)],
    }


def test_the_chart_names_the_cases_that_the_results_lack():
    results = results_of_the_chart()
    results["results"] = [one for one in results["results"] if one["name"] != "tiny 1,1,3,3,3" or one["threads"] == 2]
    with pytest.raises(ValueError, match=r"the results lack tiny 1,1,3,3,3: run python -m benchmarks"):
        overview.ratios(results)


def test_the_chart_is_drawn_in_light_and_dark(tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text(json.dumps(results_of_the_chart()))
    monkeypatch.setattr(sys, "argv", ["overview", str(tmp_path / "results.json"), "--out", str(tmp_path)])
    assert overview.main() == 0
    corners = [Image.open(tmp_path / name).convert("L").getpixel((0, 0)) for name in ("speed.png", "speed-dark.png")]
    assert corners[0] > 240
    assert corners[1] < 30


def test_the_time_of_a_peer_is_that_of_its_fastest_way():
    result = result_of(torch=Peer(slow=(3.0, 0.0), fast=(1.0, 0.0), middling=(2.0, 0.0)))
    assert result.figures["torch"] == 1.0 / result.times["pyattn"].minimum
    assert {"torch slow", "torch fast", "torch middling"} < set(result.times)


@pytest.mark.parametrize("error", [0.01, np.nan])
def test_a_peer_with_another_output_is_not_timed(error):
    result = result_of(torch=Peer(good=(1.0, 0.0), bad=(1.0, error)), numpy=Peer(good=(1.0, 0.0)))
    assert set(result.times) == {"pyattn", "numpy good"}
    assert result.absent["torch"].startswith("DIFFERS")
    assert result.verdicts()["torch >= 1"] == "not shown"


@pytest.mark.parametrize(
    ("case", "own"),
    [
        (AttentionCase("decode", (1, 2, 1, 100, 8), (1.0, 1.0)), 2 * 2 * 100 * 8),
        (AttentionCase("decode", (1, 2, 1, 100, 8), (1.0, 1.0), dtype="bfloat16"), 2 * 100 * 8),
        (LinearCase("linear", (1, 8, 100), 1.0), 8 * 100),
        (MultiHeadCase("mha", (1, 1, 8, 2), 1.0, layers=3), 3 * 4 * 8 * 8),
    ],
)
def test_one_token_is_compared_with_a_read_of_what_it_needs(case, own):
    result = run_case(case, 1, {}, {}, SHORT)
    assert result.read_bytes == 4 * own
    assert result.figures["of a read"] == result.times["read"].minimum / result.times["pyattn"].minimum


def test_more_tokens_are_not_compared_with_a_read():
    assert "read" not in result_of().times


@pytest.mark.parametrize("score", ["cosine", "distance", "bilinear"])
def test_a_score_is_compared_with_the_dot_product_of_the_same_sizes(score, monkeypatch):
    asked = []
    attend = Pyattn.attention
    monkeypatch.setattr(Pyattn, "attention", lambda case, inputs: asked.append(case.score) or attend(case, inputs))
    result = run_case(AttentionCase("scores", (1, 2, 9, 9, 8), score=score), 1, {}, {}, SHORT)
    assert sorted(asked) == sorted(["dot", score])
    assert result.figures["cost"] == result.times["pyattn"].minimum / result.times["plain"].minimum


def test_pages_are_compared_with_arrays_of_the_same_keys(monkeypatch):
    asked = []
    cached = Pyattn.cached
    monkeypatch.setattr(Pyattn, "cached", lambda case, inputs: asked.append(cached(case, inputs)) or asked[0])
    case = AttentionCase("cache", (2, 4, 3, 70, 8), kv_heads=2)
    result = run_case(case, 1, {}, {}, SHORT)
    np.testing.assert_array_equal(asked[0].output(), Pyattn.attention(case, case.inputs()).output())
    assert result.figures["cost"] == result.times["pyattn"].minimum / result.times["plain"].minimum


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.usefixtures("torch")
def test_halves_are_compared_with_float32_and_with_torchs(half, monkeypatch):
    asked = []
    attend = Pyattn.attention
    monkeypatch.setattr(
        Pyattn, "attention", lambda case, inputs: asked.append(inputs.query.dtype.name) or attend(case, inputs)
    )
    result = run_case(AttentionCase("half", (1, 2, 9, 9, 8), dtype=half), 1, {}, {}, SHORT)
    assert sorted(asked) == sorted(["float32", half])
    assert result.figures["cost"] == result.times["pyattn"].minimum / result.times["plain"].minimum
    peer = Torch(1)
    result = run_case(AttentionCase("prefill", (1, 2, 9, 9, 8), (1.0, 1.0), dtype=half), 1, {"torch": peer}, {}, SHORT)
    peer.close()
    assert "torch" in result.times


@pytest.fixture
def run_without_torch(monkeypatch, tmp_path):
    """The command on one case whose bars anyone passes who is there; its exit status, and the result in its JSON."""
    case = AdditiveCase("scores additive", (2, 5, 7, 8), {"torch": 0.0, "numpy": 0.0})
    monkeypatch.setattr(command, "grid", lambda: [case])
    monkeypatch.setattr(command, "FULL", SHORT)
    monkeypatch.setitem(sys.modules, "torch", None)  # cannot be imported

    def run(peers):
        options = ["--threads", "1", "--only", "^scores", "--check", "--out", str(tmp_path), "--peers", peers]
        monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
        return command.main(), json.loads((tmp_path / "results.json").read_text())["results"][0]

    return run


def test_a_peer_that_is_missing_is_printed_so_and_its_bar_counts_as_not_shown(run_without_torch, capsys):
    status, result = run_without_torch("torch,numpy")
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("| scores additive"))
    assert [cell.strip() for cell in row.split("|")].count("MISSING") == 1
    assert "not shown: torch >= 0" in row
    assert "1 passed, 0 missed, 1 not shown.\n  in 1 lines torch: MISSING: torch is not installed" in printed
    assert result["bars"] == {"torch >= 0": "not shown", "numpy >= 0": "passed"}
    assert status == 1


def test_a_peer_that_nobody_asked_for_has_no_bar(run_without_torch, capsys):
    status, result = run_without_torch("numpy")
    assert "MISSING" not in capsys.readouterr().out.partition("| case")[2]
    assert result["bars"] == {"numpy >= 0": "passed"}
    assert status == 0


GROWTH = """
import numpy as np
from benchmarks.memory import growth

def call():
    scratch = np.ones(16_000_000, np.float32)
    return scratch.copy()

print(growth(call), growth(lambda: np.ones(1)))
"""


def test_a_calls_growth_is_what_it_takes_beyond_its_result():
    large, small = map(int, run_python(GROWTH).stdout.split())
    assert 60e6 < large < 90e6  # one array beside the result, each of 64 MB; sanitizers add an eighth
    assert small < 5e6


# ONNX models


def fields_of(message):
    """The fields of a protobuf message, number to contents: an int, a float, or the bytes of anything else."""

    def varint():
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            number |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
            if byte < 128:
                return number

    fields, place = {}, 0
    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            content = varint()
        else:
            size = {2: varint, 5: lambda: 4}[kind]()
            content, place = message[place : place + size], place + size
            content = struct.unpack("<f", content)[0] if kind == 5 else content
        fields.setdefault(number, []).append(content)
    assert place == len(message)
    return fields


def test_an_onnx_model_has_the_nodes_and_the_numbers_of_its_graph():
    weight = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    graph = Graph()
    x = graph.input("x", np.float32, (None, 300))
    product = graph.node("MatMul", x, graph.weight(weight))
    first, second = graph.nodes(2, "com.microsoft.Some", product, "", axis=-1, epsilon=0.5, way="tanh", perm=(0, 200))
    model = fields_of(graph.model(second))
    assert [fields_of(opset)[1] for opset in model[8]] == [[b""], [b"com.microsoft"]]
    (content,) = model[7]
    parts = fields_of(content)
    assert [fields_of(output)[1] for output in parts[12]] == [[second.encode()]]

    ((name,), (kind,)) = fields_of(parts[11][0]).values()
    element_type, shape = fields_of(fields_of(kind)[1][0]).values()
    assert (name, element_type) == (b"x", [1])
    assert [fields_of(size) for size in fields_of(shape[0])[1]] == [{}, {1: [300]}]

    tensor = fields_of(parts[5][0])
    assert (tensor[1], tensor[2]) == ([2, 3], [1])
    np.testing.assert_array_equal(np.frombuffer(tensor[9][0], np.float32).reshape(2, 3), weight)

    matmul, some = map(fields_of, parts[1])
    assert (matmul[1], matmul[4], matmul[7]) == ([b"x", tensor[8][0]], [b"MatMul"], [b""])
    assert (some[1], some[2]) == ([product.encode(), b""], [first.encode(), second.encode()])
    assert (some[4], some[7]) == ([b"Some"], [b"com.microsoft"])
    assert list(map(fields_of, some[5])) == [
        {1: [b"axis"], 3: [2**64 - 1], 20: [2]},
        {1: [b"epsilon"], 2: [0.5], 20: [1]},
        {1: [b"way"], 4: [b"tanh"], 20: [3]},
        {1: [b"perm"], 8: [0, 200], 20: [7]},
    ]


@pytest.mark.peers
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase("prefill", (1, 2, 9, 9, 8), (1.0, 1.0), causal=True),
        AttentionCase("strided", (2, 2, 9, 9, 8), (1.0, 1.0), strided=True, mask="bool"),
        LinearCase("linear", (3, 8, 5), 1.0),
        LinearCase("linear", (3, 8, 5), 1.0, order="in_out"),
        *(MultiHeadCase("mha", (2, 7, 16, 2), 1.0, variant) for variant in ("", "causal", "padding", "weights")),
        MultiHeadCase("mha", (1, 1, 16, 2), 1.0, layers=3),
        EncoderLayerCase("encoder layer", (2, 7, 16, 2, 24), 1.0),
        models.GenerateCase("generate", (2, 9, 5, 16, 2, 2), 1.0),
        models.SentencesCase("sentences", (2, 7, 16, 2, 2, 24), 1.0),
    ],
    ids=lambda case: case.name,
)
def test_onnx_runtime_has_the_same_output_in_every_way(case, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: `make bench` installs it")
    monkeypatch.setattr(models, "GPT2_WORDS", 97)
    monkeypatch.setattr(models, "MINILM_WORDS", 89)
    inputs = case.inputs()
    contenders = enter(OnnxRuntime(1), case, inputs)
    expected = Pyattn.enter(case, inputs).output()
    for contender in contenders:
        np.testing.assert_allclose(contender.output(), expected, rtol=0, atol=1e-5, err_msg=contender.way)
        assert contender.sample(1) > 0
    whole = getattr(case, "variant", "") != "weights" and case.operation in ("multi_head", "encoder_layer", "sentences")
    assert len({contender.way for contender in contenders}) == len(contenders) == (3 if whole else 1)


# Against PyTorch


@pytest.mark.peers
def test_torchs_module_is_timed_with_its_fast_path_and_without(torch, monkeypatch):
    called = []
    native = torch._native_multi_head_attention
    monkeypatch.setattr(torch, "_native_multi_head_attention", lambda *args: called.append(1) or native(*args))
    case = MultiHeadCase("mha", (2, 3, 8, 2))
    inputs = case.inputs()
    peer = Torch(torch.get_num_threads())
    try:
        usual, other = peer.multi_head(case, inputs)
        counts = []
        for contender in (usual, other, usual):
            np.testing.assert_allclose(contender.output(), Pyattn.multi_head(case, inputs).output(), atol=1e-5)
            contender.sample(1)
            counts.append(len(called))
    finally:
        peer.close()
    assert counts == [2, 2, 4]
    assert not torch.is_inference_mode_enabled()


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("shape", [(1, 1, 8, 2, 12), (2, 5, 8, 2, 12)])
def test_torch_has_the_same_encoder_layer(shape):
    torch = Torch(1)
    try:
        result = run_case(EncoderLayerCase("encoder layer", shape, 1.0), 1, {"torch": torch}, {}, SHORT)
    finally:
        torch.close()
    assert result.absent == {}
    assert {"pyattn", "torch", "torch without fast path"} <= result.times.keys()
    assert (result.read_bytes > 0) == (shape[:2] == (1, 1))


@pytest.mark.slow
@pytest.mark.peers
def test_peers_have_the_same_additive_attention():
    case = AdditiveCase("scores additive", (2, 5, 7, 8), {"torch": 1.0, "numpy": 1.0})
    inputs = case.inputs()
    torch, numpy = Torch(1), NumPy(1)
    try:
        result = run_case(case, 1, {"torch": torch, "numpy": numpy}, {}, SHORT)
        exact = numpy.additive(case, inputs)[0].output()
        np.testing.assert_allclose(Pyattn.additive(case, inputs).output(), exact, rtol=0, atol=1e-5)
    finally:
        torch.close()
        numpy.close()
    assert result.absent == {}
    assert {"torch", "numpy"} <= result.figures.keys()


@pytest.mark.slow
@pytest.mark.peers
def test_every_peer_takes_part_in_the_families_of_modules(tmp_path):
    options = ["--quick", "--threads", "1", "--only", "^(linear|mha)", "--peers", "torch,numpy", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "benchmarks", *options], cwd=ROOT, check=True, capture_output=True)
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert {result["operation"] for result in results} == {"linear", "multi_head"}
    for result in results:
        assert result["absent"] == {}
        assert "not shown" not in result["bars"].values()
    assert all(result["name"] in (tmp_path / "table.md").read_text() for result in results)


# Against transformers


@pytest.mark.peers
@pytest.mark.usefixtures("transformers")
def test_transformers_writes_the_same_tokens(monkeypatch):
    monkeypatch.setattr(models, "GPT2_WORDS", 97)
    case = models.GenerateCase("generate", (2, 9, 5, 16, 2, 2), 1.0)
    result = result_of_transformers(case)
    weights = 97 * 16 + 16 * 2 + 2 * (12 * 16 * 16 + 13 * 16)  # the head; the last norm; of each layer
    assert result.read_bytes == 4 * weights
    assert result.figures["of a read"] > 0


@pytest.mark.peers
@pytest.mark.usefixtures("transformers")
def test_transformers_has_the_same_vectors_of_sentences(monkeypatch):
    monkeypatch.setattr(models, "MINILM_WORDS", 89)
    result = result_of_transformers(models.SentencesCase("sentences", (2, 7, 16, 2, 2, 24), 1.0))
    assert result.read_bytes == 0


def result_of_transformers(case):
    """Outputs agree, or it would not be timed."""
    torch = Torch(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of configurations that are small on purpose
            result = run_case(case, 1, {"torch": torch}, {}, SHORT)
    finally:
        torch.close()
    assert result.absent == {}
    assert {"torch transformers eager", "torch transformers sdpa"} < result.times.keys()
    return result


def test_a_token_is_timed_without_its_prompt():
    assert models.seconds_of_a_token([10.0, 10.5, 11.5, 13.0]) == 1.0


@pytest.mark.parametrize(("lead", "bar"), [(1.9, "1.0"), (2.0, "1.4")])
def test_a_step_of_bert_is_compared_with_torchs_faster_way(lead, bar):
    seconds = {"pyattn": 1.0, "torch": 1.3, "torch, eager": 1.2, "forward": 1.0, "torch's forward": lead}
    times = {name: Times(one, one, 1) for name, one in seconds.items()}
    line = training.row(training.bert(), 1, times, peak=1e9)
    verdict = "passed" if bar == "1.0" else "missed"
    assert line.endswith(f"| 1200.00 ms | 1000.00 ms | 1.20 | {bar} {verdict} | forward {lead:.2f} |")


@pytest.mark.peers
def test_without_transformers_a_step_of_bert_is_skipped(monkeypatch, capsys, torch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(sys, "argv", ["training", "--only", "BERT", "--threads", "1"])
    monkeypatch.setattr("pyattn.set_num_threads", lambda threads: None)  # of later tests
    training.main()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "BERT" in line]
    assert "skipped" in line
    assert "transformers" in line
