"""Attention of 65,536 tokens on four processes, in a minute: python examples/attention_on_a_cluster.py.

It needs dask, and bokeh for the dashboard: pip install 'dask[array]' distributed bokeh.
"""

import time

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster

import pyattn
from pyattn.interop.dask import attention

TOKENS, CHUNK, HEADS, DIM = 65536, 4096, 8, 64


def read(seed, block_info=None):
    """Stand for reading one chunk from a file, where it is needed."""
    where = block_info[None]
    rng = np.random.default_rng([seed, *where["chunk-location"]])
    return rng.standard_normal(where["chunk-shape"], np.float32)


def main():
    chunks = ((1,), (HEADS,), (CHUNK,) * (TOKENS // CHUNK), (DIM,))
    query, key, value = (da.map_blocks(read, seed, chunks=chunks, dtype=np.float32) for seed in range(3))
    output = attention(query, key, value, is_causal=True)

    with LocalCluster(n_workers=4, threads_per_worker=1) as cluster, Client(cluster) as client:
        print("dashboard:", client.dashboard_link)
        start = time.perf_counter()
        norms, last = dask.compute(da.sqrt((output**2).sum(axis=-1)), output[:, :, -4:])
        print(f"{time.perf_counter() - start:.0f} s; the norm of token 0 in head 0 is {norms[0, 0, 0]:.3f}")

    whole = [x.compute() for x in (query[:, :, -4:], key, value)]
    alone = pyattn.attention(*whole, is_causal=True, align="lower_right")
    print("the last four tokens have the bits of one call:", np.array_equal(last, alone))


if __name__ == "__main__":
    main()
