"""Streams of NATS JetStream 2.9 or later as queues.

A group is a durable pull consumer with explicit acknowledgements. The server delivers a message again when it was not
acknowledged for `claim_after_s`, and counts the deliveries; a consumer reports its progress while it works. The
payload of a message is its field `data`, its headers are the other fields.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.core.errors import invalid_argument
from naiad.tools.consume.queues.message_queue import QueueAwayError, QueueLostError, QueueMessage
from naiad.tools.consume.queues.nats.nats_connection import TIMEOUT_S, NatsConnection
from naiad.tools.consume.queues.nats.nats_messages import fields_of, payload_and_headers, size_bytes
from naiad.tools.consume.queues.queue_address import SUBJECT, QueueAddress
from naiad.tools.consume.queues.redeliveries import HalfWritten, Redeliveries

_CHECK_S = 5.0
"""Between two questions whether the group still exists, while no message comes."""


class NatsSource:
    """Reads a stream as one process of a durable consumer."""

    def __init__(self, address: QueueAddress, group: str, claim_after_s: float) -> None:
        self._nats = NatsConnection(address)
        self._group = group
        self._claim_after_s = claim_after_s
        self._held: dict[str, str] = {}
        """Where to acknowledge each message that was delivered to this process and is not acknowledged."""
        self._redeliveries = Redeliveries()
        self._subscription: Any = None
        self._client: Any = None
        """That of the subscription."""
        self._check_s = 0.0

    async def open(self) -> None:
        """Connect."""
        await self._nats.stream()

    async def place(self) -> tuple[object, ...]:
        """Return what the stream has alone."""
        return await self._nats.place()

    async def join(self) -> None:
        """Make stream and group if they do not exist: the group begins with the first message."""
        await self._nats.make_stream()
        config = await self._config()
        jetstream = await self._nats.jetstream()
        await self._nats.call(lambda: jetstream.add_consumer(self._nats.address.name, config=config))

    async def _config(self) -> Any:
        """Return the configuration of the group. Raises InferError for a group that would lose messages."""
        api = self._nats.api
        try:
            config = (await self._info()).config
        except QueueLostError:
            config = api.ConsumerConfig(
                durable_name=self._group,
                deliver_policy=api.DeliverPolicy.ALL,
                ack_policy=api.AckPolicy.EXPLICIT,
                filter_subject=self._nats.address.options.get(SUBJECT),
                # Each process limits what it holds.
                max_ack_pending=-1,
            )
        is_limited = (config.max_deliver or -1) > 0
        if config.ack_policy != api.AckPolicy.EXPLICIT or config.deliver_subject or is_limited or config.backoff:
            raise invalid_argument(
                f"the consumer '{self._group}' of {self._nats.address} exists, and is no pull consumer with explicit "
                "acknowledgements and without limits of deliveries; choose another group"
            )
        config.ack_wait = self._claim_after_s
        return config

    async def _info(self) -> Any:
        jetstream = await self._nats.jetstream()
        return await self._nats.call(lambda: jetstream.consumer_info(self._nats.address.name, self._group))

    async def read(self, limit: int, wait_s: float, *, may_be_new: bool = True) -> Sequence[QueueMessage]:
        """Return messages to deliver once more, messages of processes that are gone, or new ones."""
        if again := self._redeliveries.take(limit):
            return again
        if not may_be_new:
            await asyncio.sleep(wait_s)
            return ()
        subscription = await self._subscribed()
        try:
            found = await self._nats.call(lambda: subscription.fetch(limit, timeout=wait_s))
        except QueueAwayError:
            if not self._client.is_connected:
                raise
            found = []  # an end without a message has the same class
        if not found and time.monotonic() >= self._check_s:
            self._check_s = time.monotonic() + _CHECK_S
            await self._info()
        return [each for message in found if (each := self._delivered(message)) is not None]

    async def _subscribed(self) -> Any:
        client = await self._nats.client()
        if client is not self._client:
            jetstream = client.jetstream(timeout=TIMEOUT_S)
            self._subscription = await self._nats.call(
                lambda: jetstream.pull_subscribe_bind(self._group, self._nats.address.name)
            )
            self._client = client
        return self._subscription

    def _delivered(self, message: Any) -> QueueMessage | None:
        """Return a message, or None if this process works on it already."""
        metadata = message.metadata
        identity = str(metadata.sequence.stream)
        is_known = identity in self._held
        self._held[identity] = message.reply
        if is_known:
            return None
        return QueueMessage(identity, fields_of(message.data, message.headers), metadata.num_delivered)

    async def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """Acknowledge messages; the server has noted it when this returns."""
        replies = [self._held[each.id] for each in messages if each.id in self._held]
        if replies:
            await self._answer(replies, b"+ACK")
            for each in messages:
                self._held.pop(each.id, None)

    def retry(self, message: QueueMessage, delay_s: float) -> None:
        """Deliver a message once more after a delay; until then this process keeps it."""
        self._redeliveries.add(message, delay_s)

    async def keep(self) -> None:
        """Report progress with all messages that this process holds."""
        if self._held:
            await self._answer(list(self._held.values()), b"+WPI")

    async def _answer(self, replies: Sequence[str], text: bytes) -> None:
        client = await self._nats.client()

        async def answer() -> None:
            for each in replies:
                await client.publish(each, text)
            await client.flush(int(TIMEOUT_S))

        await self._nats.call(answer)

    async def is_empty(self) -> bool:
        """Return whether all messages of the group are acknowledged."""
        info = await self._info()
        return not info.num_pending and not info.num_ack_pending

    async def close(self) -> None:
        """Close the connection."""
        await self._nats.close()


class NatsSink:
    """Adds messages to a stream."""

    def __init__(self, address: QueueAddress, max_length: int = 0) -> None:
        """`max_length`: the most messages of a stream that is made here; 0 for no limit."""
        self._nats = NatsConnection(address)
        self._max_length = max_length
        self._subject = address.options.get(SUBJECT, "")
        self._limit_bytes = 0
        self._half = HalfWritten()
        self._run = secrets.token_hex(8)
        self._exists = False

    async def open(self) -> None:
        """Connect. Raises InferError for a stream without a subject to write to, or with another limit."""
        client, found = await self._nats.client(), await self._nats.stream()
        self._limit_bytes = client.max_payload
        self._exists = found is not None
        if found is None:
            self._subject = self._subject or self._nats.address.name
            if self._subject != self._nats.address.name:
                raise invalid_argument(f"{self._nats.address} does not exist; it is made only without '{SUBJECT}'")
            return
        config = found.config
        if (config.max_msg_size or -1) > 0:
            self._limit_bytes = min(self._limit_bytes, config.max_msg_size)
        if self._max_length and config.max_msgs != self._max_length:
            raise invalid_argument(
                f"max_length is {self._max_length}, and {self._nats.address} exists and keeps {config.max_msgs} "
                "messages (-1: all); change the limit of the stream"
            )
        self._subject = self._subject or self._only_subject(config.subjects or [])

    def _only_subject(self, subjects: Sequence[str]) -> str:
        if len(subjects) != 1 or "*" in subjects[0] or ">" in subjects[0]:
            raise invalid_argument(
                f"{self._nats.address} has the subjects {', '.join(subjects) or 'of no client'}; write "
                f"{self._nats.address}?{SUBJECT}=NAME with the one to write to"
            )
        return subjects[0]

    async def place(self) -> tuple[object, ...]:
        """Return what the stream has alone."""
        return await self._nats.place()

    def excess(self, fields: Mapping[bytes, bytes]) -> str:
        """Return why a message is too large for the stream; "" if it is not."""
        size = size_bytes(fields)
        return f"{size} bytes; {self._nats.address} takes {self._limit_bytes}" if size > self._limit_bytes else ""

    async def write(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        """Add messages. Within the server's window for duplicates a repeated write adds none twice."""
        missing = self._half.begin(messages) if messages else ()
        if not missing:
            return
        if not self._exists:
            await self._nats.make_stream(self._max_length or None)
            self._exists = True
        jetstream = await self._nats.jetstream()
        results = await asyncio.gather(*[self._add(jetstream, *each) for each in missing], return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                self._exists = False  # it may have been deleted
                raise result
        self._half.end()

    async def _add(self, jetstream: Any, offset: int, fields: Mapping[bytes, bytes]) -> None:
        payload, headers = payload_and_headers(fields)
        headers["Nats-Msg-Id"] = f"{self._run}-{self._half.write_number}-{offset}"
        stream = self._nats.address.name
        await self._nats.call(lambda: jetstream.publish(self._subject, payload, TIMEOUT_S, stream, headers))
        self._half.note(offset)

    async def close(self) -> None:
        """Close the connection."""
        await self._nats.close()
