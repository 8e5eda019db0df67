"""Restarts of processes, with a manual clock."""

from naiad.cluster.supervisor.restarts import DELAYS_NS, STABLE_NS, Supervision


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


def test_delays_grow_and_then_the_server_ends() -> None:
    supervision = open_supervision()
    now_ns = 0
    for delay_ns in DELAYS_NS:
        supervision.died(1, now_ns, "x")
        assert supervision.wake_ns() == now_ns + delay_ns
        now_ns += delay_ns
        supervision.started(1)
        supervision.serves(1, now_ns)
        assert not supervision.verdict
    supervision.died(1, now_ns, "exited with status 3")
    assert supervision.verdict == (
        f"process 2 has died {len(DELAYS_NS) + 1} times in a row, each time within 60 s; "
        "the last time: exited with status 3"
    )


def test_deaths_while_starting_again_count_as_well() -> None:
    supervision = open_supervision()
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
