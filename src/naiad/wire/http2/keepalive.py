"""gRPC's keepalive and connection age for a server: PINGs of our own, PINGs of the peer, a life that ends (A8, A9).

Everything is a function of the time and of counts that the connection keeps, so an idle connection has no timer: its
owner asks `Keepalive.next_step` about once a second.
"""

import enum
from dataclasses import dataclass

_IDLE_PING_INTERVAL_NS = 7_200 * 10**9  # gRPC's: without calls a peer has little reason to ask
_CALL_PING_INTERVAL_NS = 5 * 10**9
"""PINGs as rare as this are no strikes during a call: Go and Java clients may send one each 10 s."""
_NEVER = -(1 << 62)


@dataclass(frozen=True, slots=True)
class KeepaliveRules:
    """What both sides may do to find out whether the other lives; gRPC's defaults."""

    time_s: float = 7200.0
    """After this long without a byte from the peer it gets a PING."""
    timeout_s: float = 20.0
    """A peer that sends nothing for this long after the PING is taken for dead."""
    permits_without_calls: bool = False
    """PINGs are for connections without calls too, in both directions."""
    pings_without_data: int = 2
    """Most PINGs of ours in a row without an answer sent between them; 0 for any number."""
    peer_interval_s: float = 300.0
    """Least time between PINGs of the peer without an answer sent between them; each sooner one is a strike."""
    peer_strikes: int = 2
    """Strikes that are forgiven; 0 forgives all."""
    age_s: float = 0.0
    """After about this long the peer is asked to reconnect (GOAWAY); 0 for never."""
    age_grace_s: float = 0.0
    """How long the calls of an aged connection may last; 0 for any time."""


class PingStrikes:
    """Counts the PINGs of a peer that come too soon (gRPC: too_many_pings)."""

    __slots__ = ("_idle_interval_ns", "_interval_ns", "_last_ns", "_sent_count", "_strikes", "_tolerated")

    def __init__(self, rules: KeepaliveRules) -> None:
        self._interval_ns = _ns(rules.peer_interval_s)
        self._idle_interval_ns = self._interval_ns if rules.permits_without_calls else _IDLE_PING_INTERVAL_NS
        self._tolerated = rules.peer_strikes
        self._strikes = 0
        self._last_ns = _NEVER
        self._sent_count = 0

    def is_one_too_many(self, now_ns: int, sent_count: int, *, has_calls: bool) -> bool:
        """Take note of a PING; `sent_count` grows with every head and message that was sent to the peer."""
        if sent_count != self._sent_count:
            self._sent_count = sent_count
            self._strikes = 0
            self._last_ns = _NEVER
        interval_ns = min(self._interval_ns, _CALL_PING_INTERVAL_NS) if has_calls else self._idle_interval_ns
        is_early = now_ns - self._last_ns < interval_ns
        self._last_ns = now_ns
        if is_early:
            self._strikes += 1
        return is_early and self._strikes > self._tolerated > 0


class KeepaliveStep(enum.Enum):
    """What the owner of a connection has to do now."""

    NOTHING = enum.auto()
    PING = enum.auto()
    """Send a PING."""
    DEAD = enum.auto()
    """Drop the connection: the peer has not answered."""
    RETIRE = enum.auto()
    """Let no more calls begin; asked for once."""
    EXPIRE = enum.auto()
    """Drop the connection: its calls have outlasted the grace."""


class Keepalive:
    """The life of one connection."""

    __slots__ = ("_begin_ns", "_is_retired", "_pinged_ns", "_pings", "_rules", "_sent_count", "_spread")

    def __init__(self, rules: KeepaliveRules, now_ns: int, spread: float = 1.0) -> None:
        """`spread` is a factor on the age, so that connections that began together do not end together."""
        self._rules = rules
        self._begin_ns = now_ns
        self._spread = spread
        self._is_retired = False
        self._pinged_ns = 0
        """When the last PING was sent; 0 when the peer has been heard since."""
        self._pings = 0
        """PINGs since anything else was sent."""
        self._sent_count = 0

    def next_step(self, now_ns: int, heard_ns: int, sent_count: int, *, has_calls: bool) -> KeepaliveStep:
        """Return what to do; `heard_ns` is when the peer last sent anything, 0 for never."""
        step = self._age_step(now_ns)
        if step is not KeepaliveStep.NOTHING:
            return step
        if self._pinged_ns and heard_ns > self._pinged_ns:
            self._pinged_ns = 0
        if self._pinged_ns:
            is_dead = now_ns - self._pinged_ns >= _ns(self._rules.timeout_s)
            return KeepaliveStep.DEAD if is_dead else KeepaliveStep.NOTHING
        if now_ns - max(heard_ns, self._begin_ns) < _ns(self._rules.time_s) or not self._may_ping(
            sent_count, has_calls
        ):
            return KeepaliveStep.NOTHING
        self._pings += 1
        self._pinged_ns = now_ns
        return KeepaliveStep.PING

    def _age_step(self, now_ns: int) -> KeepaliveStep:
        rules = self._rules
        if not rules.age_s:
            return KeepaliveStep.NOTHING
        over_ns = now_ns - self._begin_ns - _ns(rules.age_s * self._spread)
        if over_ns >= 0 and not self._is_retired:
            self._is_retired = True
            return KeepaliveStep.RETIRE
        if self._is_retired and rules.age_grace_s and over_ns >= _ns(rules.age_grace_s):
            return KeepaliveStep.EXPIRE
        return KeepaliveStep.NOTHING

    def _may_ping(self, sent_count: int, has_calls: bool) -> bool:
        rules = self._rules
        if sent_count != self._sent_count:
            self._sent_count = sent_count
            self._pings = 0
        if not (has_calls or rules.permits_without_calls):
            return False
        return not rules.pings_without_data or self._pings < rules.pings_without_data


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
