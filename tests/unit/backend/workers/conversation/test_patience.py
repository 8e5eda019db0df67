import pytest

from naiad.backend.workers.conversation.patience import Patience, reads_nothing

MS = 1_000_000
BEGIN_NS = 10**12


def waited_ms(patience: Patience, begin_ns: int) -> int:
    """Return how long a slow client is waited for when it is looked at every 20 ms."""
    now_ns = begin_ns
    while patience.spend(now_ns):
        now_ns += 20 * MS
    return (now_ns - begin_ns) // MS


def test_slow_clients_share_one_allowance() -> None:
    patience = Patience()
    assert 300 <= waited_ms(patience, BEGIN_NS) <= 340
    later = [waited_ms(patience, BEGIN_NS + number * 500 * MS) for number in range(1, 10)]
    assert sum(later) <= 9 * (40 + 500 // 20)


def test_allowance_comes_back_unless_it_is_used() -> None:
    patience = Patience()
    waited_ms(patience, BEGIN_NS)
    assert waited_ms(patience, BEGIN_NS + 60_000 * MS) >= 300
    # It does not grow beyond the whole.
    assert waited_ms(patience, BEGIN_NS + 3_600_000 * MS) <= 340


def test_client_that_catches_up_gives_back_its_time() -> None:
    patience = Patience()
    for number in range(50):
        begin_ns = BEGIN_NS + number * 1000 * MS
        assert all(patience.spend(begin_ns + step * 20 * MS) for step in range(12))
        patience.give_back()


def test_time_of_a_failed_client_is_gone() -> None:
    patience = Patience()
    waited_ms(patience, BEGIN_NS)
    patience.settle()
    patience.give_back()
    assert not patience.spend(BEGIN_NS + 340 * MS)


def test_time_between_two_waits_is_not_spent() -> None:
    patience = Patience()
    assert all(patience.spend(BEGIN_NS + number * 400 * MS) for number in range(100))


@pytest.mark.parametrize(
    ("paused_bytes", "unread_bytes", "expected"),
    [
        (1000, 1000, True),  # it takes nothing
        (0, 1000, True),  # nor does it here: more has come since
        (1000, 999, False),  # it reads
        (1000, 0, False),  # it has read everything
        (0, 0, False),  # the server is still encoding the response
        (-1, -1, False),  # the transport does not know
        (-1, 1000, False),
    ],
)
def test_client_that_reads_nothing(paused_bytes: int, unread_bytes: int, expected: bool) -> None:
    assert reads_nothing(paused_bytes, unread_bytes) is expected
