import pytest

from naiad.wire.http2.keepalive import Keepalive, KeepaliveRules, KeepaliveStep, PingStrikes

S = 10**9
NOTHING, PING, DEAD = KeepaliveStep.NOTHING, KeepaliveStep.PING, KeepaliveStep.DEAD
RETIRE, EXPIRE = KeepaliveStep.RETIRE, KeepaliveStep.EXPIRE


class Life:
    """A connection with a clock that is set by hand."""

    def __init__(self, spread=1.0, **rules):
        self.keepalive = Keepalive(KeepaliveRules(**rules), 0, spread)
        self.heard_ns = 0
        self.sent_count = 0
        self.has_calls = True

    def at(self, seconds):
        now_ns = int(seconds * S)
        return self.keepalive.next_step(now_ns, self.heard_ns, self.sent_count, has_calls=self.has_calls)

    def hear(self, seconds):
        self.heard_ns = int(seconds * S)


# --- our own PINGs


def test_silent_peer_is_pinged_once_then_closed():
    life = Life(time_s=10, timeout_s=3)
    assert [life.at(t) for t in (9, 10, 11, 12.9, 13)] == [NOTHING, PING, NOTHING, NOTHING, DEAD]


def test_anything_that_is_heard_puts_the_ping_off():
    life = Life(time_s=10)
    life.hear(8)
    assert [life.at(t) for t in (10, 17.9, 18)] == [NOTHING, NOTHING, PING]


def test_any_data_after_ping_proves_life():
    life = Life(time_s=10, timeout_s=3)
    assert life.at(10) is PING
    life.hear(10.5)
    assert [life.at(t) for t in (13, 20.4, 20.5)] == [NOTHING, NOTHING, PING]


@pytest.mark.parametrize(("permitted", "expected"), [(False, NOTHING), (True, PING)])
def test_connection_without_calls_is_asked_only_if_permitted(permitted, expected):
    life = Life(time_s=10, permits_without_calls=permitted)
    life.has_calls = False
    assert life.at(10) is expected


def test_pings_in_a_row_are_limited():
    life = Life(time_s=10, pings_without_data=2)
    for second in (10, 21):
        assert life.at(second) is PING
        life.hear(second + 0.001)
    assert life.at(32) is NOTHING
    life.sent_count += 1
    assert life.at(33) is PING


def test_no_limit_of_pings_in_a_row():
    life = Life(time_s=10, pings_without_data=0)
    for second in range(10, 1000, 11):
        assert life.at(second) is PING
        life.hear(second + 0.5)


def test_defaults_ask_after_two_hours():
    life = Life()
    assert [life.at(t) for t in (7199, 7200, 7219, 7220)] == [NOTHING, PING, NOTHING, DEAD]


# --- age


def test_no_age_by_default():
    life = Life(time_s=1e9)
    assert life.at(1e8) is NOTHING


def test_old_connection_retires_once_and_finishes_calls():
    life = Life(age_s=60)
    assert [life.at(t) for t in (59, 60, 61, 6000)] == [NOTHING, RETIRE, NOTHING, NOTHING]


def test_grace_ends_the_calls_of_an_old_connection():
    life = Life(age_s=60, age_grace_s=5)
    assert [life.at(t) for t in (60, 64.9, 65)] == [RETIRE, NOTHING, EXPIRE]


def test_grace_begins_at_age_despite_late_sweep():
    life = Life(age_s=60, age_grace_s=5)
    assert [life.at(t) for t in (100, 101)] == [RETIRE, EXPIRE]


def test_ages_are_spread():
    life = Life(spread=0.9, age_s=60)
    assert [life.at(t) for t in (53, 54)] == [NOTHING, RETIRE]


def test_retired_connection_is_still_watched():
    life = Life(age_s=60, time_s=100, timeout_s=3)
    assert [life.at(t) for t in (60, 100, 103)] == [RETIRE, PING, DEAD]


# --- the peer's PINGs


def strikes(**rules):
    return PingStrikes(KeepaliveRules(**rules))


def test_first_ping_is_always_welcome():
    assert not strikes(peer_strikes=1).is_one_too_many(0, 0, has_calls=True)


def test_pings_in_their_interval_are_never_too_many():
    counted = strikes(peer_interval_s=300, peer_strikes=1)
    assert not any(counted.is_one_too_many(t * S, 0, has_calls=True) for t in range(0, 10_000, 300))


def test_early_pings_are_forgiven_up_to_the_limit():
    counted = strikes(peer_interval_s=300, peer_strikes=2)
    found = [counted.is_one_too_many(t * S, 0, has_calls=True) for t in range(5)]
    assert found == [False, False, False, True, True]


def test_what_is_sent_wipes_the_strikes_out():
    counted = strikes(peer_interval_s=300, peer_strikes=1)
    found = [counted.is_one_too_many(t * S, t // 2, has_calls=True) for t in range(100)]
    assert not any(found)


def test_without_calls_two_hours_have_to_pass():
    counted = strikes(peer_interval_s=1, peer_strikes=1)
    found = [counted.is_one_too_many(t * S, 0, has_calls=False) for t in (0, 7200, 7300, 7400)]
    assert found == [False, False, False, True]


def test_permitted_pings_without_calls_keep_the_interval():
    counted = strikes(peer_interval_s=60, peer_strikes=1, permits_without_calls=True)
    assert not any(counted.is_one_too_many(t * S, 0, has_calls=False) for t in range(0, 1000, 60))


def test_no_strikes_means_that_all_is_forgiven():
    counted = strikes(peer_strikes=0)
    assert not any(counted.is_one_too_many(t, 0, has_calls=True) for t in range(1000))


def test_clients_may_ask_during_a_silent_call() -> None:
    strikes = PingStrikes(KeepaliveRules())
    assert not any(strikes.is_one_too_many(number * 10 * 10**9, 0, has_calls=True) for number in range(100))
    fast = PingStrikes(KeepaliveRules())
    assert any(fast.is_one_too_many(number * 10**9, 0, has_calls=True) for number in range(10))
    idle = PingStrikes(KeepaliveRules())
    assert any(idle.is_one_too_many(number * 10 * 10**9, 0, has_calls=False) for number in range(10))
