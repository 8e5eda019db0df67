"""Restarts of processes, with a manual clock."""

from naiad.cluster.supervisor.restarts import DELAYS_NS, LONGEST_DELAY_NS, STABLE_NS, Supervision


def open_supervision(count: int = 2) -> Supervision:
    supervision = Supervision(count)
    for slot in range(count):
        supervision.started(slot)
        supervision.serves(slot, 0)
    return supervision


def test_every_slot_is_due_at_first() -> None:
    supervision = Supervision(3)
    assert supervision.due(0) == [0, 1, 2]
    supervision.started(1)
    assert supervision.due(0) == [0, 2]


def test_opens_when_every_slot_serves() -> None:
    supervision = Supervision(2)
    supervision.started(0)
    supervision.started(1)
    supervision.serves(1, 5)
    assert not supervision.is_open
    supervision.serves(0, 6)
    assert supervision.is_open
    assert supervision.all_serve


def test_a_death_before_that_is_a_failed_start() -> None:
    supervision = Supervision(2)
    supervision.started(0)
    supervision.started(1)
    supervision.serves(0, 1)
    supervision.died(1, 2, "killed by SIGKILL")
    assert supervision.verdict == "process 2 did not start: killed by SIGKILL"


def test_the_first_reason_stays() -> None:
    supervision = Supervision(2)
    supervision.started(0)
    supervision.started(1)
    supervision.died(1, 2, "first")
    supervision.died(0, 3, "second")
    assert supervision.verdict == "process 2 did not start: first"


def test_a_dead_process_is_replaced_after_a_delay() -> None:
    supervision = open_supervision()
    supervision.died(0, 1000, "x")
    assert not supervision.verdict
    assert supervision.is_open
    assert not supervision.all_serve
    due_ns = 1000 + DELAYS_NS[0]
    assert supervision.wake_ns() == due_ns
    assert supervision.due(due_ns - 1) == []
    assert supervision.due(due_ns) == [0]
    supervision.started(0)
    assert supervision.wake_ns() == 0
    assert supervision.due(due_ns) == []


def die_often(supervision: Supervision, slot: int, times: int, now_ns: int = 0) -> int:
    """Let processes of a slot die as soon as they serve; return the time of the last death."""
    for _ in range(times):
        supervision.started(slot)
        supervision.serves(slot, now_ns)
        supervision.died(slot, now_ns, "exited with status 3")
        now_ns = max(now_ns, supervision.wake_ns())
    return now_ns


def test_delays_grow_while_another_process_serves() -> None:
    supervision = open_supervision()
    delays: list[int] = []
    for now_ns in range(12):
        supervision.started(1)
        supervision.died(1, now_ns, "x")
        delays.append(supervision.wake_ns() - now_ns)
    assert delays[: len(DELAYS_NS)] == list(DELAYS_NS)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_NS
    assert not supervision.verdict
    assert supervision.failing(100) == [1]
    assert "after 12 deaths in a row" in supervision.outlook(1)


def test_server_ends_when_all_processes_keep_dying() -> None:
    supervision = open_supervision()
    now_ns = die_often(supervision, 0, 2 * len(DELAYS_NS))
    die_often(supervision, 1, len(DELAYS_NS), now_ns)
    assert not supervision.verdict
    assert supervision.failing(now_ns) == [0]
    die_often(supervision, 1, 1, now_ns)
    assert supervision.verdict == (
        f"each of the 2 processes has died {len(DELAYS_NS) + 1} times in a row or more, each time within 60 s; "
        "the last time: exited with status 3"
    )


def test_only_process_that_keeps_dying_ends_the_server() -> None:
    supervision = open_supervision(1)
    die_often(supervision, 0, len(DELAYS_NS))
    assert not supervision.verdict
    die_often(supervision, 0, 1)
    assert supervision.verdict.startswith("the only process has died 6 times in a row")


def test_process_that_became_stable_keeps_the_server() -> None:
    supervision = open_supervision()
    now_ns = die_often(supervision, 0, len(DELAYS_NS) + 1)
    supervision.started(0)
    supervision.serves(0, now_ns)
    die_often(supervision, 1, len(DELAYS_NS), now_ns)
    assert not supervision.verdict
    now_ns += STABLE_NS
    die_often(supervision, 1, 1, now_ns)
    assert supervision.failing(now_ns) == [1]
    assert not supervision.verdict


def test_deaths_while_starting_again_count_as_well() -> None:
    supervision = open_supervision(1)
    for _ in range(len(DELAYS_NS) + 1):
        supervision.started(0)
        supervision.died(0, 0, "x")
    assert supervision.verdict


def test_a_stable_life_forgives_what_was_before() -> None:
    supervision = open_supervision()
    now_ns = 0
    for _ in range(3 * len(DELAYS_NS)):
        supervision.started(0)
        supervision.serves(0, now_ns)
        now_ns += STABLE_NS
        supervision.died(0, now_ns, "x")
        assert supervision.wake_ns() == now_ns + DELAYS_NS[0]
    assert not supervision.verdict


def test_deaths_count_per_slot() -> None:
    supervision = open_supervision(8)
    for slot in range(8):
        supervision.died(slot, 0, "x")
    assert not supervision.verdict
    assert supervision.due(DELAYS_NS[0]) == list(range(8))
