"""The servers that have a model: which one gets the next request, and which are away."""

from collections.abc import Collection, Sequence

from naiad.core.errors import excerpt, unavailable
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader
from naiad.engine.remote.remote_port import RemoteServer

CHECK_NS = 5_000_000_000
"""Between two checks of a server that answers."""
AWAY_NS = 1_000_000_000
"""Between two checks of one that does not; meanwhile it gets no request."""
_MAX_SEQUENCES, _MAX_SEQUENCES_BYTES, _MAX_SEQUENCE_BYTES = 1 << 16, 16 << 20, 1 << 16
"""The longest silent ones are forgotten; their next requests are errors of the sequence."""
_ENTRY_BYTES = 128
"""About the size of what is kept of a sequence, beside a text as its id."""


class RemoteAddress:
    """One server, and what is known of the model there."""

    __slots__ = ("check_ns", "difference", "is_checking", "problem", "server")

    def __init__(self, server: RemoteServer) -> None:
        self.server = server
        self.problem = "it has not answered yet"
        """Why it gets no requests; empty if it gets them."""
        self.difference = ""
        """How the model there differs, which is then the problem."""
        self.check_ns = 0
        """When the next check is due."""
        self.is_checking = False

    def note_ready(self, now_ns: int) -> None:
        """Note that the model there is ready, and the same as here."""
        self.problem = self.difference = ""
        self.check_ns = now_ns + CHECK_NS

    def note_problem(self, problem: str, now_ns: int, difference: str = "") -> None:
        """Note that it cannot execute requests for now."""
        self.problem, self.difference = problem, difference
        self.check_ns = now_ns + AWAY_NS


class RemoteAddresses:
    """Round robin over the servers that answer; requests of a sequence go to the one that has it. Pure."""

    def __init__(self, servers: Sequence[RemoteServer]) -> None:
        self.all = [RemoteAddress(server) for server in servers]
        self._next = 0
        self._sequences: BoundedCache[int | str, RemoteAddress] = BoundedCache(
            max_entries=_MAX_SEQUENCES, max_bytes=_MAX_SEQUENCES_BYTES, max_entry_bytes=_MAX_SEQUENCE_BYTES
        )

    @property
    def problem(self) -> str:
        """Why no server can execute requests; empty if one can."""
        if any(not each.problem for each in self.all):
            return ""
        return "; ".join(f"{each.server.url}: {each.problem}" for each in self.all)

    def choose(self, header: RequestHeader, excluded: Collection[RemoteAddress] = ()) -> RemoteAddress:
        """Return the server for a request. Raises InferError(UNAVAILABLE) if none can execute it."""
        sequence = header.sequence_id
        if sequence and not header.sequence_start:
            return self._holding(header, excluded)
        free = [each for each in self.all if not each.problem and each not in excluded]
        if not free:
            raise unavailable(self.problem or "no server takes the request")
        chosen = free[self._next % len(free)]
        self._next += 1
        if sequence and not header.sequence_end:
            self._keep(sequence, chosen)
        return chosen

    def _keep(self, sequence: int | str, address: RemoteAddress) -> None:
        """Note where a sequence is, as the one that was used last."""
        size = len(sequence) if isinstance(sequence, str) else 0
        self._sequences.remember(sequence, address, _ENTRY_BYTES + size)

    def _holding(self, header: RequestHeader, excluded: Collection[RemoteAddress]) -> RemoteAddress:
        """Return the server that has begun a sequence: another one does not know it."""
        sequence = header.sequence_id
        chosen = self._sequences.get(sequence)
        if chosen is None and len(self.all) == 1:
            chosen = self.all[0]
        if chosen is None:
            raise unavailable(
                f"no server has begun sequence {excerpt(str(sequence))}; its first request needs sequence_start"
            )
        if header.sequence_end:
            self._sequences.forget(sequence)
        else:
            self._keep(sequence, chosen)
        if chosen.problem or chosen in excluded:
            raise unavailable(
                f"{chosen.server.url}, which has sequence {excerpt(str(sequence))}: {chosen.problem or 'refused it'}"
            )
        return chosen
