"""A model as a function of columns: for `map_batches` of Ray Data, pandas functions of Spark, and loops."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from naiad.client.loop_thread import LoopThread
from naiad.core.datatype import STRING_KINDS, DataType
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.tensor import Array
from naiad.tools.predict.job_signature import RowSignature, read_signature
from naiad.tools.predict.model_host import open_endpoint
from naiad.tools.predict.prediction_job import DEFAULT_TIMEOUT_S, PredictJob
from naiad.tools.predict.row_flow import first_error
from naiad.tools.predict.row_requests import ChunkRequests
from naiad.tools.predict.rows.row_outputs import OutputColumn, to_block
from naiad.tools.predict.rows.row_tensors import to_chunk
from naiad.tools.predict.sinks.sink import is_single
from naiad.tools.predict.sinks.texts import plain
from naiad.tools.predict.sources.row_source import element_count, plan_columns
from naiad.tools.values.tensor import ModelTensor

if TYPE_CHECKING:
    from naiad.tools.predict.rows.chunk import Chunk, Column

_BATCH = Path("batch")
"""Stands for the file in messages."""
_CLOSE_S = 15.0


class ModelMapper:
    """Adds the outputs of a model to columns: `ModelMapper("models", "ratio")({"PAIR": array})`.

    The columns are as in a file of `naiad predict`: by the names of the inputs or of the model's features, with
    the same conversions. The model is loaded by the first call, in its process; so an object that has not been
    called can be pickled. Calls may come from several threads.
    """

    _lock: threading.Lock
    _requests: ChunkRequests | None
    _thread: LoopThread
    _stack: contextlib.AsyncExitStack

    def __init__(
        self,
        target: str,
        model: str,
        *,
        version: str = "",
        columns: Mapping[str, str] | None = None,
        outputs: Sequence[str] = (),
        keep: bool = True,
        error_column: str = "",
        allow_pickle: bool = False,
    ) -> None:
        """`target` is a model repository, or the address of a server; `columns` maps names of columns to inputs.

        `outputs` are those to add, all by default. With `keep` the result has the columns of the batch, too. A row
        that fails raises InferError; with an `error_column` the reason is there, "" in other rows, and the outputs
        of the row are zeros, NaN for floating-point numbers, or empty strings. `allow_pickle` loads pickles of the
        repository, which execute code.
        """
        self._job = PredictJob(
            target,
            model,
            [str(_BATCH)],
            f"{_BATCH}.jsonl",
            version=version,
            columns=dict(columns or {}),
            outputs=tuple(outputs),
            allow_pickle=allow_pickle,
        )
        self._job.check()
        self._keep = keep
        self._error_column = error_column
        self._reset()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return columns for the rows of `batch`: arrays with a row along the first axis, or a DataFrame.

        An output with one element in each row has one dimension; strings are `str`. Raises InferError.
        """
        columns = {str(name): np.asarray(column) for name, column in batch.items()}
        counts = {len(column) for column in columns.values()}
        if len(counts) != 1:
            raise invalid_argument(f"expected columns of one length, got {sorted(counts) or 'no column'}")
        (count,) = counts
        signature = self._open()
        chunk = self._chunk(signature, columns, count)
        self._thread.run(self._execute(chunk))
        found = dict(columns) if self._keep else {}
        return found | self._results(signature, chunk)

    def close(self) -> None:
        """Unload the model. A later call loads it again."""
        with self._lock:
            if self._requests is not None:
                self._thread.run(self._stack.aclose())
                self._thread.close(_CLOSE_S)
                self._requests = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_keep": self._keep, "_error_column": self._error_column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._requests = None

    def _open(self) -> RowSignature:
        """Load the model, once."""
        with self._lock:
            if self._requests is None:
                self._thread = LoopThread("naiad mapper")
                try:
                    self._requests = self._thread.run(self._load())
                except BaseException:
                    self._thread.close(_CLOSE_S)
                    raise
            return self._requests.signature

    async def _load(self) -> ChunkRequests:
        async with contextlib.AsyncExitStack() as stack:
            endpoint = await stack.enter_async_context(open_endpoint(self._job, follows_versions=True))
            signature = read_signature(self._job, await endpoint.metadata(), await endpoint.config())
            if self._error_column in signature.outputs:
                name = excerpt(self._error_column)
                raise invalid_argument(f"error_column is '{name}', an output of the model; choose another name")
            self._stack = stack.pop_all()
        return ChunkRequests(endpoint, signature, DEFAULT_TIMEOUT_S)

    def _chunk(self, signature: RowSignature, columns: Mapping[str, Array], count: int) -> "Chunk":
        plan = plan_columns(self._job, signature, _BATCH, list(columns))
        values: dict[str, Column] = {}
        for name, names in plan.inputs.items():
            tensor = signature.inputs[name] if len(names) == 1 else None
            values.update({each: _column(columns[each], tensor) for each in names})
        return to_chunk(plan.rows(str(_BATCH), 0, count, values), signature.inputs, signature.pictures)

    async def _execute(self, chunk: "Chunk") -> None:
        assert self._requests is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._requests.start(chunk, tasks)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    def _results(self, signature: RowSignature, chunk: "Chunk") -> dict[str, Any]:
        block = to_block(chunk, 0, list(signature.outputs))
        found: dict[str, Any] = {}
        for name, tensor in signature.outputs.items():
            found[name] = _output(block.columns[name], tensor, chunk.count, chunk.failures)
        if not self._error_column:
            for offset in sorted(chunk.failures):
                raise invalid_argument(f"row {offset} of the batch: {chunk.failures[offset]}")
            return found
        reasons = [excerpt(chunk.failures.get(offset, "")) for offset in range(chunk.count)]
        return found | {self._error_column: np.array(reasons, object)}


def _column(column: Array, tensor: ModelTensor | None) -> "Column":
    """Return a column as a source of files has it; `tensor` is its input, if it has all elements of it."""
    if column.dtype == object or column.dtype.kind in STRING_KINDS:
        return [each.tolist() if isinstance(each, np.ndarray) else each for each in column.tolist()]
    if tensor is not None and column.ndim == 1 and tensor.dims and element_count(tensor) == 1:
        return column.reshape(len(column), *tensor.dims)
    return column


def _output(column: OutputColumn, tensor: ModelTensor, count: int, failures: dict[int, str]) -> Array:
    """Return an output with a row along the first axis; rows of other shapes than the first one make objects."""
    if column.whole is not None:
        array = plain(column.whole).copy() if failures else plain(column.whole)
    elif all(row is None for row in column.rows):
        dims = tuple(max(0, size) for size in tensor.dims)
        kind: Any = np.float32 if tensor.datatype is DataType.BF16 else tensor.datatype.numpy
        array = np.full((count, *dims), b"" if tensor.datatype is DataType.BYTES else 0, kind)
    else:
        rows = np.empty(count, object)
        for offset, row in enumerate(column.rows):
            rows[offset] = None if row is None else plain(row)
        return rows
    if tensor.datatype is DataType.BYTES:
        array = _decoded(array, tensor.name, failures)
    if failures:
        array[list(failures)] = "" if array.dtype == object else np.nan if array.dtype.kind == "f" else 0
    return array.reshape(count) if is_single(tensor) else array


def _decoded(array: Array, name: str, failures: dict[int, str]) -> Array:
    found = np.empty(array.size, object)
    elements: list[bytes] = array.reshape(-1).tolist()
    for place, element in enumerate(elements):
        try:
            found[place] = element.decode()
        except UnicodeDecodeError:
            failures.setdefault(place * len(array) // array.size, f"output '{name}' is no UTF-8")
            found[place] = ""
    return found.reshape(array.shape)
