"""Threads that wait at one line: one reads at a time, for all."""

import queue
import threading
from collections.abc import Callable

import pytest

from naiad.worker.api.iteration import LeaderFollowerLock, Waiter


class Wish(Waiter):
    def __init__(self) -> None:
        super().__init__()
        self.came = False

    @property
    def is_done(self) -> bool:
        return self.came


class Line:
    """Messages are the wishes that come true."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Wish] = queue.Queue()
        self.turns = LeaderFollowerLock(self._read)
        self.reading = 0
        self.most_reading = 0

    def _read(self, may_busy_poll: bool) -> None:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        wish = self.messages.get(timeout=60)
        self.reading -= 1
        wish.came = True
        self.turns.wake(wish)


def test_single_waiter_reads_until_done():
    line, first, second = Line(), Wish(), Wish()
    line.messages.put(second)
    line.messages.put(first)
    line.turns.wait(first)
    assert second.came
    line.turns.wait(second)  # it is done already, and nothing is read
    assert line.messages.empty()


def test_many_wait_in_any_order_and_one_reads():
    line = Line()
    wishes = [Wish() for _ in range(24)]
    threads = [threading.Thread(target=line.turns.wait, args=(wish,)) for wish in wishes]
    for thread in threads:
        thread.start()
    for wish in reversed(wishes):
        line.messages.put(wish)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert line.most_reading == 1


def test_a_reader_that_fails_hands_the_turn_on():
    line, good = Line(), Wish()
    is_broken = True
    read = line._read

    def fail_once(may_busy_poll: bool) -> None:
        nonlocal is_broken
        if is_broken:
            is_broken = False
            raise KeyboardInterrupt
        read(may_busy_poll)

    line.turns = LeaderFollowerLock(fail_once)
    line.messages.put(good)
    caught: list[BaseException] = []

    def wait(wish: Wish) -> None:
        try:
            line.turns.wait(wish)
        except KeyboardInterrupt as error:
            caught.append(error)

    interrupted = threading.Thread(target=wait, args=(Wish(),))
    interrupted.start()
    interrupted.join(60)
    line.turns.wait(good)
    assert good.came
    assert len(caught) == 1


class Interrupted(queue.SimpleQueue):
    """A signal handler of the model ends the sleep on it."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def get(self) -> None:
        self._meanwhile()
        raise TimeoutError


@pytest.mark.parametrize("was_rung", [True, False])
def test_interrupted_sleeper_does_not_take_turn(was_rung):
    """Neither does it keep the turn that it was given just then, nor is it given one later."""
    line, gone, other = Line(), Wish(), Wish()
    turns = line.turns

    def give_it_the_turn() -> None:
        with turns._guard:
            turns._is_taken = False
            turns._asleep.discard(gone)

    gone.bell = Interrupted(give_it_the_turn if was_rung else lambda: None)
    turns._is_taken = True  # by a reading thread
    waiting = threading.Thread(target=turns.wait, args=(other,))
    waiting.start()
    while other not in turns._asleep:
        waiting.join(0.001)
    with pytest.raises(TimeoutError):
        turns.wait(gone)
    if not was_rung:
        assert turns._asleep == {other}
        with turns._guard:
            turns._is_taken = False
            turns._pass_on()
    line.messages.put(other)
    waiting.join(60)
    assert not waiting.is_alive()
