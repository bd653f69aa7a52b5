"""A model over a collection of documents, part by part, in a folder from which a run can go on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Literal, SupportsIndex

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count
from pyattn._util.halves import as_dtype
from pyattn._util.messages import short_repr
from pyattn.generation import pad_sequences
from pyattn.models import Bert, SentenceEncoder
from pyattn.nn import Module, TransformerEncoder, TransformerEncoderLayer

Array = npt.NDArray[Any]

RUN = "documents.json"
"""The file of a folder that describes its parts."""
RUN_ENTRIES = "count", "part_size", "documents", "model"
"""Its entries, in the order of its checksum."""
DRAFTS = "part-*.draft", f"{RUN}.*.draft"
"""Files that are not whole yet."""


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
        The index is out of range.
    ValueError
        A file is damaged, as its checksum tells whenever it is read.

    Examples
    --------
    >>> from pyattn.interop.dask import Documents  # doctest: +SKIP
    >>> vectors = Documents("vectors")  # doctest: +SKIP
    >>> vectors[17].shape  # doctest: +SKIP
    (384,)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()  # workers may have another current folder
        if not (self.folder / RUN).exists():
            raise FileNotFoundError(f"{self.folder} has no {RUN}; pass the folder of map_documents")
        run = _read(self.folder / RUN, *RUN_ENTRIES)
        self._count, self._part_size = run["count"], run["part_size"]
        self._parts = parts_of(self.folder, run)
        for part in self._parts:
            if not part.record.exists():
                raise FileNotFoundError(f"{part.record} is missing; call map_documents again, which resumes")

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self._count)

    def __getitem__(self, index: Any) -> Any:
        """Return the result of a document; of a slice, a list."""
        try:
            chosen = range(len(self))[index]
        except IndexError:
            raise IndexError(f"document {index} is out of range: {self.folder} has {len(self)} documents") from None
        found, read, held = [], None, []
        for n in chosen if isinstance(index, slice) else [chosen]:
            part = self._parts[n // self._part_size]
            if part is not read:
                read, held = part, part.results()
            found.append(held[n - part.start])
        return found if isinstance(index, slice) else found[0].copy()  # without the rest of its part

    def __iter__(self) -> Iterator[Array]:
        """Iterate over the results, a part at a time."""
        for part in self._parts:
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
        heads = [part.head() for part in self._parts]
        if any(part.lengths() is not None for part in self._parts) or len({shape[1:] for shape, _ in heads}) > 1:
            raise ValueError("results differ in shape, and make no array; iterate over them, or index them")
        if not self._parts:
            return da.zeros((0,))
        load = dask.delayed(_Part.array)
        return da.concatenate(
            [da.from_delayed(load(part), shape, dtype) for part, (shape, dtype) in zip(self._parts, heads, strict=True)]
        )


class _Part:
    """Some neighbouring documents, and the two files of their results: an array, and then the record of it."""

    def __init__(self, folder: Path, run: str, number: int, start: int, stop: int) -> None:
        self.file, self.record = folder / f"part-{number:06d}.npy", folder / f"part-{number:06d}.json"
        self.run, self.number, self.start, self.stop = run, number, start, stop

    def lengths(self) -> list[int] | None:
        """Return the rows of each document; None where each is an entry of the array."""
        lengths: list[int] | None = self._entries()["lengths"]
        return lengths

    def results(self) -> list[Array]:
        entries = self._entries()
        array, lengths = self._checked_array(entries), entries["lengths"]
        return list(array) if lengths is None else np.split(array, np.cumsum(lengths)[:-1])

    def array(self) -> Array:
        """Read the results of all documents; raise if a file of them is damaged."""
        return self._checked_array(self._entries())

    def head(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Read the shape and dtype of the array."""
        array = self._read_array(self._entries(), "r")
        return array.shape, array.dtype

    def _entries(self) -> dict[str, Any]:
        entries = _read(self.record, "run", "part", "sha256", "lengths", "dtype")
        if entries["run"] != self.run:
            raise ValueError(f"{self.record} belongs to another run; pass another folder, or delete this one")
        if entries["part"] != self.number:
            raise ValueError(
                f"{self.record} is that of part {entries['part']}; delete it, and call map_documents again"
            )
        return entries

    def _checked_array(self, entries: dict[str, Any]) -> Array:
        self._check(entries)
        return self._read_array(entries, None)

    def _check(self, entries: dict[str, Any]) -> None:
        if not self.file.exists() or _digest_of_file(self.file) != entries["sha256"]:
            raise self._damaged()

    def _read_array(self, entries: dict[str, Any], mode: Literal["r"] | None) -> Array:
        try:
            array: Array = np.load(self.file, mmap_mode=mode)
        except (EOFError, OSError, ValueError) as error:
            raise self._damaged() from error
        # .npy files do not know bfloat16
        return array.view(as_dtype("bfloat16")) if entries["dtype"] == "bfloat16" else array

    def _damaged(self) -> ValueError:
        what = "is damaged" if self.file.exists() else "is missing"
        return ValueError(f"{self.file} {what}; delete {self.record}, and call map_documents again")

    def is_done(self) -> bool:
        """Tell whether the part is there; raise if a file of it is damaged or another's."""
        if not self.record.exists():
            return False
        self._check(self._entries())
        return True

    def write(self, results: list[Array]) -> None:
        """Write the array and, once it is whole, the record: killed before, the part is computed again."""
        shapes = {one.shape for one in results}
        lengths = None if len(shapes) == 1 else [len(one) if one.ndim else 0 for one in results]
        if lengths is not None and (() in shapes or len({shape[1:] for shape in shapes}) > 1):
            raise ValueError(f"model returned results of shapes {sorted(shapes)[:3]}; only the first axis may differ")
        array = np.stack(results) if lengths is None else np.concatenate(results)
        with _replacing(self.file) as to:
            np.save(to, array, allow_pickle=False)
            to.flush()
            sha256 = _digest_of_file(Path(to.name))  # before another task can replace the file
        entries = {"run": self.run, "part": self.number, "sha256": sha256, "lengths": lengths}
        _write(self.record, {**entries, "dtype": array.dtype.name})


def _write(file: Path, entries: dict[str, Any]) -> None:
    """Write a JSON file of these entries and their checksum."""
    with _replacing(file) as to:
        to.write(json.dumps({"check": _digest_of_entries(entries), **entries}).encode())


def _read(file: Path, *names: str) -> dict[str, Any]:
    """Read entries of a JSON file that `_write` has written."""
    try:
        entries: dict[str, Any] = json.loads(file.read_text())
        if entries.pop("check") == _digest_of_entries(entries):
            return {name: entries[name] for name in names}
    except (AttributeError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{file} is damaged; delete it, and call map_documents again")


def _digest_of_entries(entries: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[Any]:
    """Open a file that takes its name when it is whole and on the disk."""
    draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}.draft")
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


def parts_of(folder: Path, run: dict[str, Any]) -> list[_Part]:
    """List the parts of a run."""
    count, size = run["count"], run["part_size"]
    name = _digest_of_entries(run)
    return [_Part(folder, name, n, start, min(start + size, count)) for n, start in enumerate(range(0, count, size))]


def map_documents(
    model: Module | SentenceEncoder | Callable[[list[Any]], Any],
    documents: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    batch_size: SupportsIndex = 32,
    part_size: SupportsIndex = 1024,
    num_threads: SupportsIndex = 1,
) -> Documents:
    """Compute a model's result for each document in parallel, and save them.

    The scheduler is dask's current one, such as that of a ``dask.distributed.Client``. To resume a run that was killed,
    call the function again with the same arguments. Each part is saved as a whole or not at all.

    Parameters
    ----------
    model : SentenceEncoder, Bert, TransformerEncoder, TransformerEncoderLayer or callable
        Documents are texts for a SentenceEncoder, lists of token ids for Bert, arrays (L, d_model) for the other two. A
        callable takes a list of documents and returns a result for each. Each worker gets the model once.
    documents : iterable
        The collection, which is read once and held in memory. For a larger one, pass names of files or numbers of rows
        as text, and a callable that reads them.
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
        The folder holds the results of other documents, or of another model or part_size; a file of it is damaged; the
        callable returns another number of results; or the model is in training mode.
    FileNotFoundError
        A worker does not see the folder.
    TypeError
        documents is not ordered, a document is of another type, or model is neither an encoder nor a callable.

    See Also
    --------
    pyattn.models.SentenceEncoder : Vectors of texts in one process.

    Notes
    -----
    Part n is ``part-00000n.npy``, then ``part-00000n.json`` with its checksum, which is checked before a run resumes. A
    callable is not compared with that of the run before. Of a model, its arrays and its attributes that are numbers or
    text are, and the code of an activation function.
    ``dask.diagnostics.ProgressBar`` and the dashboard of ``dask.distributed`` show how far a run is.
    ``map_documents(...).to_dask().to_zarr(...)`` fills a Zarr store.

    Examples
    --------
    >>> import pyattn  # doctest: +SKIP
    >>> from pyattn.interop.dask import map_documents  # doctest: +SKIP
    >>> encoder = pyattn.models.SentenceEncoder.load()  # doctest: +SKIP
    >>> texts = ["A cat sits on a mat.", "Why?"]  # doctest: +SKIP
    >>> vectors = map_documents(encoder, texts, "vectors")  # doctest: +SKIP
    >>> vectors.to_dask()  # doctest: +SKIP
    """
    if isinstance(documents, (str, bytes, Mapping, Set)) or not isinstance(documents, Iterable):
        raise TypeError(f"documents is of type {type(documents).__name__}, expected a sequence of documents")
    if not callable(model) and not isinstance(model, SentenceEncoder):
        raise TypeError(f"model is of type {type(model).__name__}, expected an encoder or a callable")
    if isinstance(model, Module) and any(part.training for part in model.modules()):
        raise ValueError("model is in training mode, in which dropout is random; call model.eval()")
    size, threads = as_count(batch_size, "batch_size", least=1), as_count(num_threads, "num_threads", least=1)
    items = list(documents)
    run: dict[str, Any] = {
        "count": len(items),
        "part_size": as_count(part_size, "part_size", least=1),
        "documents": _digest_of(items),
        "model": _digest_of_model(model),
    }
    path = Path(folder).absolute()
    path.mkdir(parents=True, exist_ok=True)
    _begin(path, run)
    parts = parts_of(path, run)
    shared = dask.delayed(model, pure=False, traverse=False)  # as a task, it is computed again if its worker is lost
    tasks = [
        dask.delayed(partial(_compute_part, items[part.start : part.stop], part, size, threads), pure=False)(shared)
        for part in parts
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # it holds the model and the documents
        dask.compute(*tasks)
    for pattern in DRAFTS:  # of runs that were killed
        for draft in path.glob(pattern):
            draft.unlink(missing_ok=True)
    return Documents(path)


def _begin(folder: Path, run: dict[str, Any]) -> None:
    """Write down what a run computes, or compare it with the run that began in this folder."""
    if not (folder / RUN).exists():
        _write(folder / RUN, run)
    begun = _read(folder / RUN, *run)
    differs = [name for name, value in run.items() if begun[name] != value]
    if differs:
        raise ValueError(
            f"{folder} holds a run whose {differs[0]} differs; pass the same arguments to resume it, or another folder"
        )


def _compute_part(documents: list[Any], part: _Part, batch_size: int, num_threads: int, model: Any) -> None:
    """Compute and write a part, unless it is there."""
    file = part.record.with_name(RUN)
    if not file.exists() or _digest_of_entries(_read(file, *RUN_ENTRIES)) != part.run:
        raise FileNotFoundError(f"a worker does not find this run's {file}; pass a folder that all workers see")
    if part.is_done():
        return
    order = sorted(range(len(documents)), key=lambda n: len(documents[n]))
    results: list[Any] = [None] * len(documents)
    with _THREADS.limited(num_threads):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            try:
                found = _results_of(model, [documents[n] for n in batch])
            except (TypeError, ValueError) as error:
                _name_document(error, model, {part.start + n: documents[n] for n in sorted(batch)})
                raise
            for n, result in zip(batch, found, strict=True):
                results[n] = result
    part.write(results)


def _name_document(error: Exception, model: Any, documents: dict[int, Any]) -> None:
    """Raise an error that names the document that pyattn's model refuses; none of a callable's is known."""
    if not isinstance(model, Module | SentenceEncoder):
        return
    kind = TypeError if isinstance(error, TypeError) else ValueError
    for n, document in documents.items():
        if refusal := _refusal_of(model, document):
            raise kind(f"documents[{n}]: {refusal}") from error


def _refusal_of(model: Any, document: Any) -> str | None:
    try:
        _results_of(model, [document])
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _results_of(model: Any, batch: list[Any]) -> list[Array]:
    """Compute the results of documents of similar lengths."""
    if isinstance(model, SentenceEncoder):
        return list(model.encode(batch, batch_size=len(batch)))
    if isinstance(model, Bert):
        ids, lengths = pad_sequences(batch, padding_value=model.padding_idx or 0)
        ids = ids if ids.shape[1] else np.zeros((len(batch), 1), ids.dtype)  # Bert takes one token or more
        attended = np.arange(ids.shape[1]) < lengths[:, np.newaxis]
        return [rows[:n] for rows, n in zip(model(ids, attended).last_hidden_state, lengths, strict=True)]
    if isinstance(model, TransformerEncoder | TransformerEncoderLayer):
        return _encode(model, [np.asarray(one) for one in batch])
    returned = model(batch)
    if isinstance(returned, Mapping) or hasattr(returned, "_fields") or not isinstance(returned, Iterable):
        raise TypeError(f"model returned a {type(returned).__name__}, expected a result for each document")
    results = [np.array(one) for one in returned]  # copies: a model may use its arrays again
    if len(results) != len(batch):
        raise ValueError(f"model returned {len(results)} results for {len(batch)} documents, expected one for each")
    for result in results:
        is_foreign = result.dtype.isbuiltin == 2 and result.dtype.name != "bfloat16"  # which .npy files do not know
        if result.dtype.hasobject or is_foreign:
            raise TypeError(f"model returned {short_repr(result)} for a document, expected numbers")
    return results


def _encode(model: TransformerEncoder | TransformerEncoderLayer, batch: list[Array]) -> list[Array]:
    """Compute the rows of arrays (L, d_model), padded to the longest."""
    widths, dtypes = {one.shape[1:] for one in batch}, {one.dtype for one in batch}
    if len(dtypes) > 1:  # each as it would be alone
        return [_encode(model, [one])[0] for one in batch]
    if len(widths) > 1 or batch[0].ndim != 2:
        raise ValueError(f"documents have shapes {sorted({one.shape for one in batch})[:3]}, expected (L, d_model)")
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


def _digest_of(documents: list[Any]) -> str:
    """Compute a checksum of texts, token ids or arrays."""
    digest = hashlib.sha256()
    for n, document in enumerate(documents):
        if isinstance(document, str):
            kind, data = "text", document.encode("utf-8", "surrogatepass")
        else:
            array = np.ascontiguousarray(_core.as_array(document, f"documents[{n}]"))
            if array.dtype.hasobject or np.ndim(document) == 0:
                raise TypeError(f"documents[{n}] is {short_repr(document)}, expected text, token ids or an array")
            kind, data = f"{array.dtype.str} {array.shape}", array.tobytes()
        digest.update(f"{kind} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _digest_of_model(model: Any) -> str | None:
    """Compute a checksum of a model's arguments and parameters; a callable has none."""
    if isinstance(model, SentenceEncoder):
        own = f"{model.pooling} {model.normalize} {model.max_length} {model.tokenizer.to_str()}"
        return hashlib.sha256(f"{own} {_digest_of_model(model.model)}".encode()).hexdigest()
    if not isinstance(model, Module):
        return None
    digest = hashlib.sha256(re.sub(" at 0x[0-9a-fA-F]+", "", repr(model)).encode())  # of functions in this process
    for part in model.modules():
        for name, value in vars(part).items():
            if inspect.isfunction(value):  # an activation
                digest.update(_written(value.__code__).encode())
            elif isinstance(value, bool | int | float | str):
                digest.update(f"{name} {value!r} ".encode())
    for name, array in model.state_dict().items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _written(code: CodeType) -> str:
    """Write down what a Python function computes, but for the values that it takes from elsewhere."""
    constants = [_written(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


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
