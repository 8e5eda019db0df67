"""Topics of Kafka as queues, through librdkafka.

The broker gives each partition to one consumer of a group. What was answered is committed in order; the rest is
delivered again when the partition gets another consumer, which is after `claim_after_s` of silence. The value of a
message is its field `data`, its headers are the other fields.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from naiad.core.errors import invalid_argument
from naiad.tools.consume.queues.kafka.kafka_client import DATA, TIMEOUT_S, KafkaAccess
from naiad.tools.consume.queues.kafka.partition_progress import PartitionProgress
from naiad.tools.consume.queues.message_queue import KEY, QueueMessage
from naiad.tools.consume.queues.queue_address import QueueAddress
from naiad.tools.consume.queues.redeliveries import HalfWritten, Redeliveries

_LEAVE_S = 5.0
"""How long a partition that another consumer gets is kept for the messages in flight."""
_LEAST_POLL_MS = 300_000
_MAX_BYTES = 1_000_000
"""Of a message, as brokers take it by default."""
_MESSAGE_BYTES, _HEADER_BYTES = 200, 20
"""Beside names and values, not less than it is."""
_T = TypeVar("_T")


class KafkaSource:
    """Reads a topic as one consumer of a group.

    All calls of the library that wait for messages run in one thread, in which it also gives and takes partitions;
    commits run in another one.
    """

    def __init__(self, address: QueueAddress, group: str, consumer: str, claim_after_s: float) -> None:
        self._access = access = KafkaAccess(address)
        self._topic = address.name
        self._reading = ThreadPoolExecutor(1, "kafka-read")
        self._committing = ThreadPoolExecutor(1, "kafka-commit")
        self._progress: dict[int, PartitionProgress] = {}
        """By partition, of those that this consumer has."""
        self._changed = threading.Condition()
        """Guards the progress; notified when messages are done."""
        self._redeliveries = Redeliveries()
        self._early: list[Any] = []
        """Messages that came while only the group was served."""
        self._waiting: set[str] = set()
        """Ids of messages that wait for another delivery here."""
        self._client: Any = access.library.Consumer(
            access.settings
            | {
                "group.id": group,
                "client.id": consumer,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(claim_after_s * 1000),
                "heartbeat.interval.ms": max(100, int(claim_after_s * 1000 / 10)),
                # A consumer that waits for its model serves the group too: `keep`.
                "max.poll.interval.ms": max(_LEAST_POLL_MS, int(claim_after_s * 1000)),
                "queued.max.messages.kbytes": 16_384,
            }
        )

    async def open(self) -> None:
        """Raise InferError unless the topic exists."""
        await self._read_thread(partial(self._access.cluster, self._client))

    async def place(self) -> tuple[object, ...]:
        """Return the id of the cluster, and the topic."""
        return await self._read_thread(partial(self._access.cluster, self._client)), self._topic

    async def join(self) -> None:
        """Enter the group; a new one begins with the first message."""
        subscribe = partial(
            self._client.subscribe, [self._topic], on_assign=self._take, on_revoke=self._leave, on_lost=self._lose
        )
        await self._read_thread(subscribe)

    async def read(self, limit: int, wait_s: float, *, may_be_new: bool = True) -> Sequence[QueueMessage]:
        """Return messages to deliver once more, or new ones."""
        with self._changed:
            again = self._redeliveries.take(limit)
            self._waiting.difference_update(each.id for each in again)
        if again:
            return again
        if not may_be_new:
            await self.keep()
            await asyncio.sleep(wait_s)
            return ()
        early, self._early = self._early[:limit], self._early[limit:]
        found = early or await self._read_thread(partial(self._client.consume, limit, wait_s))
        messages = self._delivered(found)
        if messages:
            await self._commit_thread(partial(self._commit, asynchronous=True))
        return messages

    def _delivered(self, found: Sequence[Any]) -> Sequence[QueueMessage]:
        """Note and return messages; messages of partitions that are not given here any more are left out."""
        messages = []
        with self._changed:
            for each in found:
                progress = self._progress.get(each.partition())
                error = each.error()
                if error is not None and error.code() != self._access.library.KafkaError._PARTITION_EOF:
                    raise self._access.named(error)
                if progress is None:
                    continue
                if error is not None:
                    progress.reach(each.offset())
                    continue
                deliveries = progress.deliver(each.offset())
                messages.append(QueueMessage(f"{each.partition()}-{each.offset()}", _fields(each), deliveries))
        return messages

    async def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """Note that messages are done, and commit up to the first one that is not."""
        if not messages:
            return
        with self._changed:
            for each in messages:
                partition, offset = map(int, each.id.split("-"))
                if partition in self._progress:
                    self._progress[partition].finish(offset)
            self._changed.notify_all()
        await self._commit_thread(self._commit)

    def retry(self, message: QueueMessage, delay_s: float) -> None:
        """Deliver a message once more after a delay, if its partition is still here then."""
        with self._changed:
            self._redeliveries.add(message, delay_s)
            self._waiting.add(message.id)
            if int(message.id.split("-")[0]) not in self._progress:
                self._withdraw()
            self._changed.notify_all()

    async def keep(self) -> None:
        """Serve the group: partitions come and go while no message is read."""
        await self._read_thread(self._serve)

    def _serve(self) -> None:
        """Let the library call back. On the thread of reading."""
        assigned = self._client.assignment()
        self._client.pause(assigned)
        try:
            self._early += self._client.consume(1, 0)
        finally:
            self._client.resume(self._client.assignment())

    async def is_empty(self) -> bool:
        """Return whether the group has committed all messages of all partitions."""
        await self._commit_thread(self._commit)
        return await self._read_thread(self._is_empty)

    def _is_empty(self) -> bool:
        partition_of = partial(self._access.library.TopicPartition, self._topic)
        wanted = [partition_of(number) for number in self._access.partitions(self._client)]
        for each in self._client.committed(wanted, timeout=TIMEOUT_S):
            first, end = self._client.get_watermark_offsets(partition_of(each.partition), timeout=TIMEOUT_S)
            if max(each.offset, first) < end:
                return False
        return True

    async def close(self) -> None:
        """Commit what is done, and leave the group."""
        try:
            await self._read_thread(self._client.close)
        finally:
            self._reading.shutdown(wait=False)
            self._committing.shutdown(wait=False)

    # --- threads ----------------------------------------------------------------------------------------------------

    async def _read_thread(self, call: Callable[[], _T]) -> _T:
        return await self._named(self._reading, call)

    async def _commit_thread(self, call: Callable[[], _T]) -> _T:
        return await self._named(self._committing, call)

    async def _named(self, executor: ThreadPoolExecutor, call: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, call)
        except self._access.error as error:
            raise self._access.named(error.args[0]) from None

    # --- partitions, on the thread of reading -----------------------------------------------------------------------

    def _take(self, client: Any, partitions: Sequence[Any]) -> None:
        """Begin with partitions where the consumers before have ended."""
        try:
            committed = client.committed(list(partitions), timeout=TIMEOUT_S)
        except self._access.error:
            committed = partitions  # it begins without the counts of deliveries
        with self._changed:
            for each in committed:
                self._progress[each.partition] = PartitionProgress(max(0, each.offset), each.metadata or "")

    def _leave(self, client: Any, partitions: Sequence[Any]) -> None:
        """Commit what is done of partitions that another consumer gets, after a time for what is in flight."""
        del client
        numbers = {each.partition for each in partitions}
        with self._changed:
            self._changed.wait_for(lambda: self._are_idle(numbers), _LEAVE_S)
        with contextlib.suppress(self._access.error):  # the other consumer gets the messages once more
            self._commit()
        self._lose(None, partitions)

    def _are_idle(self, numbers: set[int]) -> bool:
        waiting = {tuple(map(int, each.split("-"))) for each in self._waiting}
        return all(
            self._progress[number].is_idle_but({offset for partition, offset in waiting if partition == number})
            for number in numbers & self._progress.keys()
        )

    def _lose(self, client: Any, partitions: Sequence[Any]) -> None:
        """Forget partitions that another consumer has."""
        del client
        with self._changed:
            for each in partitions:
                self._progress.pop(each.partition, None)
            self._withdraw()

    def _withdraw(self) -> None:
        """Give up messages that wait for another delivery, of partitions that are not here any more."""
        self._redeliveries.withdraw(lambda message: int(message.id.split("-")[0]) not in self._progress)

    def _commit(self, *, asynchronous: bool = False) -> None:
        """Commit what is done and not committed. Raises the library's error."""
        with self._changed:
            commits = {number: each.next_commit for number, each in self._progress.items()}
        wanted = [
            self._access.library.TopicPartition(self._topic, number, each.offset, each.metadata)
            for number, each in commits.items()
            if each is not None
        ]
        if not wanted:
            return
        try:
            self._client.commit(offsets=wanted, asynchronous=asynchronous)
        except self._access.error as error:
            if error.args[0].code() not in self._passing:
                raise
            return  # the group changes: the next commit has it, or another consumer does the work again
        with self._changed:
            for number, each in commits.items():
                if each is not None and number in self._progress:
                    self._progress[number].note_committed(each)

    @property
    def _passing(self) -> set[int]:
        kinds: Any = self._access.library.KafkaError
        return {
            kinds.ILLEGAL_GENERATION,
            kinds.UNKNOWN_MEMBER_ID,
            kinds.REBALANCE_IN_PROGRESS,
            kinds._ASSIGNMENT_LOST,
        }


def _fields(message: Any) -> Mapping[bytes, bytes]:
    """Return the fields of a message; of equal headers the last one."""
    fields = {name.encode(): value or b"" for name, value in message.headers() or ()}
    if message.key() is not None:
        fields[KEY] = message.key()
    if message.value() is not None:
        fields[DATA] = message.value()
    return fields


class KafkaSink:
    """Adds messages to a topic."""

    def __init__(self, address: QueueAddress, max_length: int = 0) -> None:
        """Raises InferError(INVALID_ARG) for a `max_length`: the topic itself has its limits."""
        if max_length:
            raise invalid_argument(
                f"max_length is {max_length}, and a topic of Kafka keeps what its own settings say"
            )
        self._access = KafkaAccess(address)
        self._topic = address.name
        self._half = HalfWritten()
        self._writing = ThreadPoolExecutor(1, "kafka-write")
        limit_ms = int(TIMEOUT_S * 1000)
        self._client: Any = self._access.library.Producer(
            self._access.settings
            | {"acks": "all", "message.timeout.ms": limit_ms, "linger.ms": 1, "message.max.bytes": _MAX_BYTES}
        )

    async def open(self) -> None:
        """Raise InferError unless the topic exists."""
        await self._run(partial(self._access.cluster, self._client))

    async def place(self) -> tuple[object, ...]:
        """Return the id of the cluster, and the topic."""
        return await self._run(partial(self._access.cluster, self._client)), self._topic

    def excess(self, fields: Mapping[bytes, bytes]) -> str:
        """Return why a message is too large for a topic; "" if it is not."""
        size = _MESSAGE_BYTES + sum(len(name) + len(value) + _HEADER_BYTES for name, value in fields.items())
        return f"{size} bytes; {self._access.address} takes {_MAX_BYTES}" if size > _MAX_BYTES else ""

    async def write(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        """Add messages; all replicas in sync have them when this returns."""
        if messages:
            await self._run(partial(self._write, messages))

    def _write(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        failures: list[Any] = []

        def note(offset: int, error: Any, message: Any) -> None:
            del message
            if error is None:
                self._half.note(offset)
            else:
                failures.append(error)

        for offset, fields in self._half.begin(messages):
            headers = [(name.decode("utf-8", "replace"), value) for name, value in fields.items()]
            self._client.produce(
                self._topic,
                fields.get(DATA),
                fields.get(KEY),
                headers=[each for each in headers if each[0].encode() not in (DATA, KEY)],
                on_delivery=partial(note, offset),
            )
        self._client.flush(2 * TIMEOUT_S)
        if failures:
            raise self._access.named(failures[0])
        self._half.end()

    async def _run(self, call: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._writing, call)
        except self._access.error as error:
            raise self._access.named(error.args[0]) from None

    async def close(self) -> None:
        """End the client; nothing is in flight between two writes."""
        self._writing.shutdown(wait=False)
