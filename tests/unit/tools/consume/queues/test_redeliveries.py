"""Deliveries after a delay, and writes that were half done."""

from naiad.tools.consume.queues.message_queue import QueueMessage
from naiad.tools.consume.queues.redeliveries import HalfWritten, Redeliveries


def test_messages_come_again_after_their_delay() -> None:
    waiting = Redeliveries()
    waiting.add(QueueMessage("late", {}), 600)
    waiting.add(QueueMessage("a", {b"x": b"1"}, 2), 0)
    waiting.add(QueueMessage("b", {}), 0)
    assert waiting.take(1) == [QueueMessage("a", {b"x": b"1"}, 3)]
    assert waiting.take(5) == [QueueMessage("b", {}, 2)]
    waiting.withdraw(lambda message: message.id == "late")
    assert waiting.take(5) == [QueueMessage("late", {}, 1, is_gone=True)]
    assert waiting.take(5) == []


def test_a_repeated_write_has_only_what_is_missing() -> None:
    half, messages = HalfWritten(), [{b"a": b"1"}, {b"a": b"2"}]
    assert list(half.begin(messages)) == [(0, messages[0]), (1, messages[1])]
    number = half.write_number
    half.note(0)
    assert list(half.begin(messages)) == [(1, messages[1])]
    assert half.write_number == number
    half.end()
    assert list(half.begin([messages[0]])) == [(0, messages[0])]
    assert half.write_number != number
