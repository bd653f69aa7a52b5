"""Attention on a cluster of processes, against dask's own operations and torch: `python -m benchmarks.cluster`.

The cost of the graph itself comes first. Then every way computes the same chunks on the same number of workers; the
memory is the highest of each worker in any run, beyond what imports took. Results are compared with those of one call.
Last is what the measured speeds say on paper about clusters that nobody here has.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import pickle
import signal
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster

import pyattn
from pyattn import masks
from pyattn.interop.dask import attention

HEADS, DIM = 8, 64
WORKERS = 4
OPERATIONS = 4 * HEADS * DIM  # for a query and a key


def chunk_of(seed: int, block_info: Any = None) -> Any:
    where = block_info[None]
    rng = np.random.default_rng([seed, *where["chunk-location"]])
    return rng.random(where["chunk-shape"], np.float32) - np.float32(0.5)


def sources(length: int, chunk: int) -> list[da.Array]:
    chunks = ((1,), (HEADS,), (chunk,) * (length // chunk), (DIM,))
    return [da.map_blocks(chunk_of, seed, chunks=chunks, dtype=np.float32) for seed in range(3)]


def ours(query: da.Array, key: da.Array, value: da.Array, causal: bool) -> da.Array:
    return attention(query, key, value, is_causal=causal)


def operations_of_dask(query: da.Array, key: da.Array, value: da.Array, causal: bool) -> da.Array:
    """A prototype as one writes it: all scores, a softmax, the weighted sum."""
    scores = query @ key.swapaxes(-2, -1) / math.sqrt(DIM)  # da.einsum takes 20 times as long: it calls no BLAS
    if causal:
        rows, keys = (da.arange(query.shape[2], chunks=x.chunks[2]) for x in (query, key))
        scores = da.where(keys[None, :] <= rows[:, None], scores, -np.inf)
    weights = da.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ value


def pair_in_torch(query: Any, key: Any, value: Any, causal: bool) -> Any:
    import torch

    torch.set_num_threads(1)
    function = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, lse = function(*map(torch.from_numpy, (query, key, value)), 0.0, causal)
    return output.numpy(), lse.numpy()


def merged(parts: list[Any]) -> Any:
    return pyattn.merge_states(*zip(*parts, strict=True))[0]


def torch_over_chunks(query: da.Array, key: da.Array, value: da.Array, causal: bool) -> da.Array:
    """One task of torch for each pair of chunks, merged by their logsumexps."""
    from dask.highlevelgraph import HighLevelGraph

    name, tasks = f"torch-{query.name}", {}
    for i in range(query.numblocks[2]):
        parts = []
        for j in range(i + 1 if causal else key.numblocks[2]):
            blocks = ((query.name, 0, 0, i, 0), (key.name, 0, 0, j, 0), (value.name, 0, 0, j, 0))
            tasks[f"pair-{name}", i, j] = (pair_in_torch, *blocks, causal and i == j)
            parts.append((f"pair-{name}", i, j))
        tasks[name, 0, 0, i, 0] = (merged, parts)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[query, key, value])
    return da.Array(graph, name, query.chunks, dtype=np.float32)


WAYS: dict[str, Callable[..., da.Array]] = {
    "pyattn": ours,
    "torch over the same chunks": torch_over_chunks,
    "dask's own products and exp": operations_of_dask,
}


def memory() -> dict[str, int]:
    """Bytes of this process, and the most that there have been."""
    status = Path("/proc/self/status").read_text().split()
    return {name: int(status[status.index(f"{name}:") + 1]) << 10 for name in ("VmHWM", "VmRSS")}


def imports() -> None:
    """Import what a way needs, before its memory is measured."""
    for name in ("torch", "pyattn.interop.dask"):
        importlib.import_module(name)


def summary(block: Any) -> Any:
    """Checksum and sum of a chunk."""
    return np.array([zlib.crc32(np.ascontiguousarray(block)), block.sum(dtype=np.float64)]).reshape(1, 1, 1, 2)


def run(
    way: Callable[..., da.Array], length: int, chunk: int, causal: bool, killed_after: float | None = None
) -> tuple[float, list[int], Any]:
    """Seconds, the most bytes of each worker that lived, and the summaries of all chunks."""
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(imports)
        before = client.run(memory)
        if killed_after is not None:
            victim = min(client.run(os.getpid).values())
            threading.Timer(killed_after, os.kill, (victim, signal.SIGKILL)).start()
        start = time.perf_counter()
        result = way(*sources(length, chunk), causal)
        chunks = ((1,), (1,), (1,) * result.numblocks[2], (2,))
        found = result.map_blocks(summary, chunks=chunks, meta=np.empty((0, 0, 0, 0))).compute()[0, 0]
        seconds = time.perf_counter() - start
        after = client.run(memory)
    return seconds, sorted(after[name]["VmHWM"] - before[name]["VmRSS"] for name in before if name in after), found


def compare(lengths: list[int], chunk: int, causal: bool, repeats: int) -> None:
    for length in lengths:
        few = length <= 16384  # the prototype keeps all scores: 8 GiB there
        ways = {name: way for name, way in WAYS.items() if few or "dask's" not in name}
        runs: dict[str, list[tuple[float, list[int], Any]]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                runs[name].append(run(way, length, chunk, causal))
        half = min(one[0] for one in runs["pyattn"]) / 2
        runs["pyattn, a worker killed half way"] = [run(ours, length, chunk, causal, half) for _ in range(repeats)]
        keys = 2 * length * HEADS * DIM * 4
        print(f"\n{length} tokens, chunks of {chunk}{', causal' if causal else ''}, {WORKERS} processes:")
        block = 2 * chunk * HEADS * DIM * 4
        print(f"  a quarter of keys and values {keys / WORKERS / 1e6:.0f} MB, a block of them {block / 1e6:.0f} MB")
        arrays = [x.compute(scheduler="synchronous") for x in sources(length, chunk)]
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            whole = pyattn.attention(*arrays, is_causal=causal)
            times.append(time.perf_counter() - start)
        expected = np.concatenate([summary(whole[:, :, n : n + chunk])[0, 0] for n in range(0, length, chunk)])
        for name, some in runs.items():
            seconds, bytes_ = min(one[0] for one in some), np.max([one[1] for one in some], axis=0) / 1e6
            checksums, sums = np.moveaxis(np.array([one[2] for one in some]) - expected, -1, 0)
            assert np.abs(sums).max() < 1e-6 * HEADS * chunk * DIM, name
            same = ", the bits of one call" if not checksums.any() else ""
            print(f"  {name:32} {seconds:7.1f} s, {' '.join(f'{one:.0f}' for one in bytes_)} MB{same}")
        print(f"  {'one call, ' + str(pyattn.get_num_threads()) + ' threads':32} {min(times):7.1f} s")


def graphs() -> None:
    for chunks, tokens in ((64, 512), (256, 512), (256, 4096)):
        length = chunks * tokens
        x = da.zeros((1, HEADS, length, DIM), chunks=(1, HEADS, tokens, DIM), dtype="f4")
        documents = masks.document(np.arange(length) // 4096 % 3)
        cases = {
            "": None,
            ", interleaved documents": masks.document(np.arange(length) % 7),
            ", documents or a window": documents | masks.window(length, left=256, right=0),
        }
        for name, mask in cases.items():
            start = time.perf_counter()
            graph = dict(attention(x, x, x, attn_mask=mask).dask)
            seconds = time.perf_counter() - start
            size = len(pickle.dumps(graph)) / 1e6
            what = f"graph of {chunks} x {chunks} chunks of {tokens}{name}"
            print(f"{what}: {len(graph)} tasks, {seconds:.2f} s, {size:.0f} MB")


def rates() -> tuple[float, float, float]:
    """Operations a second of one worker, bytes a second between two, and tasks a second of the scheduler."""
    query, key, value = (np.random.default_rng(0).random((1, HEADS, 4096, DIM), np.float32) for _ in range(3))
    start = time.perf_counter()
    pyattn.attention(query, key, value, num_threads=1)
    operations = OPERATIONS * 4096**2 / (time.perf_counter() - start)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        names = list(client.scheduler_info()["workers"])
        data = client.submit(np.ones, 1 << 25, workers=names[:1])
        client.submit(len, data, workers=names[:1], pure=False).result()
        start = time.perf_counter()
        client.submit(len, data, workers=names[1:], pure=False).result()
        transfer = (1 << 28) / (time.perf_counter() - start)
        x = da.zeros((32 * 512, 8), chunks=(512, 8), dtype="f4")
        result = attention(x, x, x)
        start = time.perf_counter()
        result.sum().compute()
        tasks = len(result.dask) / (time.perf_counter() - start)
    print(
        f"\none worker {operations / 1e9:.0f} GFLOP/s, {transfer / 1e9:.2f} GB/s to another, {tasks:.0f} tasks a second"
    )
    return operations, transfer, tasks


def model(operations: float, transfer: float, tasks: float, length: int = 1 << 20) -> None:
    """Let each worker compute its share and receive all keys and values, while the scheduler hands out tasks.

    A chunk reaches all workers at the speed of one copy, as those that have it send it on.
    """
    print(f"on paper, {length} tokens: workers, rows x keys of a chunk, seconds of each, efficiency")
    work = OPERATIONS * length**2
    moved = 2 * length * HEADS * DIM * 4
    for workers in (1, 10, 100, 300, 1000, 3000):
        choices = []
        for rows in (256, 512, 1024, 2048, 4096, 8192):
            for keys in (2048, 4096, 8192, 16384, 32768):
                chains = length // rows
                compute = work / operations / chains * math.ceil(chains / workers)
                move = moved / transfer * (workers > 1)
                schedule = chains * (length // keys) / tasks
                choices.append((max(compute + move, schedule), rows, keys, compute, move, schedule))
        fastest = min(choices)[0]
        near = [one for one in choices if one[0] <= 1.01 * fastest]
        seconds, rows, keys, compute, move, schedule = min(near, key=lambda one: one[-1])  # fewest tasks
        print(
            f"  {workers:5} {rows:6} x {keys:5}: compute {compute:8.1f}, move {move:5.1f}, schedule {schedule:6.1f}; "
            f"{work / operations / workers / seconds:4.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16384, 65536])
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    graphs()
    compare(given.lengths, given.chunk, given.causal, given.repeats)
    model(*rates())


if __name__ == "__main__":
    main()
