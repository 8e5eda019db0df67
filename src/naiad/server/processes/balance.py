"""Which process gets the next connection: the one that has the fewest on that port.

Connections of inference clients are few and live long, so chance would leave processes idle: with eight connections
and two processes, hashing gives both their four in a quarter of all cases.
"""

from collections.abc import Sequence


class Balance:
    """Counts the open connections of each process by port."""

    def __init__(self, port_count: int) -> None:
        self._port_count = port_count
        self._open: dict[int, list[int]] = {}
        self._turn = 0
        self._last_turn: dict[int, int] = {}

    def add(self, slot: int) -> None:
        """Give connections to a process from now on."""
        self._open[slot] = [0] * self._port_count
        self._last_turn[slot] = 0

    def remove(self, slot: int) -> None:
        """Give nothing to a process any more; harmless when it got nothing."""
        self._open.pop(slot, None)

    def ranked(self, port: int) -> Sequence[int]:
        """Return the processes in the order in which to try them.

        Fewest connections on the port first; among equals the fewest in all, then the one whose turn is longest ago.
        """
        counts, turns = self._open, self._last_turn
        return sorted(counts, key=lambda slot: (counts[slot][port], sum(counts[slot]), turns[slot]))

    def handed(self, slot: int, port: int) -> None:
        """Count a connection that a process was given."""
        self._open[slot][port] += 1
        self._turn += 1
        self._last_turn[slot] = self._turn

    def closed(self, slot: int, counts: Sequence[int]) -> None:
        """Count connections that a process has closed, by port."""
        held = self._open.get(slot)
        if held is not None:
            for port, count in enumerate(counts):
                held[port] -= count
