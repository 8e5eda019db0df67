"""The cluster for tests that librdkafka has: brokers in this process, which other processes can reach."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from support.waiting import wait_until

WAIT_S = 30


class KafkaCluster:
    """A mock cluster. Its topics cannot be deleted: each test has topics of its own."""

    dead = "in-dead"

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 1, "log_level": 0})
        broker = next(iter(self._producer.list_topics(timeout=WAIT_S).brokers.values()))
        self.server = f"{broker.host}:{broker.port}"
        self._prefixes = map("test{}-".format, itertools.count())
        self.clear()

    def start(self) -> None:
        """It runs as long as the object."""

    def stop(self) -> None:
        """It ends with the object."""

    def clear(self) -> None:
        self._prefix = next(self._prefixes)

    @property
    def group(self) -> str:
        """Of its own for each test: the members of a killed consumer stay for a time."""
        return f"{self._prefix}group"

    def address(self, topic: str) -> str:
        return f"kafka://{self.server}/{self._prefix}{topic}"

    def make(self, topic: str) -> None:
        """A broker makes a topic when a producer asks for it."""
        self._producer.list_topics(self._prefix + topic, timeout=WAIT_S)
        wait_until(
            lambda: (
                self._producer.list_topics(self._prefix + topic, timeout=WAIT_S)
                .topics[self._prefix + topic]
                .partitions
            )
        )

    def send(self, messages: Sequence[str | Mapping[str, str]], key: bytes | None = None) -> list[str]:
        """Add messages, texts or headers without a value; return their ids."""
        for topic in ("in", "out", "in-dead"):
            self.make(topic)
        found: dict[int, str] = {}

        def note(number: int) -> Any:
            return lambda error, message: found.update({number: f"{message.partition()}-{message.offset()}"})

        for number, each in enumerate(messages):
            value, headers = (each, None) if isinstance(each, str) else (None, dict(each))
            self._producer.produce(self._prefix + "in", value, key, headers=headers, on_delivery=note(number))
        self._producer.flush(WAIT_S)
        return [found[number] for number in range(len(messages))]

    def _reader(self, group: str = "reader") -> Consumer:
        return Consumer({"bootstrap.servers": self.server, "group.id": group, "log_level": 0})

    def _ends(self, reader: Consumer, topic: str) -> dict[int, int]:
        name = self._prefix + topic
        partitions = reader.list_topics(name, timeout=WAIT_S).topics[name].partitions
        return {
            each: reader.get_watermark_offsets(TopicPartition(name, each), timeout=WAIT_S)[1] for each in partitions
        }

    def count(self, topic: str) -> int:
        reader = self._reader()
        try:
            return sum(self._ends(reader, topic).values())
        finally:
            reader.close()

    def entries(self, topic: str) -> list[dict[str, str]]:
        """Return the messages of a topic: headers, and the value as `data`."""
        reader = self._reader()
        try:
            ends = self._ends(reader, topic)
            reader.assign([TopicPartition(self._prefix + topic, each, 0) for each in ends])
            found: list[Any] = []
            while len(found) < sum(ends.values()):
                found += [each for each in reader.consume(100, 1) if each.error() is None]
        finally:
            reader.close()
        return [
            {name: value.decode() for name, value in each.headers() or ()}
            | {"data": (each.value() or b"").decode(), "key": (each.key() or b"").decode()}
            for each in found
        ]

    def deliver_in_vain(self, times: int) -> None:
        """Commit what consumers leave that got all messages and ended before an answer."""
        reader = self._reader(self.group)
        try:
            offsets = [
                TopicPartition(self._prefix + "in", number, 0, f"naiad {times} {end}")
                for number, end in self._ends(reader, "in").items()
            ]
            reader.commit(offsets=offsets, asynchronous=False)
        finally:
            reader.close()

    def answers(self) -> list[dict[str, Any]]:
        return [{"id": each["id"], **json.loads(each["data"])} for each in self.entries("out")]

    def open_count(self) -> int:
        """Return how many messages the group has not committed."""
        reader = self._reader(self.group)
        try:
            ends = self._ends(reader, "in")
            name = self._prefix + "in"
            committed = reader.committed([TopicPartition(name, each) for each in ends], timeout=WAIT_S)
            return sum(ends[each.partition] - max(0, each.offset) for each in committed)
        finally:
            reader.close()
