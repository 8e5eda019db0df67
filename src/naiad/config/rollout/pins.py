"""Which version each live sequence began on. Pure: every time is an argument."""

from collections import OrderedDict

MAX_PINS = 1 << 16


class _Pin:
    __slots__ = ("has_ended", "in_flight", "touched_ns", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.in_flight = 0
        self.touched_ns = 0
        self.has_ended = False


class SequencePins:
    """The versions of sequences. A pin lasts until the last response of its sequence, or until it is idle.

    The oldest idle pins are dropped beyond `MAX_PINS`.
    """

    def __init__(self, idle_ns: int, limit: int = MAX_PINS) -> None:
        """`idle_ns`: a sequence without activity for this time has ended."""
        self.idle_ns = idle_ns
        self._limit = limit
        self._pins: OrderedDict[int | str, _Pin] = OrderedDict()
        """The one that was active last is at the end."""

    def __len__(self) -> int:
        return len(self._pins)

    def find(self, sequence_id: int | str, now_ns: int) -> int | None:
        """Return the version of a live sequence; None without one."""
        pin = self._pins.get(sequence_id)
        return None if pin is None or self._is_over(pin, now_ns) else pin.version

    def begin(self, sequence_id: int | str, version: int, now_ns: int, *, is_last: bool) -> None:
        """Note a request of a sequence that is submitted; `end` follows, or `undo` if it is rejected."""
        pin = self._pins.get(sequence_id)
        if pin is None:
            pin = self._pins[sequence_id] = _Pin(version)
        pin.version = version
        pin.in_flight += 1
        pin.has_ended = is_last
        self._touch(sequence_id, pin, now_ns)
        self._sweep(now_ns)

    def undo(self, sequence_id: int | str) -> None:
        """Undo `begin` for a request that was rejected."""
        pin = self._pins.get(sequence_id)
        if pin is None:
            return
        pin.in_flight -= 1
        if pin.in_flight <= 0:
            del self._pins[sequence_id]

    def end(self, sequence_id: int | str, now_ns: int) -> None:
        """Note the final response of a request."""
        pin = self._pins.get(sequence_id)
        if pin is None:
            return
        pin.in_flight -= 1
        if pin.in_flight <= 0 and pin.has_ended:
            del self._pins[sequence_id]
        else:
            self._touch(sequence_id, pin, now_ns)

    def _touch(self, sequence_id: int | str, pin: _Pin, now_ns: int) -> None:
        pin.touched_ns = now_ns
        self._pins.move_to_end(sequence_id)

    def _is_over(self, pin: _Pin, now_ns: int) -> bool:
        return pin.in_flight <= 0 and now_ns - pin.touched_ns > self.idle_ns

    def _sweep(self, now_ns: int) -> None:
        """Drop pins of sequences that have ended, a few at a time: one is added at a time."""
        for _ in range(2):
            sequence_id, pin = next(iter(self._pins.items()))
            if self._is_over(pin, now_ns) or (len(self._pins) > self._limit and pin.in_flight <= 0):
                del self._pins[sequence_id]
            elif pin.in_flight > 0:
                # Its requests execute, so it is not idle; the next one may be.
                self._pins.move_to_end(sequence_id)
            else:
                return
            if not self._pins:
                return
