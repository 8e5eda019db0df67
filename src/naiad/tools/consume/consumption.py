"""The flow of messages: read, execute, answer, acknowledge, each at the same time as the other steps.

A message is acknowledged after its answer, or its dead letter, is written. So a consumer that is killed at any place
loses none: what it had not acknowledged is delivered again, and answered twice if only the acknowledgement was
missing. The id in the answer shows that.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from naiad.core.errors import invalid_argument
from naiad.tools.consume.consume_job import ConsumeJob, ConsumeProgress, ConsumeSummary
from naiad.tools.consume.flow_bounds import FlowBounds
from naiad.tools.consume.message_rows import Fields, MessageRows, dead_letter
from naiad.tools.consume.queues.brokers import new_sink, new_source
from naiad.tools.consume.queues.message_queue import QueueAwayError, QueueMessage
from naiad.tools.consume.queues.queue_address import QueueAddress, parse_queue_address
from naiad.tools.predict.job_signature import RowSignature, read_signature
from naiad.tools.predict.model_host import ModelEndpoint, open_endpoint
from naiad.tools.predict.row_flow import first_error, in_thread
from naiad.tools.predict.row_requests import ChunkRequests
from naiad.tools.predict.rows.chunk import Chunk

_log = logging.getLogger(__name__)

_WAIT_S = 0.5
"""A read waits this long for messages; so long an ordered end may take longer."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 5.0
"""Before a call of a broker that is away is repeated; doubled each time."""
_RETRY_S = 1.0
"""Before the second delivery of a message that the model refused; doubled each time, up to _MAX_RETRY_S."""
_MAX_RETRY_S = 60.0
_STOP_S = 25.0
"""After the order to end, for the messages in flight."""
_PROGRESS_S = 0.2
_RATE_S = 5.0
_T = TypeVar("_T")

OnProgress: TypeAlias = Callable[[ConsumeProgress], object]
_Batch: TypeAlias = tuple[Sequence[QueueMessage], Chunk, set[int], list[asyncio.Task[None]]]
"""Messages, their rows, the offsets of those that need no other delivery, and the requests."""


class Consumption:
    """One run of a consumer, on one event loop."""

    def __init__(self, job: ConsumeJob, on_progress: OnProgress) -> None:
        """Raises InferError for a value or an address that no queue can have."""
        job.check()
        self._job = job
        self._on_progress = on_progress
        self._addresses = read, written, dead = _addresses(job)
        self._source = new_source(read, job.group, job.consumer, job.claim_after_s)
        self._sink = new_sink(written, job.max_length)
        self._dead = new_sink(dead)
        self._answered = self._dead_count = self._redelivered = 0
        self._open: set[str] = set()
        """Ids of the messages that are read and not acknowledged."""
        self._refused: set[str] = set()
        """Of those, the ones that wait for another delivery."""
        self._trouble = ""
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._begin_s = time.monotonic()

    def stop(self) -> None:
        """Read no more messages; `run` returns when those in flight are acknowledged, or after a limit."""
        self._stopping.set()
        self._freed.set()

    async def run(self) -> ConsumeSummary:
        """Return after `stop`, or when the queue is empty if the job ends then. Raises InferError.

        QueueAwayError: a broker did not answer at the start; later the run waits for it.
        """
        self._on_progress(ConsumeProgress(is_loading=True))
        queues = (self._source, self._sink, self._dead)
        try:
            for queue in queues:
                await queue.open()
            _check_differ([await queue.place() for queue in queues], self._addresses)
            async with open_endpoint(self._job.rows, follows_versions=True) as endpoint:
                signature = read_signature(self._job.rows, await endpoint.metadata(), await endpoint.config())
                await self._source.join()
                await self._move(endpoint, signature)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            for queue in queues:
                await queue.close()
        seconds = time.monotonic() - self._begin_s
        return ConsumeSummary(self._answered, self._dead_count, self._redelivered, seconds, len(self._open))

    async def _move(self, endpoint: ModelEndpoint, signature: RowSignature) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(each) for each in (self._keep(), self._show())]
            flow = tasks.create_task(self._flow(endpoint, signature))
            background.append(tasks.create_task(self._limit_stop(flow)))
            await asyncio.wait([flow])
            for task in background:
                task.cancel()
        self._on_progress(self._progress(0.0))

    async def _limit_stop(self, flow: asyncio.Task[None]) -> None:
        """End the flow when it takes too long after the order to end."""
        await self._stopping.wait()
        await asyncio.sleep(_STOP_S)
        flow.cancel()

    async def _flow(self, endpoint: ModelEndpoint, signature: RowSignature) -> None:
        rows = MessageRows(self._job.rows, signature)
        requests = ChunkRequests(endpoint, signature, self._job.rows.timeout_s)
        bounds = FlowBounds(self._job.max_in_flight, signature.max_rows * signature.concurrency)
        batches: asyncio.Queue[_Batch | None] = asyncio.Queue()  # bounded by the messages in flight
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write(rows, batches))
            await self._read(requests, rows, bounds, batches, tasks)
            await batches.put(None)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read(
        self,
        requests: ChunkRequests,
        rows: MessageRows,
        bounds: FlowBounds,
        batches: "asyncio.Queue[_Batch | None]",
        tasks: asyncio.TaskGroup,
    ) -> None:
        while not self._stopping.is_set():
            size = bounds.size
            if len(self._open) - len(self._refused) + size > bounds.limit:
                self._freed.clear()
                await self._freed.wait()
                continue
            may_be_new = len(self._refused) < bounds.limit
            read = partial(self._read_once, bounds, may_be_new=may_be_new)
            messages = await self._persist(read)
            if messages:
                messages = self._note(messages)
                if not messages:
                    continue
                bounds.learn(len(messages), sum(message.size_bytes for message in messages))
                chunk = await in_thread(rows.chunk, messages)
                hopeless = self._drop_hopeless(messages, chunk)
                await batches.put((messages, chunk, hopeless, await requests.start(chunk, tasks)))
            elif self._job.until_empty and not self._open and await self._persist(self._source.is_empty):
                break

    async def _read_once(self, bounds: FlowBounds, *, may_be_new: bool) -> Sequence[QueueMessage]:
        try:
            return await self._source.read(bounds.size, _WAIT_S, may_be_new=may_be_new)
        except QueueAwayError:
            bounds.shrink()  # the messages may be too large for the connection
            raise

    def _note(self, messages: Sequence[QueueMessage]) -> Sequence[QueueMessage]:
        """Note what was read; return the messages that are still in the queue."""
        ids = {message.id for message in messages}
        self._refused -= ids
        self._open |= ids
        self._open -= {message.id for message in messages if message.is_gone}
        return [message for message in messages if not message.is_gone]

    def _drop_hopeless(self, messages: Sequence[QueueMessage], chunk: Chunk) -> set[int]:
        """Return the offsets of messages that need no other delivery, and do not execute them.

        A message that cannot be read is always so. One that was delivered too often may be the reason why consumers
        have ended.
        """
        self._redelivered += sum(each.deliveries > 1 for each in messages)
        found = {
            offset: f"delivered {each.deliveries - 1} times without an answer: its consumers ended before one"
            for offset, each in enumerate(messages)
            if each.deliveries > self._job.max_deliveries and offset not in chunk.failures
        }
        if found:
            chunk.failures.update(found)
            chunk.groups = [part for group in chunk.groups if (part := group.without(found)).offsets]
        return set(chunk.failures)

    # --- answering --------------------------------------------------------------------------------------------------

    async def _write(self, rows: MessageRows, batches: "asyncio.Queue[_Batch | None]") -> None:
        while (batch := await batches.get()) is not None:
            messages, chunk, hopeless, started = batch
            if started:
                await asyncio.wait(started)
                for task in started:
                    task.result()
            answers = await in_thread(rows.answers, messages, chunk)
            await self._finish(messages, chunk, self._fitting(messages, chunk, answers, hopeless), hopeless)

    def _fitting(
        self, messages: Sequence[QueueMessage], chunk: Chunk, answers: Sequence[Fields], hopeless: set[int]
    ) -> Sequence[Fields]:
        """Return the answers that the queue takes; a message whose answer is too large gets no other one."""
        offsets = [offset for offset in range(len(messages)) if offset not in chunk.failures]
        for offset, answer in zip(offsets, answers, strict=True):
            if reason := self._sink.excess(answer):
                chunk.failures[offset] = f"the answer has {reason}"
                hopeless.add(offset)
        return [each for offset, each in zip(offsets, answers, strict=True) if offset not in chunk.failures]

    def _letter(self, message: QueueMessage, reason: str) -> Fields:
        """Return a dead letter; without the fields of the message if it is too large with them."""
        letter = dead_letter(message, reason)
        return dead_letter(message, reason, with_fields=False) if self._dead.excess(letter) else letter

    async def _finish(
        self, messages: Sequence[QueueMessage], chunk: Chunk, answers: Sequence[Fields], hopeless: set[int]
    ) -> None:
        """Write answers and dead letters, then acknowledge."""
        letters: list[Fields] = []
        done: list[QueueMessage] = []
        again: list[QueueMessage] = []
        for offset, message in enumerate(messages):
            reason = chunk.failures.get(offset)
            if reason is None:
                done.append(message)
            elif offset in hopeless or message.deliveries >= self._job.max_deliveries:
                done.append(message)
                letters.append(self._letter(message, reason))
            else:
                again.append(message)
        await self._persist(lambda: self._sink.write(answers))
        await self._persist(lambda: self._dead.write(letters))
        await self._persist(lambda: self._source.acknowledge(done))
        for message in again:
            self._source.retry(message, min(_RETRY_S * 2 ** (message.deliveries - 1), _MAX_RETRY_S))
            self._refused.add(message.id)
        self._answered += len(answers)
        self._dead_count += len(letters)
        self._open.difference_update(message.id for message in done)
        self._freed.set()

    # --- the broker -------------------------------------------------------------------------------------------------

    async def _persist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a call of a broker; repeat it while the broker is away."""
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                result = await call()
            except QueueAwayError as error:
                if not self._trouble:
                    _log.warning("%s; the consumer waits for it", error.message)
                self._trouble = error.message
            else:
                if self._trouble:
                    _log.warning("the queue answers again")
                    self._trouble = ""
                return result
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    async def _keep(self) -> None:
        """Report again and again that the messages in flight are being worked on."""
        while True:
            await asyncio.sleep(self._job.claim_after_s / 3)
            with contextlib.suppress(QueueAwayError):  # reading and writing report it
                await self._source.keep()

    async def _show(self) -> None:
        last_s, last, rate = time.monotonic(), 0, 0.0
        while True:
            await asyncio.sleep(_PROGRESS_S)
            now_s = time.monotonic()
            weight = min(1.0, (now_s - last_s) / _RATE_S)
            rate += weight * ((self._answered - last) / (now_s - last_s) - rate)
            last_s, last = now_s, self._answered
            self._on_progress(self._progress(rate))

    def _progress(self, rate: float) -> ConsumeProgress:
        return ConsumeProgress(
            answered=self._answered,
            dead=self._dead_count,
            in_flight=len(self._open),
            rate_per_s=rate,
            trouble=self._trouble,
        )


def _addresses(job: ConsumeJob) -> tuple[QueueAddress, QueueAddress, QueueAddress]:
    """Return where messages come from, and where answers and dead letters go."""
    read, written = parse_queue_address(job.source), parse_queue_address(job.rows.output)
    dead = parse_queue_address(job.dead_letters) if job.dead_letters else read.dead_letters
    addresses = read, written, dead
    _check_differ([each.place for each in addresses], addresses)
    return addresses


def _check_differ(places: Sequence[object], addresses: tuple[QueueAddress, QueueAddress, QueueAddress]) -> None:
    """Refuse queues of which two are the same: a consumer would read what it writes, without end."""
    if len(set(places)) < len(places):
        read, written, dead = addresses
        raise invalid_argument(
            f"the queues of messages ({read}), answers ({written}) and dead letters ({dead}) must differ"
        )
