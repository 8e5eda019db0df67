"""A model of sequences in one of several processes: each sequence has one process, which executes its requests."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from naiad.backend.api import Instance
from naiad.core.adaptive_state import AdaptiveState
from naiad.core.errors import InferError, UnknownSequenceError
from naiad.core.request import InferRequest
from naiad.engine.served import Served

_now_ns = time.monotonic_ns
_DEFAULT_IDLE_US = 1_000_000
_SWEEP_SIZE = 1024
"""Sequences elsewhere that are noted before those that are over are looked for."""


class Forwarding(Protocol):
    """How a request reaches another process."""

    def forward(self, owner: int, model: "SequenceModel", request: InferRequest) -> None:
        """Have another process execute a request for a model. Raises InferError(UNAVAILABLE)."""

    def cancel(self, request: InferRequest) -> None:
        """Tell the process that has a forwarded request that nobody waits for its answer."""


class Membership(Protocol):
    """Which of the processes this one is."""

    @property
    def slot(self) -> int:
        """The number of this process, from 0."""

    @property
    def process_count(self) -> int:
        """How many processes there are."""

    @property
    def is_successor(self) -> bool:
        """Whether this process has taken the place of one that died."""


def owner_of(model: str, sequence_id: int | str, process_count: int) -> int:
    """Return the process that has a sequence: the same wherever it is asked, and even over any choice of ids."""
    digest = hashlib.blake2b(f"{model}\0{sequence_id!r}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % process_count


class SequenceModel:
    """Stands before the served version of this process, and passes on what belongs to another.

    What it tells, counts and measures is this process's own: what is forwarded is counted where it is executed.
    Everything but `stop` and the counts is called on the event loop.
    """

    def __init__(self, served: Served, membership: Membership, forwarding: Forwarding) -> None:
        self._served = served
        self._slot = membership.slot
        self._process_count = membership.process_count
        self._is_successor = membership.is_successor
        self._forwarding = forwarding
        self._idle_ns = 1000 * (served.config.sequence_batching.max_sequence_idle_microseconds or _DEFAULT_IDLE_US)
        self._elsewhere: dict[int | str, int] = {}
        """Sequences of other processes that are alive as far as is known here, and when their last request came."""
        self._sweep_size = _SWEEP_SIZE
        self.name = served.name
        self.version = served.version
        self.config = served.config
        self.statistics = served.statistics
        self.labels: Mapping[str, Sequence[str]] = served.labels
        self.is_decoupled = served.is_decoupled
        self.load_duration_ns = 0

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Execute a request here or have it executed where its sequence is. Raises InferError."""
        sequence_id = request.header.sequence_id
        # One without an id is refused here as well as anywhere.
        owner = owner_of(self.name, sequence_id, self._process_count) if sequence_id else self._slot
        if owner == self._slot:
            self.accept(request)
            return
        request.model = self
        self._forwarding.forward(owner, self, request)
        self._note(request)

    def accept(self, request: InferRequest) -> None:
        """Execute a request of a sequence that this process has. Raises InferError."""
        try:
            self._served.submit(request)
        except UnknownSequenceError as error:
            if self._is_successor:
                raise InferError(
                    error.code,
                    f"{error.message}; the process that had this sequence may have died, and another has taken its "
                    "place: begin the sequence again",
                ) from None
            raise

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request wherever it is; True when it was dropped at once, which one elsewhere never is."""
        if request.model is not self:
            return self._served.cancel(request)
        if not request.cancelled:
            request.cancelled = True
            self._forwarding.cancel(request)
        return False

    def blockers(self, request: InferRequest) -> Sequence[InferRequest]:
        """None that is known here."""
        return ()

    def close_to_new_sequences(self) -> None:
        """Take only requests of live sequences from now on; those elsewhere are refused there."""
        self._served.close_to_new_sequences()

    # --- sequences of other processes -------------------------------------------------------------------------------

    def _note(self, request: InferRequest) -> None:
        header = request.header
        if header.sequence_end:
            self._elsewhere.pop(header.sequence_id, None)
        else:
            self._elsewhere[header.sequence_id] = _now_ns()
            if len(self._elsewhere) >= self._sweep_size:
                self._sweep()

    def refused(self, request: InferRequest) -> None:
        """Learn that a forwarded request was refused: it may have no sequence."""
        self._elsewhere.pop(request.header.sequence_id, None)

    def owner_lost(self, owner: int) -> None:
        """Learn that a process has ended, and its sequences with it."""
        self._elsewhere = {
            key: heard_ns
            for key, heard_ns in self._elsewhere.items()
            if owner_of(self.name, key, self._process_count) != owner
        }

    def _sweep(self) -> None:
        """Forget the sequences that must have become idle."""
        oldest_ns = _now_ns() - self._idle_ns
        self._elsewhere = {key: heard_ns for key, heard_ns in self._elsewhere.items() if heard_ns > oldest_ns}
        self._sweep_size = max(_SWEEP_SIZE, 2 * len(self._elsewhere))

    # --- what the served version tells ------------------------------------------------------------------------------

    @property
    def live_sequence_count(self) -> int:
        """Sequences that have begun and not ended, also those elsewhere whose requests come through this process.

        While a server drains, connections stay open as long as there are any.
        """
        self._sweep()
        return self._served.live_sequence_count + len(self._elsewhere)

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """None: sequences are not batched adaptively."""
        return self._served.adaptive_state

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance of this process."""
        return self._served.pending_count

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute in this process."""
        return self._served.in_flight_count

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of this process."""
        return self._served.instances

    @property
    def health(self) -> str:
        """What the version says."""
        return self._served.health

    @property
    def lost_reason(self) -> str:
        """What the version says."""
        return self._served.lost_reason

    def stop(self, timeout_s: float) -> bool:
        """Stop the version of this process."""
        return self._served.stop(timeout_s)
