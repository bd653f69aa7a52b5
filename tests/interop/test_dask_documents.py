"""A model over a collection: its own results, in order, from a folder in which a killed run goes on."""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
import time

import dask
import ml_dtypes
import numpy as np
import pytest
from support.helpers import ROOT, assert_same_bits, normal
from support.published import write_model

import pyattn
from pyattn import models, nn
from pyattn.interop.dask import Documents, map_documents

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def alone():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def lengths_of(batch):
    return [[len(text), len(batch)] for text in batch]


ENCODER = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, rng=0).eval()


def texts(count):
    return ["a" * (n * 7 % 40) for n in range(count)]


@pytest.mark.parametrize("batch_first", [True, False])
def test_arrays_go_through_an_encoder(tmp_path, batch_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, rng=0)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    arrays = [normal(n, 16, seed=n) for n in (5, 1, 9, 9, 30, 2, 1)]
    results = map_documents(encoder, arrays, tmp_path, batch_size=3, part_size=4)
    assert len(results) == len(arrays)
    for result, x in zip(results, arrays, strict=True):
        assert_same_bits(result, encoder(x))


def test_token_lists_go_through_bert(tmp_path):
    model = models.load(write_model(tmp_path / "model"))
    ids = [[3, 5, 7], [1], [2] * 8]
    for result, one in zip(map_documents(model, ids, tmp_path / "results"), ids, strict=True):
        assert_same_bits(result, model([one]).last_hidden_state[0])


def test_bert_takes_documents_without_tokens(tmp_path):
    model = models.load(write_model(tmp_path / "model"))
    for size in (1, 2):
        results = map_documents(model, [[], [1, 2], []], tmp_path / f"results-{size}", batch_size=size)
        assert [len(one) for one in results] == [0, 2, 0]
    with pytest.raises(ValueError, match=r"documents\[1\]: input_ids holds 9999"):
        map_documents(model, [[1], [2, 9999], [3]], tmp_path / "bad")


def test_bfloat16_results_stay_what_they_are(tmp_path):
    from pyattn._util.halves import as_dtype

    encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, rng=0).eval().to("bfloat16")
    arrays = [normal(3, 8, seed=n).astype(as_dtype("bfloat16")) for n in range(3)]
    results = map_documents(encoder, arrays, tmp_path)
    assert results[0].dtype == results.to_dask().dtype == as_dtype("bfloat16")
    for result, whole, x in zip(results, results.to_dask().compute(), arrays, strict=True):
        assert_same_bits(result, encoder(x))
        assert_same_bits(whole, encoder(x))


def test_a_slice_reads_each_part_once(tmp_path, monkeypatch):
    results, read, load = map_documents(lengths_of, texts(30), tmp_path, part_size=10), [], np.load
    monkeypatch.setattr(np, "load", lambda file, **options: read.append(file.name) or load(file, **options))
    assert [one[0] for one in results[5:25]] == [len(text) for text in texts(30)[5:25]]
    assert read == [f"part-{n:06d}.npy" for n in range(3)]


def test_a_model_with_a_function_resumes_with_the_same_code(tmp_path):
    def encode(activation):
        layer = nn.TransformerEncoderLayer(8, 2, 8, activation=activation, batch_first=True, rng=0)
        map_documents(layer.eval(), [np.ones((3, 8), "f4")], tmp_path)

    for _ in range(2):
        encode(lambda y: np.maximum(y, 0))  # which has another address each time
    with pytest.raises(ValueError, match="holds a run whose model differs"):
        encode(lambda y: np.maximum(y, 1))


def test_texts_go_through_a_sentence_encoder(tmp_path, minilm):
    encoder = models.SentenceEncoder.load(minilm)
    sentences = ["A cat sits on a mat.", "Why?", "The stock market fell again today, for the third time."] * 3
    results = map_documents(encoder, sentences, tmp_path, batch_size=2, part_size=4)
    assert_same_bits(results.to_dask().compute(), encoder.encode(sentences))


def test_a_callable_gets_batches_of_similar_lengths(tmp_path):
    before = pyattn.get_num_threads()
    results = map_documents(lengths_of, texts(100), tmp_path, batch_size=8, part_size=30, num_threads=1)
    assert pyattn.get_num_threads() == before
    array = results.to_dask()
    assert array.chunks == ((30, 30, 30, 10), (2,))
    assert array.compute()[:, 0].tolist() == [len(text) for text in texts(100)]
    assert array.compute()[:, 1].max() == 8
    assert [one.tolist() for one in results[-2:]] == array.compute()[-2:].tolist()
    with pytest.raises(IndexError, match=r"document 100 is out of range: .* has 100 documents"):
        results[100]


def test_an_empty_collection_is_one(tmp_path):
    assert list(map_documents(lengths_of, [], tmp_path)) == []
    assert map_documents(lengths_of, [], tmp_path).to_dask().shape == (0,)


def test_results_of_other_shapes_make_no_array(tmp_path):
    results = map_documents(lambda batch: [np.ones(len(text)) for text in batch], texts(9), tmp_path)
    assert [len(one) for one in results] == [len(text) for text in texts(9)]
    with pytest.raises(ValueError, match="results differ in shape"):
        results.to_dask()


SCRIPT = """
import sys, time, dask
from interop.test_dask_documents import texts
from pyattn.interop.dask import map_documents

def slow(batch):
    time.sleep(0.02)
    return [[len(text), ord(text[:1] or "b")] for text in batch]

if __name__ == "__main__":
    with dask.config.set(scheduler="threads", num_workers=2):
        print("begins", flush=True)
        map_documents(slow, texts(400), sys.argv[1], batch_size=4, part_size=10)
"""


def test_a_run_killed_ten_times_loses_no_document_and_doubles_none(tmp_path):
    rng, folder, parts = random.Random(0), tmp_path / "run", []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    for number in range(10):
        run = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=environment, stdout=subprocess.PIPE)
        run.stdout.readline()
        before = len(list(folder.glob("part-*.npy")))
        deadline = time.monotonic() + 60
        while len(list(folder.glob("part-*.npy"))) == before < 40 and time.monotonic() < deadline and number % 2 == 0:
            time.sleep(0.001)
        time.sleep(rng.random() * (0.01, 0.2)[number % 2])  # just after a part, or at any moment from the start on
        run.kill()
        run.communicate()
        parts.append(len(list(folder.glob("part-*.json"))))
    assert parts == sorted(parts)
    assert parts[5] < 40, "the run was done before most kills"
    done = {file: file.stat().st_mtime_ns for file in folder.glob("part-*.json")}
    subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], env=environment, check=True)
    assert all(file.stat().st_mtime_ns == then for file, then in done.items()), "a finished part was computed again"
    found = Documents(folder).to_dask().compute()
    assert found[:, 0].tolist() == [len(text) for text in texts(400)]
    assert len(found) == 400
    assert not list(folder.glob("*.draft"))


def test_damage_is_named(tmp_path):
    map_documents(lengths_of, texts(30), tmp_path, part_size=10)
    part = tmp_path / "part-000001.npy"
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(content)
    results = Documents(tmp_path)
    for read in (
        lambda: map_documents(lengths_of, texts(30), tmp_path, part_size=10),
        lambda: results[5:15],
        lambda: results[17],
        lambda: list(results),
        lambda: results.to_dask().compute(),
    ):
        with pytest.raises(ValueError, match=r"part-000001\.npy is damaged; delete .*part-000001\.json"):
            read()
    part.write_bytes(content[:90])
    with pytest.raises(ValueError, match=r"part-000001\.npy is damaged; delete .*part-000001\.json"):
        results.to_dask()
    part.unlink()
    with pytest.raises(ValueError, match=r"part-000001\.npy is missing; delete"):
        map_documents(lengths_of, texts(30), tmp_path, part_size=10)
    record = tmp_path / "part-000001.json"
    whole = record.read_text()
    for damaged in (whole[:20], "[]", whole.replace('"lengths": null', '"lengths": [3, 7]')):
        record.write_text(damaged)
        with pytest.raises(ValueError, match=r"part-000001\.json is damaged; delete it, and call"):
            map_documents(lengths_of, texts(30), tmp_path, part_size=10)
    record.write_text((tmp_path / "part-000000.json").read_text())
    part.write_bytes((tmp_path / "part-000000.npy").read_bytes())
    for read in (
        lambda: map_documents(lengths_of, texts(30), tmp_path, part_size=10),
        lambda: results[17],
        lambda: results.to_dask(),
    ):
        with pytest.raises(ValueError, match=r"part-000001\.json is that of part 0; delete it"):
            read()
    map_documents(lengths_of, texts(30)[::-1], tmp_path / "other", part_size=10)
    record.write_text((tmp_path / "other" / "part-000001.json").read_text())
    part.write_bytes((tmp_path / "other" / "part-000001.npy").read_bytes())
    with pytest.raises(ValueError, match=r"part-000001\.json belongs to another run"):
        list(results)
    record.unlink()
    with pytest.raises(FileNotFoundError, match=r"part-000001\.json is missing; call map_documents again"):
        Documents(tmp_path)
    results = map_documents(lengths_of, texts(30), tmp_path, part_size=10)
    assert results.to_dask().compute()[:, 0].tolist() == [len(text) for text in texts(30)]
    (tmp_path / "documents.json").write_text("{")
    with pytest.raises(ValueError, match=r"documents\.json is damaged"):
        map_documents(lengths_of, texts(30), tmp_path, part_size=10)
    with pytest.raises(FileNotFoundError, match=r"has no documents\.json"):
        Documents(tmp_path / "elsewhere")


def test_another_run_is_not_mixed_in(tmp_path):
    models_ = [nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, rng=seed).eval() for seed in (0, 1)]
    arrays = [normal(3, 8, seed=n) for n in range(4)]
    map_documents(models_[0], arrays, tmp_path)
    for arguments, word in (
        ((models_[1], arrays), "model"),
        ((models_[0], arrays[::-1]), "documents"),
        ((models_[0], arrays[:3]), "count"),
    ):
        with pytest.raises(ValueError, match=f"holds a run whose {word} differs"):
            map_documents(*arguments, tmp_path)
    with pytest.raises(ValueError, match="whose part_size differs"):
        map_documents(models_[0], arrays, tmp_path, part_size=3)
    assert json.loads((tmp_path / "documents.json").read_text())["count"] == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((lengths_of, "a text"), TypeError, "documents is of type str, expected a sequence"),
        ((lengths_of, {"a"}), TypeError, "documents is of type set"),
        ((lengths_of, [object()]), TypeError, r"documents\[0\]"),
        ((lengths_of, [[1], 3]), TypeError, r"documents\[1\] is 3, expected text, token ids or an array"),
        ((3, ["a"]), TypeError, "model is of type int, expected an encoder or a callable"),
        ((lambda batch: dict.fromkeys(batch), ["a"]), TypeError, "model returned a dict, expected a result for each"),
        (
            (lambda batch: [None for _ in batch], ["a"]),
            TypeError,
            "model returned .*None.* for a document, expected numbers",
        ),
        (
            (lambda batch: [np.ones((2, len(x))) for x in batch], ["a", "bb"]),
            ValueError,
            "only the first axis may differ",
        ),
        ((ENCODER, [np.ones((3, 8), "f4"), np.ones((3, 4), "f4")]), ValueError, r"documents\[1\]: .*\(1, 3, 4\)"),
        ((ENCODER, [np.ones(8, "f4")]), ValueError, r"documents have shapes \[\(8,\)\], expected \(L, d_model\)"),
        (
            (lambda batch: np.ones(len(batch), ml_dtypes.float8_e5m2), ["a"]),
            TypeError,
            "for a document, expected numbers",
        ),
        (
            (collections.namedtuple("Output", "states"), ["a"]),
            TypeError,
            "model returned a Output, expected a result for each",
        ),
        (
            (nn.TransformerEncoderLayer(8, 2, 8), [np.ones((3, 8))]),
            ValueError,
            r"training mode.*; call model\.eval\(\)",
        ),
        ((lambda batch: [1], ["a", "b"]), ValueError, "model returned 1 results for 2 documents"),
    ],
)
def test_bad_input_is_refused(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        map_documents(*arguments, tmp_path)
    for name in ("batch_size", "part_size", "num_threads"):
        with pytest.raises(ValueError, match=f"{name} is 0, expected 1 or more"):
            map_documents(lengths_of, ["a"], tmp_path, **{name: 0})


def test_a_document_does_not_depend_on_those_beside_it(tmp_path):
    """Halves beside float32; a model that uses one buffer for all results; any iterable."""
    arrays = [np.ones((3, 8), "f2"), np.full((4, 8), 0.3, "f4"), np.full((4, 8), 0.25, "f2")]
    for result, x in zip(map_documents(ENCODER, iter(arrays), tmp_path / "mixed"), arrays, strict=True):
        assert (result == ENCODER(x)).all()  # which a part stores in one dtype
    buffer = np.zeros(2)

    def reusing(batch):
        buffer[:] = len(batch[0])
        return [buffer] * len(batch)

    results = map_documents(reusing, ["a", "bb", "ccc"], tmp_path / "buffer", batch_size=1)
    assert results.to_dask().compute()[:, 0].tolist() == [1, 2, 3]


def test_files_of_others_stay_and_parts_of_another_run_are_refused(tmp_path):
    (tmp_path / "mine.tmp").touch()
    map_documents(lengths_of, ["a"], tmp_path)
    assert (tmp_path / "mine.tmp").exists()
    (tmp_path / "documents.json").unlink()
    with pytest.raises(ValueError, match=r"part-000000\.json belongs to another run"):
        map_documents(lengths_of, ["abcdef"], tmp_path)


def test_a_part_is_what_its_task_wrote(tmp_path, monkeypatch):
    """Another task that replaces the file at the same time does not get this one's checksum."""
    replace = os.replace

    def replace_twice(draft, file):
        replace(draft, file)
        if file.suffix == ".npy":
            np.save(file, np.zeros((3, 2), int))

    monkeypatch.setattr(os, "replace", replace_twice)
    results = map_documents(lengths_of, texts(3), tmp_path)
    with pytest.raises(ValueError, match=r"part-000000\.npy is damaged"):
        results[0]


@pytest.mark.parametrize("other", [False, True])
def test_a_worker_without_the_folder_is_named(tmp_path, monkeypatch, other):
    map_documents(lengths_of, texts(4), tmp_path / "other")
    compute = dask.compute

    def elsewhere(*tasks):
        tmp_path.joinpath("run").rename(tmp_path / "moved")
        if other:
            tmp_path.joinpath("other").rename(tmp_path / "run")
        return compute(*tasks)

    monkeypatch.setattr(dask, "compute", elsewhere)
    with pytest.raises(FileNotFoundError, match=r"find this run's .*documents\.json; pass a folder that all"):
        map_documents(lengths_of, texts(3), tmp_path / "run")


def test_results_are_found_from_another_folder(tmp_path, monkeypatch):
    map_documents(lengths_of, texts(30), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    results = Documents("run")
    monkeypatch.chdir("/")
    assert results[7].tolist() == [len(texts(30)[7]), 30]
    assert results[7].base is None  # so it does not hold the other results of its part


class Pooled(nn.Module):
    def __init__(self, pooling):
        super().__init__()
        self.pooling = pooling

    def forward(self, batch):
        return [getattr(np.asarray(one), self.pooling)(0) for one in batch]


def test_another_attribute_is_another_model(tmp_path):
    for _ in range(2):
        map_documents(Pooled("mean").eval(), [np.ones((3, 8), "f4")], tmp_path)
    with pytest.raises(ValueError, match="whose model differs"):
        map_documents(Pooled("max").eval(), [np.ones((3, 8), "f4")], tmp_path)


def test_another_number_of_heads_is_another_model(tmp_path):
    other = nn.TransformerEncoderLayer(8, 4, 8, batch_first=True, rng=0).eval()
    map_documents(ENCODER, [np.ones((3, 8), "f4")], tmp_path)
    with pytest.raises(ValueError, match="whose model differs"):
        map_documents(other, [np.ones((3, 8), "f4")], tmp_path)
