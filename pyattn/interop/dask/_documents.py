"""A model over a collection of documents, part by part, in a folder from which a run can go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import cloudpickle
import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count
from pyattn._util.messages import short_repr
from pyattn.generation import pad_sequences
from pyattn.models import Bert, SentenceEncoder
from pyattn.nn import Module, TransformerEncoder, TransformerEncoderLayer

Array = npt.NDArray[Any]

RUN = "documents.json"
"""The file of a folder that says what its parts are."""
MODEL = "model.pickle"
"""The file from which a cluster's workers get the model."""


class Documents:
    """The results of `map_documents`: one array for each document, read from a folder.

    Parameters
    ----------
    folder : str or path
        The folder of a finished run.

    Raises
    ------
    FileNotFoundError
        The folder is not that of a run, or a part is missing: the run was not finished.
    IndexError
        There is no such document.

    Examples
    --------
    >>> from pyattn.interop.dask import Documents  # doctest: +SKIP
    >>> vectors = Documents("vectors")  # doctest: +SKIP
    >>> vectors[17].shape  # doctest: +SKIP
    (384,)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / RUN).exists():
            raise FileNotFoundError(f"{self.folder} has no {RUN}; pass the folder of map_documents")
        run = json.loads((self.folder / RUN).read_text())
        self._count, self._part_size = run["count"], run["part_size"]
        for part in self._parts():
            if not part.record.exists():
                raise FileNotFoundError(f"{part.record} is missing; run map_documents again, which goes on from here")

    def _parts(self) -> list[_Part]:
        return parts_of(self.folder, self._count, self._part_size)

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self._count)

    def __getitem__(self, index: Any) -> Any:
        """Return the result of a document; of a slice, a list."""
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        n = range(len(self))[index]
        part = self._parts()[n // self._part_size]
        return part.results()[n - part.start]

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the results, a part at a time."""
        for part in self._parts():
            yield from part.results()

    def to_dask(self) -> da.Array:
        """Make one array of results that have one shape, a chunk for each part.

        Returns
        -------
        dask.array.Array, (documents, ...)

        Raises
        ------
        ValueError
            Results differ in shape.
        """
        parts = self._parts()
        heads = [np.load(part.file, mmap_mode="r") for part in parts]
        if any(part.lengths() is not None for part in parts) or len({head.shape[1:] for head in heads}) > 1:
            raise ValueError("results differ in shape, and make no array; iterate over them, or index them")
        if not parts:
            return da.zeros((0,))
        load = dask.delayed(np.load)
        return da.concatenate(
            [
                da.from_delayed(load(os.fspath(part.file)), head.shape, head.dtype)
                for part, head in zip(parts, heads, strict=True)
            ]
        )


class _Part:
    """Some neighbouring documents, and the two files of their results: an array, and then the record of it."""

    def __init__(self, folder: Path, number: int, start: int, stop: int) -> None:
        self.file, self.record = folder / f"part-{number:06d}.npy", folder / f"part-{number:06d}.json"
        self.start, self.stop = start, stop

    def lengths(self) -> list[int] | None:
        """Return the rows of each document; None where each is an entry of the array."""
        lengths: list[int] | None = json.loads(self.record.read_text())["lengths"]
        return lengths

    def results(self) -> list[Array]:
        array, lengths = np.load(self.file), self.lengths()
        return list(array) if lengths is None else np.split(array, np.cumsum(lengths)[:-1])

    def is_done(self) -> bool:
        """Tell whether the part is there; raise if a file of it is damaged."""
        if not self.record.exists():
            return False
        try:
            record = json.loads(self.record.read_text())
            digest = record["sha256"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.record} is damaged; delete it, and run map_documents again") from None
        if not self.file.exists() or _digest_of_file(self.file) != digest:
            what = "is damaged" if self.file.exists() else "is missing"
            raise ValueError(f"{self.file} {what}; delete {self.record}, and run map_documents again")
        return True

    def write(self, results: list[Array]) -> None:
        """Write the array and, once it is whole, the record: killed before, the part is computed again."""
        shapes = {one.shape for one in results}
        lengths = None if len(shapes) == 1 else [len(one) for one in results]
        array = np.stack(results) if lengths is None else np.concatenate(results)
        with _replacing(self.file) as to:
            np.save(to, array, allow_pickle=False)
        with _replacing(self.record) as to:
            to.write(json.dumps({"sha256": _digest_of_file(self.file), "lengths": lengths}).encode())


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Any]:
    """Open a file that takes its name when it is whole and on the disk."""
    draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(draft, "wb") as to:
            yield to
            to.flush()
            os.fsync(to.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _digest_of_file(file: Path) -> str:
    with open(file, "rb") as data:
        digest = hashlib.sha256()
        while block := data.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def parts_of(folder: Path, count: int, part_size: int) -> list[_Part]:
    """List the parts of a run."""
    starts = range(0, count, part_size)
    return [_Part(folder, n, start, min(start + part_size, count)) for n, start in enumerate(starts)]


def map_documents(
    model: Module | SentenceEncoder | Callable[[list[Any]], Any],
    documents: Sequence[Any],
    folder: str | os.PathLike[str],
    *,
    batch_size: SupportsIndex = 32,
    part_size: SupportsIndex = 1024,
    num_threads: SupportsIndex = 1,
) -> Documents:
    """Compute a model's result for each document in parallel, and save them.

    The scheduler is dask's current one: ``dask.distributed.Client`` makes it a cluster. A run that was killed goes on
    where it was: call the function again with the same arguments. Each part is saved as a whole or not at all.

    Parameters
    ----------
    model : SentenceEncoder, Bert, TransformerEncoder, TransformerEncoderLayer or callable
        What a document is depends on it: text, a list of token ids, or an array (L, d_model). A callable takes a list
        of documents and returns a result for each. Each worker gets the model once.
    documents : sequence
        The collection.
    folder : str or path
        Where results go, of one run at a time; it is made if it does not exist. All workers must see it by this name.
    batch_size : int
        Number of documents of similar lengths to compute together; does not change results of pyattn's models.
        Default: 32.
    part_size : int
        Number of neighbouring documents in a part, which is one task and one file. Default: 1024.
    num_threads : int
        Threads of pyattn in a worker's process. Default: 1, as dask's workers run a task in each of their threads.

    Returns
    -------
    Documents
        The results in the order of `documents`: a vector for each text, (L, d_model) for others, or what the callable
        returns.

    Raises
    ------
    ValueError
        The folder holds the results of other documents, or of another model or part_size; a file of it is damaged; or
        the callable returns another number of results.
    TypeError
        documents is not a sequence, or is a text.

    See Also
    --------
    pyattn.models.SentenceEncoder : Vectors of texts in one process.

    Notes
    -----
    Part n is ``part-00000n.npy``, then ``part-00000n.json`` with its checksum, which is checked before a run goes on.
    On a cluster, ``model.pickle`` is where workers read the model. ``dask.diagnostics.ProgressBar`` and the dashboard
    of ``dask.distributed`` show how far a run is. ``map_documents(...).to_dask().to_zarr(...)`` fills a Zarr store.

    Examples
    --------
    >>> from pyattn.interop.dask import map_documents  # doctest: +SKIP
    >>> encoder = pyattn.models.SentenceEncoder.load()  # doctest: +SKIP
    >>> vectors = map_documents(encoder, texts, "vectors")  # doctest: +SKIP
    >>> vectors.to_dask()  # doctest: +SKIP
    """
    if isinstance(documents, (str, bytes)) or not (hasattr(documents, "__len__") and hasattr(documents, "__getitem__")):
        raise TypeError(f"documents is of type {type(documents).__name__}, expected a sequence of documents")
    size = as_count(batch_size, "batch_size", least=1)
    threads = as_count(num_threads, "num_threads", least=1)
    run: dict[str, Any] = {
        "count": len(documents),
        "part_size": as_count(part_size, "part_size", least=1),
        "documents": _digest_of(documents),
        "model": _digest_of_model(model),
    }
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    _begin(path, run)
    shared = _share(model, path)
    task = dask.delayed(_compute_part, pure=False)
    dask.compute(
        *(
            task(shared, [documents[n] for n in range(part.start, part.stop)], part, size, threads)
            for part in parts_of(path, run["count"], run["part_size"])
        )
    )
    for draft in path.glob("*.tmp"):  # of runs that were killed
        draft.unlink(missing_ok=True)
    return Documents(path)


def _begin(folder: Path, run: dict[str, Any]) -> None:
    """Write down what a run computes, or compare it with the run that began in this folder."""
    if not (folder / RUN).exists():
        with _replacing(folder / RUN) as to:
            to.write(json.dumps(run).encode())
        return
    try:
        begun = json.loads((folder / RUN).read_text())
        differs = [name for name, value in run.items() if begun[name] != value]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / RUN} is damaged; delete the folder {folder}, or pass another") from None
    if differs:
        raise ValueError(
            f"{folder} holds a run with another {differs[0]}; pass the same arguments to go on, or another folder"
        )


def _share(model: Any, folder: Path) -> Any:
    """Make the task whose result is a model: on a cluster, one worker reads it from a file, and others copy it once."""
    try:
        from distributed import get_client

        get_client()
    except (ImportError, ValueError):  # there is no cluster
        return dask.delayed(model, pure=False, traverse=False)
    with _replacing(folder / MODEL) as to:
        cloudpickle.dump(model, to)
    return dask.delayed(_load, pure=False)(folder / MODEL)


def _load(file: Path) -> Any:
    """Read a model, which can be done again if the worker that has it is lost."""
    with open(file, "rb") as source:
        return cloudpickle.load(source)


def _compute_part(model: Any, documents: Sequence[Any], part: _Part, batch_size: int, num_threads: int) -> None:
    """Compute and write a part, unless it is there."""
    if part.is_done():
        return
    order = sorted(range(len(documents)), key=lambda n: len(documents[n]))
    results: list[Any] = [None] * len(documents)
    with _THREADS.limited(num_threads):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            for n, result in zip(batch, _results_of(model, [documents[n] for n in batch]), strict=True):
                results[n] = result
    part.write(results)


def _results_of(model: Any, batch: list[Any]) -> list[Array]:
    """Compute the results of documents of similar lengths."""
    if isinstance(model, SentenceEncoder):
        return list(model.encode(batch, batch_size=len(batch)))
    if isinstance(model, Bert):
        ids, lengths = pad_sequences(batch, padding_value=model.padding_idx or 0)
        attended = np.arange(ids.shape[1]) < lengths[:, np.newaxis]
        return [rows[:n] for rows, n in zip(model(ids, attended).last_hidden_state, lengths, strict=True)]
    if isinstance(model, TransformerEncoder | TransformerEncoderLayer):
        return _encode(model, [np.asarray(one) for one in batch])
    results = [np.asarray(one) for one in model(batch)]
    if len(results) != len(batch):
        raise ValueError(f"model returned {len(results)} results for {len(batch)} documents, expected one for each")
    return results


def _encode(model: TransformerEncoder | TransformerEncoderLayer, batch: list[Array]) -> list[Array]:
    """Compute the rows of arrays (L, d_model), padded to the longest."""
    lengths = np.array([len(one) for one in batch])
    x = np.zeros((len(batch), lengths.max(), batch[0].shape[-1]), batch[0].dtype)
    for row, one in zip(x, batch, strict=True):
        row[: len(one)] = one
    padding = np.arange(x.shape[1]) >= lengths[:, np.newaxis]
    if model.batch_first:
        y = model(x, src_key_padding_mask=padding)
    else:
        y = model(x.swapaxes(0, 1), src_key_padding_mask=padding).swapaxes(0, 1)
    return [rows[:n] for rows, n in zip(y, lengths, strict=True)]


def _digest_of(documents: Sequence[Any]) -> str:
    """Compute a checksum of texts, token ids or arrays."""
    digest = hashlib.sha256()
    for document in documents:
        if isinstance(document, str):
            kind, data = "text", document.encode("utf-8", "surrogatepass")
        else:
            array = np.ascontiguousarray(document)
            if array.dtype.hasobject:
                raise TypeError(f"a document is {short_repr(document)}, expected text, token ids or an array")
            kind, data = f"{array.dtype.str} {array.shape}", array.tobytes()
        digest.update(f"{kind} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _digest_of_model(model: Any) -> str | None:
    """Compute a checksum of a model's parameters; a callable has none."""
    module = model.model if isinstance(model, SentenceEncoder) else model
    if not isinstance(module, Module):
        return None
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, array in module.state_dict().items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class _Threads:
    """pyattn's number of threads in this process, which tasks set while any of them runs."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, 0

    @contextlib.contextmanager
    def limited(self, num_threads: int) -> Iterator[None]:
        with self.lock:
            if self.users == 0:
                self.before = _core.get_num_threads()
            self.users += 1
            _core.set_num_threads(num_threads)
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    _core.set_num_threads(self.before)


_THREADS = _Threads()
