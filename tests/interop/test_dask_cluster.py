"""dask's scheduler of many processes: the same bits, whatever workers there are and whatever becomes of them."""

from __future__ import annotations

import json

import pytest
from support.helpers import ROOT, run_python

pytestmark = pytest.mark.slow

COMMON = """
import json, os, pathlib, signal, sys, tempfile, threading, time
import dask, dask.array as da, distributed, numpy as np
from dask.distributed import Client, LocalCluster
import pyattn
from pyattn import nn
from pyattn.interop.dask import attention, map_documents

def part(seed, block_info=None):
    where = block_info[None]
    return np.random.default_rng([seed, *where["chunk-location"]]).standard_normal(where["chunk-shape"], np.float32)

def source(seed, length, chunk, heads=2):
    chunks = ((1,), (heads,), (chunk,) * (length // chunk), (64,))
    return da.map_blocks(part, seed, chunks=chunks, dtype=np.float32)

def arrays(length, rows, keys):
    return source(0, length, rows), source(1, length, keys), source(2, length, keys)

def cluster(**options):
    return LocalCluster(**{"dashboard_address": None, "threads_per_worker": 1, "n_workers": 4, **options})

def whole(*lazy, **options):
    return pyattn.attention(*(x.compute(scheduler="threads") for x in lazy), **options)
"""


def run(script):
    return run_python(COMMON + "if __name__ == '__main__':\n    " + script.strip().replace("\n", "\n    "), timeout=300)


def test_any_number_of_workers_gives_the_bits_of_one_call():
    run(
        """
lazy = arrays(4096, 512, 1024)
mask = pyattn.masks.document(np.arange(4096) % 3)
options = {"is_causal": True, "dropout_p": 0.1, "rng": 3, "attn_mask": mask}
expected = whole(*lazy, **options)
for workers, threads, processes in ((1, 1, True), (3, 1, True), (2, 2, True), (1, 3, False)):
    with cluster(n_workers=workers, threads_per_worker=threads, processes=processes) as some, Client(some):
        found = attention(*lazy, **options).compute()
    assert found.tobytes() == expected.tobytes(), (workers, threads)
"""
    )


def test_a_killed_worker_changes_nothing():
    """Only the chains whose results it held are computed again."""
    run(
        """
class Links(distributed.SchedulerPlugin):
    done = 0
    def transition(self, key, start, finish, *args, **kwargs):
        self.done += "attention-link" in str(key) and (start, finish) == ("processing", "memory")

def done(dask_scheduler):
    return dask_scheduler.plugins["links"].done

lazy = arrays(16384, 1024, 1024)
expected = whole(*lazy)
with cluster(memory_limit=0) as some, Client(some) as client:
    client.register_plugin(Links(), name="links")
    pids = client.run(os.getpid)
    future = client.compute(attention(*lazy))
    while client.run_on_scheduler(done) < 120:
        time.sleep(0.01)
    assert future.status == "pending"
    os.kill(list(pids.values())[1], signal.SIGKILL)
    assert future.result().tobytes() == expected.tobytes()
    assert set(client.run(os.getpid).values()) != set(pids.values())
    assert client.run_on_scheduler(done) < 240 + 0.6 * 120, client.run_on_scheduler(done)
"""
    )


def test_a_worker_without_memory_is_an_error_that_says_so():
    done = run(
        """
with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
    with cluster(n_workers=1, memory_limit="250MiB") as some, Client(some) as client:
        x = source(0, 65536, 16384, heads=16)
        try:
            print("done", attention(x[:, :, :16384], x, x).sum().compute())
        except (distributed.scheduler.KilledWorker, MemoryError) as error:
            print(type(error).__name__, error)
"""
    )
    assert "KilledWorker" in done.stdout or "MemoryError" in done.stdout


def test_no_process_holds_all_keys():
    """A process needs less than all keys and values beside its queries and what they have so far."""
    done = run(
        """
def peak():
    status = pathlib.Path("/proc/self/status").read_text().split()
    return {name: int(status[status.index(name + ":") + 1]) << 10 for name in ("VmHWM", "VmRSS")}

length, chunk = 32768, 2048
lazy = [source(n, length, chunk, heads=8) for n in range(3)]
with cluster() as some, Client(some) as client:
    client.run(lambda: __import__("pyattn.interop.dask"))
    before = client.run(peak)
    total = attention(*lazy).sum().compute()
    after = client.run(peak)
row = 8 * 64 * 4
print(json.dumps({
    "grown": [after[name]["VmHWM"] - before[name]["VmRSS"] for name in after],
    "own": length // 4 * row * 2, "all": 2 * length * row,
}))
"""
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found["grown"]) < found["own"] + found["all"], found


def test_each_worker_gets_a_model_once():
    run(
        """
class Model:
    def __init__(self, folder):
        self.folder = folder
    def __setstate__(self, state):
        self.__dict__ |= state
        pathlib.Path(self.folder, f"loaded-{os.getpid()}-{time.monotonic_ns()}").touch()
    def __call__(self, batch):
        return [[len(text)] for text in batch]

with tempfile.TemporaryDirectory() as folder, cluster(n_workers=2) as some, Client(some) as client:
    texts = ["a" * (n % 50) for n in range(400)]
    results = map_documents(Model(folder), texts, folder + "/run", part_size=10)
    assert results.to_dask().compute()[:, 0].tolist() == [len(text) for text in texts]
    pids = [name.split("-")[1] for name in os.listdir(folder) if name.startswith("loaded")]
    workers = [str(pid) for pid in client.run(os.getpid).values()]
    assert sorted(pid for pid in pids if pid in workers) == sorted(workers), (pids, workers)
"""
    )


def test_an_error_of_a_callable_arrives():
    run(
        """
def refuse(batch):
    raise ValueError(f"{len(batch)} texts are too many")

with tempfile.TemporaryDirectory() as folder, cluster(n_workers=1) as one, Client(one):
    try:
        map_documents(refuse, ["a", "b"], folder)
    except ValueError as error:
        assert str(error) == "2 texts are too many" and error.__cause__ is None
    else:
        raise AssertionError("no error")
"""
    )


def test_documents_survive_a_killed_worker():
    run(
        """
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, rng=0)
encoder = nn.TransformerEncoder(layer, 2).eval()
documents = [part(n, {None: {"chunk-location": (n,), "chunk-shape": (n % 60 + 1, 64)}}) for n in range(600)]
with tempfile.TemporaryDirectory() as folder, cluster(n_workers=3) as some, Client(some) as client:
    pids = list(client.run(os.getpid).values())
    threading.Timer(0.5, os.kill, (pids[0], signal.SIGKILL)).start()
    results = map_documents(encoder, documents, folder, batch_size=8, part_size=10)
    assert len(results) == 600
    for result, x in zip(results, documents, strict=True):
        assert result.tobytes() == encoder(x).tobytes()
"""
    )


def test_the_example_does_what_it_says():
    """With fewer tokens."""
    text = (ROOT / "examples" / "attention_on_a_cluster.py").read_text()
    assert "TOKENS, CHUNK, HEADS, DIM = 65536, 4096, 8, 64" in text
    done = run_python(
        text.replace("65536, 4096", "4096, 512").replace("threads_per_worker=1", "dashboard_address=None")
    )
    assert "the last four tokens have the bits of one call: True" in done.stdout
