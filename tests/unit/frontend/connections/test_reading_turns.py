"""A turn of the loop ends, connections go on in turn, few bytes wait briefly, and an idle loop pays nothing."""

import pytest

from naiad.frontend.connections import reading_turns
from naiad.frontend.connections.reading_turns import ReadingTurns
from support.http2_scene import FakeLoop

MS = 1_000_000
FEW, MANY = 100, 100_000


class Reads:
    """Connections of which each read takes some time of a clock that only reads move."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.loop = FakeLoop()
        self.turns = ReadingTurns(self.loop.call_soon, lambda: self.now_ns)
        self.served: list[object] = []

    def read(self, name: object, *, size: int = MANY, takes_ns: int = 2 * MS, yields: int = 0) -> None:
        """Read bytes of a connection, as its protocol does; it yields so often before it is done."""

        def go_on() -> None:
            self._serve(name, takes_ns, yields)

        if self.now_ns >= self.turns.look_ns and self.turns.is_over(self.now_ns):
            self.turns.postpone(go_on, size)
        else:
            go_on()

    def _serve(self, name: object, takes_ns: int, yields: int) -> None:
        self.served.append(name)
        self.now_ns += takes_ns
        if yields:
            self.turns.yield_to_others(lambda: self._serve(name, takes_ns, yields - 1))

    def turn(self) -> list[object]:
        """Run the callbacks of a turn; return what it served, and what was read since the last."""
        self.loop.run_soon()
        served, self.served = self.served, []
        return served


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(reading_turns, "_LONGEST_NS", 10 * MS)
    monkeypatch.setattr(reading_turns, "_UNWATCHED_NS", 10 * MS)
    return Reads()


def test_each_turn_ends_after_its_time(reads: Reads) -> None:
    for number in range(100):
        reads.read(number)
    turns = [reads.served]
    reads.served = []
    while reads.turns.waiting_count:
        turns.append(reads.turn())
    assert {len(served) for served in turns} == {5}
    assert [name for served in turns for name in served] == list(range(100))


def test_waiting_connections_precede_those_that_were_read(reads: Reads) -> None:
    for name in "abcdefgh":
        reads.read(name, yields=2)
    assert reads.served == list("abcde")
    reads.served = []
    turns = [reads.turn() for _ in range(4)]
    assert turns == [list("fghab"), list("cdefg"), list("habcd"), list("efgh")]


def test_what_arrives_while_others_wait_goes_behind_them(reads: Reads) -> None:
    for name in "abcdefgh":
        reads.read(name)
    reads.turn()
    reads.read("i")  # the turn has read f, g and h, and has time for one more
    reads.read("j")
    reads.read("k")
    assert reads.served == ["i", "j"]
    assert reads.turn() == ["i", "j", "k"]


def test_while_connections_wait_everything_that_arrives_waits(reads: Reads) -> None:
    for number in range(20):
        reads.read(number)
    reads.turn()
    reads.read("late")
    assert "late" not in reads.served
    while reads.turns.waiting_count:
        last = reads.turn()
    assert last[-1] == "late"


def test_few_bytes_precede_many_for_half_a_turn(reads: Reads) -> None:
    for number in range(20):
        reads.read(number)
    for number in range(100, 200):
        reads.read(number, size=FEW, takes_ns=MS)
    reads.served = []
    served = reads.turn()
    assert served == [100, 101, 102, 103, 104, 5, 6, 7]
    reads.read("lone", size=FEW, takes_ns=MS)
    while reads.turns.waiting_count:
        served += reads.turn()
    assert len(served) == len(set(served)) == 15 + 100 + 1, "every connection is served once"


def test_short_turns_are_watched_now_and_then(reads: Reads) -> None:
    callbacks = 0
    for _ in range(1000):
        reads.read("lone", takes_ns=50_000)
        callbacks += len(reads.loop.soon)
        reads.turn()
    assert 0 < callbacks <= 6, "50 ms"
    assert not reads.turns.waiting_count


def test_connections_go_on_after_one_has_failed(reads: Reads) -> None:
    for name in "abcde":
        reads.read(name)
    reads.turns.postpone(lambda: 1 // 0, MANY)
    reads.read("f")
    with pytest.raises(ZeroDivisionError):
        reads.turn()
    reads.served = []
    assert reads.turn() == ["f"]
