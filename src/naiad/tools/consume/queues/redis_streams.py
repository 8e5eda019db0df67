"""Streams of Redis 6.2 or later as queues.

A message that is read stays in the list of pending entries of its consumer until XACK. Each consumer refreshes the
idle time of its entries while it works on them (XCLAIM JUSTID), and takes over entries whose idle time shows that
their consumer is gone (XAUTOCLAIM), which counts as a delivery.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from naiad.core.errors import InferError, invalid_argument
from naiad.tools.consume.queues.message_queue import QueueAwayError, QueueLostError, QueueMessage
from naiad.tools.consume.queues.queue_address import QueueAddress

_log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
"""For a command, beyond the time that it may block."""
_CLAIMS_PER_PERIOD = 4
"""Searches for entries of consumers that are gone, in the time after which they are."""
_FOR_NOW = (
    "BusyLoadingError",
    "ClusterDownError",
    "ExecAbortError",
    "MasterDownError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "TryAgainError",
)
"""Classes of errors that end without a change of the command."""
_FOR_NOW_TEXTS = ("MISCONF", "BUSY ")
_LEAVE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) == 0 then
    return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
end
return -1
"""
"""In one step: with a message that comes in between its pending entry would go too."""
_T = TypeVar("_T")


class RedisConnection:
    """A client of one stream, whose errors name it."""

    def __init__(self, address: QueueAddress) -> None:
        """Raises InferError(INVALID_ARG) without the `redis` package."""
        try:
            import redis.asyncio as redis
            from redis import exceptions
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise invalid_argument(f"{address} needs the 'redis' package: pip install 'naiad[redis]'") from None
        self.address = address
        self._errors = (redis.RedisError, OSError)
        self._away = (redis.ConnectionError, redis.TimeoutError, OSError)
        self._for_now = tuple(getattr(exceptions, name) for name in _FOR_NOW if hasattr(exceptions, name))
        self._denied = redis.AuthenticationError
        self.client: Any = redis.Redis(
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.user or None,
            password=address.password or None,
            ssl=address.scheme == "rediss",
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            protocol=2,
            # The caller repeats calls with pauses; one immediate retry is for a connection that was closed meanwhile.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )

    async def call(self, command: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a command. Raises InferError."""
        try:
            return await command()
        except self._errors as error:
            raise self._named(error) from None

    async def open(self) -> None:
        """Raise InferError unless the server answers and the name is free or that of a stream."""
        kind = await self.call(lambda: self.client.type(self.address.name))
        if kind not in (b"none", b"stream"):
            raise invalid_argument(f"{self.address} is a {kind.decode()}, not a stream; choose another name")

    async def place(self) -> tuple[object, ...]:
        """Return the number that the server drew when it began, the database, and the name of the stream."""
        address = self.address
        try:
            found: Any = await self.call(lambda: self.client.info("server"))
        except QueueAwayError:
            raise
        except InferError:  # the user may not ask: names have to do
            return address.place
        return found.get("run_id"), address.database, address.name

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _named(self, error: Exception) -> InferError:
        # An error in a transaction has the command before it, with the user's data.
        text = str(error).rpartition(" of pipeline caused error: ")[2].removeprefix("('").removesuffix("',)")
        text = text or type(error).__name__
        if isinstance(error, self._denied):
            return invalid_argument(f"{self.address}: {text}; write redis://USER:PASSWORD@HOST/STREAM")
        if isinstance(error, (*self._away, *self._for_now)) or text.startswith(_FOR_NOW_TEXTS):
            return QueueAwayError(f"Redis at {self.address.server}: {text.rstrip('.')}")
        if text.startswith(("NOGROUP", "UNBLOCKED")):
            return QueueLostError(
                f"the stream '{self.address.name}' at {self.address.server}, or the group of this consumer, was "
                "deleted; a new start makes them"
            )
        return invalid_argument(f"{self.address}: {text}")


class RedisSource:
    """Reads a stream as one consumer of a group."""

    def __init__(self, address: QueueAddress, group: str, consumer: str, claim_after_s: float) -> None:
        self._redis = RedisConnection(address)
        self._client = self._redis.client
        self._stream = address.name
        self._group, self._consumer = group, consumer
        self._claim_after_ms = int(claim_after_s * 1000)
        self._claim_interval_s = claim_after_s / _CLAIMS_PER_PERIOD
        self._claim_s = 0.0
        """When the next search is due."""
        self._cursor = "0-0"
        self._held: dict[str, None] = {}
        """Ids of messages that were delivered to this consumer and are not acknowledged."""
        self._due: list[tuple[float, str, int]] = []
        """A heap of messages to deliver once more: when, id, deliveries before."""
        self._is_member = False

    async def open(self) -> None:
        """Connect."""
        await self._redis.open()

    async def place(self) -> tuple[object, ...]:
        """Return what the stream has alone."""
        return await self._redis.place()

    async def join(self) -> None:
        """Make stream and group if they do not exist: the group begins with the first entry."""
        try:
            await self._call(lambda: self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True))
        except InferError as error:
            if "BUSYGROUP" not in error.message:
                raise
        self._is_member = True

    async def read(self, limit: int, wait_s: float, *, may_be_new: bool = True) -> Sequence[QueueMessage]:
        """Return messages to deliver once more, messages of consumers that are gone, or new ones."""
        now_s = time.monotonic()
        if self._due and self._due[0][0] <= now_s:
            return await self._again(limit, now_s)
        if now_s >= self._claim_s and (claimed := await self._claim(limit, now_s)):
            return self._hold(claimed)
        if not may_be_new:
            await asyncio.sleep(wait_s)
            return ()
        wait_ms = max(1, int(wait_s * 1000))
        found: Any = await self._call(
            lambda: self._client.xreadgroup(
                self._group, self._consumer, {self._stream: ">"}, count=limit, block=wait_ms
            )
        )
        return self._hold([QueueMessage(each.decode(), fields) for _, read in found or () for each, fields in read])

    async def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """Remove messages from the pending entries."""
        if not messages:
            return
        await self._call(lambda: self._client.xack(self._stream, self._group, *[each.id for each in messages]))
        for each in messages:
            self._held.pop(each.id, None)

    def retry(self, message: QueueMessage, delay_s: float) -> None:
        """Deliver a message once more after a delay."""
        heapq.heappush(self._due, (time.monotonic() + delay_s, message.id, message.deliveries))

    async def keep(self) -> None:
        """Refresh the idle time of the pending entries."""
        held = list(self._held)
        if held:
            await self._call(
                lambda: self._client.xclaim(self._stream, self._group, self._consumer, 0, held, justid=True)
            )

    async def is_empty(self) -> bool:
        """Return whether the group has no pending entry."""
        found: Any = await self._call(lambda: self._client.xpending(self._stream, self._group))
        return not found["pending"]

    async def close(self) -> None:
        """Remove the consumer from its group unless it has pending entries, and close the connections."""
        try:
            if self._is_member:
                await self._leave()
        except InferError as error:
            _log.debug("the consumer stays in its group: %s", error.message)
        finally:
            await self._redis.close()

    async def _leave(self) -> None:
        await self._call(lambda: self._client.eval(_LEAVE, 1, self._stream, self._group, self._consumer))

    async def _call(self, command: Callable[[], Awaitable[_T]]) -> _T:
        return await self._redis.call(command)

    def _hold(self, messages: Sequence[QueueMessage]) -> Sequence[QueueMessage]:
        self._held.update(dict.fromkeys(each.id for each in messages))
        return messages

    async def _again(self, limit: int, now_s: float) -> Sequence[QueueMessage]:
        """Return the messages whose delay is over; the server counts the delivery."""
        counts: dict[str, int] = {}
        while self._due and len(counts) < limit and self._due[0][0] <= now_s:
            _, identity, deliveries = heapq.heappop(self._due)
            counts[identity] = deliveries + 1
        try:
            found: Any = await self._call(
                lambda: self._client.xclaim(self._stream, self._group, self._consumer, 0, list(counts))
            )
        except QueueAwayError:
            for identity, deliveries in counts.items():
                heapq.heappush(self._due, (now_s, identity, deliveries - 1))
            raise
        messages = [
            QueueMessage(each.decode(), fields, counts[each.decode()]) for each, fields in found if each is not None
        ]
        self._hold(messages)
        # The rest is deleted from the stream, or acknowledged by another consumer.
        gone = counts.keys() - {each.id for each in messages}
        for identity in gone:
            self._held.pop(identity, None)
        if gone:
            await self._forget_deleted()
        return [*messages, *(QueueMessage(identity, {}, counts[identity], is_gone=True) for identity in gone)]

    async def _claim(self, limit: int, now_s: float) -> Sequence[QueueMessage]:
        """Return messages of consumers that are gone."""
        cursor, found, *_ = await self._call(self._autoclaim(limit))
        self._cursor = cursor.decode()
        if self._cursor == "0-0":
            self._claim_s = now_s + self._claim_interval_s
        entries = [(each.decode(), fields) for each, fields in found if each is not None]
        if len(entries) < len(found):
            await self._forget_deleted()
        entries = [(each, fields) for each, fields in entries if each not in self._held]
        if not entries:
            return ()
        counts = await self._deliveries(entries[0][0], entries[-1][0], len(entries) + len(self._held))
        return [QueueMessage(each, fields, counts.get(each, 2)) for each, fields in entries]

    def _autoclaim(self, limit: int) -> Callable[[], Awaitable[Any]]:
        return lambda: self._client.xautoclaim(
            self._stream, self._group, self._consumer, self._claim_after_ms, self._cursor, count=limit
        )

    async def _deliveries(self, first: str, last: str, count: int) -> Mapping[str, int]:
        rows: Any = await self._call(
            lambda: self._client.xpending_range(self._stream, self._group, first, last, count, self._consumer)
        )
        return {row["message_id"].decode(): row["times_delivered"] for row in rows}

    async def _forget_deleted(self) -> None:
        """Acknowledge entries of this consumer that were deleted from the stream; Redis 7 does it itself."""
        rows: Any = await self._call(
            lambda: self._client.xpending_range(
                self._stream, self._group, "-", "+", 1000 + len(self._held), self._consumer
            )
        )
        for identity in [row["message_id"].decode() for row in rows]:
            if identity in self._held:
                continue
            there: Any = await self._call(partial(self._client.xrange, self._stream, identity, identity, 1))
            if not there:
                _log.warning("message %s was deleted from the stream '%s' unanswered", identity, self._stream)
                await self._call(partial(self._client.xack, self._stream, self._group, identity))


class RedisSink:
    """Adds entries to a stream."""

    def __init__(self, address: QueueAddress, max_length: int = 0) -> None:
        """`max_length`: about the most entries that the stream keeps; 0 for no limit."""
        self._redis = RedisConnection(address)
        self._name = address.name
        self._max_length = max_length or None

    async def open(self) -> None:
        """Connect."""
        await self._redis.open()

    async def place(self) -> tuple[object, ...]:
        """Return what the stream has alone."""
        return await self._redis.place()

    def excess(self, fields: Mapping[bytes, bytes]) -> str:
        """Return "": what clients can send fits."""
        del fields
        return ""

    async def write(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        """Add entries in one transaction."""
        if messages:
            await self._redis.call(lambda: self._added(messages))

    async def _added(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        pipeline = self._redis.client.pipeline(transaction=True)
        for fields in messages:
            pipeline.xadd(self._name, dict(fields), maxlen=self._max_length, approximate=True)
        await pipeline.execute()

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.close()
