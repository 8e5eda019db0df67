"""Each reader gets every entry of every process once, or its number."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.telemetry.live.live_answer import TailPart
from naiad.telemetry.live.tail import Tail, TailReader


def test_reader_begins_after_its_first_look() -> None:
    tail: Tail[int] = Tail(3)
    tail.add(1)
    reader: TailReader[int] = TailReader()
    assert reader.read([tail.part()], 10) == ([], 0)
    tail.add(2)
    assert reader.read([tail.part()], 10) == ([2], 0)
    assert reader.read([tail.part()], 10) == ([], 0)


def test_process_that_starts_later_is_read_from_its_beginning() -> None:
    reader: TailReader[str] = TailReader()
    reader.read([TailPart(1, 5, ("old",))], 10)
    assert reader.read([TailPart(1, 5, ("old",)), TailPart(2, 2, ("a", "b"))], 10) == (["a", "b"], 0)


@given(st.lists(st.lists(st.integers(), max_size=9), max_size=6), st.integers(1, 5), st.integers(1, 5))
def test_kept_and_left_out_entries_are_all(rounds: list[list[int]], kept: int, limit: int) -> None:
    tail: Tail[int] = Tail(kept)
    reader: TailReader[int] = TailReader()
    reader.read([tail.part()], limit)
    for entries in rounds:
        for entry in entries:
            tail.add(entry)
        found, left_out = reader.read([tail.part()], limit)
        assert len(found) + left_out == len(entries)
        assert found == entries[len(entries) - len(found) :]
        assert len(found) <= min(kept, limit)
