"""Rows as requests: a bounded number at the same time, retries while the server is unavailable, and, when a request
fails, a search for the rows that are the reason.

A failed request is halved until single rows remain. A single row may fail because the scheduler put it into a batch
with another bad row; it is sent once more while no other request is outstanding, and only then it has failed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np

from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument, unavailable
from naiad.tools.predict.job_signature import RowSignature, changed_tensor
from naiad.tools.predict.model_host import ModelEndpoint
from naiad.tools.predict.rows.chunk import Chunk, ChunkResult, Group
from naiad.tools.predict.rows.declared_output import as_declared

if TYPE_CHECKING:
    from naiad.core.tensor import Array

_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 5.0
"""Before a retry; doubled each time."""
FATAL = (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.PERMISSION_DENIED, ErrorCode.CANCELLED)
"""Failures of the server, not of a row."""


class ChunkRequests:
    """Executes the rows of chunks."""

    def __init__(self, endpoint: ModelEndpoint, signature: RowSignature, timeout_s: float) -> None:
        self._endpoint = endpoint
        self.signature = signature
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(signature.concurrency)
        self._gate = _Gate()

    async def start(self, chunk: Chunk, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Start the requests of a chunk, each when one before has ended; return their tasks."""
        started: list[asyncio.Task[None]] = []
        size = self.signature.max_rows
        for group in chunk.groups:
            for begin in range(0, len(group.offsets), size):
                await self._free.acquire()
                started.append(tasks.create_task(self._execute(chunk, _part(group, begin, begin + size))))
        return started

    async def _execute(self, chunk: Chunk, group: Group) -> None:
        try:
            await self._resolve(chunk, group)
        finally:
            self._free.release()

    async def _resolve(self, chunk: Chunk, group: Group) -> None:
        """Execute rows, and those that fail again in halves."""
        try:
            async with self._gate.shared():
                chunk.results.append(await self._infer(group))
            return
        except InferError as error:
            await self._check_fatal(error)
            reason = error.message.strip()
        count = len(group.offsets)
        if count > 1:
            await self._resolve(chunk, _part(group, 0, count // 2))
            await self._resolve(chunk, _part(group, count // 2, count))
            return
        if self.signature.may_share_batches:
            try:
                async with self._gate.exclusive():
                    chunk.results.append(await self._infer(group))
                return
            except InferError as error:
                await self._check_fatal(error)
                reason = error.message.strip()
        await self._check_unchanged()
        chunk.failures[group.offsets[0]] = reason or "the model returned an error without a text"

    async def _check_fatal(self, error: InferError) -> None:
        """Raise an error that is not about rows."""
        if error.code in FATAL:
            raise error
        if error.code is ErrorCode.NOT_FOUND:
            await self._endpoint.metadata()  # raises if the model is gone

    async def _check_unchanged(self) -> None:
        """Raise InferError(INVALID_ARG) if the model has other tensors now: its reload is not the fault of a row."""
        try:
            metadata = await self._endpoint.metadata()
        except InferError:
            return  # the next request shows whether the server is away
        if change := changed_tensor(self.signature, metadata):
            raise invalid_argument(
                f"model '{self.signature.model}' was reloaded with other tensors: {change}; a new start reads them"
            )

    async def _infer(self, group: Group) -> ChunkResult:
        loop = asyncio.get_running_loop()
        deadline_s, delay_s = loop.time() + self._timeout_s, _FIRST_DELAY_S
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    return await self._infer_once(group)
            except TimeoutError:
                raise InferError(
                    ErrorCode.DEADLINE_EXCEEDED,
                    f"no response within {self._timeout_s:g} s; the finished rows are kept, and the same command "
                    "continues; a longer --timeout waits longer",
                ) from None
            except InferError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                if loop.time() + delay_s >= deadline_s:
                    raise unavailable(
                        f"{error.message.strip()}; retried for {self._timeout_s:g} s; the finished rows are kept, "
                        "and the same command continues"
                    ) from None
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    async def _infer_once(self, group: Group) -> ChunkResult:
        signature, count = self.signature, len(group.offsets)
        inputs = {
            name: array if signature.inputs[name].is_batched else array[0] for name, array in group.arrays.items()
        }
        result = await self._endpoint.infer(inputs, signature.outputs)
        outputs: dict[str, Array] = {}
        for name, tensor in signature.outputs.items():
            if name not in result:
                raise internal(f"the response has no output '{name}'; it has {', '.join(result) or 'none'}")
            array = result[name] if tensor.is_batched else result[name][np.newaxis]
            if array.ndim == 0 or len(array) != count:
                raise internal(
                    f"output '{name}' has shape {list(array.shape)} for {count} rows; expected [{count}, ...]"
                )
            outputs[name] = as_declared(tensor, array)
        return ChunkResult(group.offsets, outputs)


def _part(group: Group, begin: int, end: int) -> Group:
    arrays: Mapping[str, Array] = {name: array[begin:end] for name, array in group.arrays.items()}
    return Group(group.offsets[begin:end], arrays)


class _Gate:
    """Many requests share it, or one has it alone. A waiting one keeps new ones out."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._sharing = 0
        self._waiting = 0
        self._is_taken = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        if self._waiting or self._is_taken:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._waiting and not self._is_taken)
        self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            if self._waiting and not self._sharing:
                await self._notify()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._sharing and not self._is_taken)
                self._is_taken = True
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._is_taken = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
