"""Totals of the live stream over processes that serve and processes that have exited."""

from naiad.cluster.packed_live import pack_live, unpack_live
from naiad.cluster.supervisor.live_totals import LiveTotals
from naiad.core.slices import finish
from naiad.telemetry.live.live_answer import LiveAnswer, sum_rows
from naiad.telemetry.statistics.live_counts import LiveCounts

M = ("m", "1")


def totals(live: LiveTotals) -> LiveCounts:
    return sum_rows(live.to_add())[M]


def test_total_does_not_fall_when_a_process_dies() -> None:
    live = LiveTotals()
    live.note(0, {M: LiveCounts(success=5, executing=1)})
    live.note(1, {M: LiveCounts(success=7, executing=1)})
    assert totals(live) == LiveCounts(success=12, executing=2)
    live.retire(1)
    assert totals(live) == LiveCounts(success=12, executing=1)
    live.note(1, {M: LiveCounts(success=1)})
    assert totals(live) == LiveCounts(success=13, executing=1)


def test_reload_forgets_what_exited_processes_counted() -> None:
    live = LiveTotals()
    live.note(0, {M: LiveCounts(success=5)})
    live.note(1, {M: LiveCounts(success=7)})
    live.retire(1)
    live.note(0, {M: LiveCounts(success=1)})
    assert totals(live) == LiveCounts(success=1)


def test_rows_are_the_same_after_the_way_between_processes() -> None:
    rows = {(f"m{number}", "1"): LiveCounts(success=number, batch_sizes=((1, number),)) for number in range(200)}
    answer = LiveAnswer(is_ready=True, cpu_s=1.5, resident_bytes=2, in_flight=3, rows=rows)
    packed = finish(pack_live(answer))
    assert packed.rest.rows == {}
    assert len(packed.pieces) == 4
    assert finish(unpack_live(packed)) == answer
