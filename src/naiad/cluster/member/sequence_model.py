"""A model of sequences in one of several processes: each sequence has one process, which executes its requests."""

import hashlib
from typing import Protocol

from naiad.core.errors import InferError, UnknownSequenceError
from naiad.core.request import InferRequest
from naiad.engine.serving.served import Served, ServedProxy


class Forwarding(Protocol):
    """How a request reaches another process."""

    def forward(self, owner: int, model: str, version: str, request: InferRequest) -> None:
        """Have another process execute a request with a version of a model, named by its key.

        Raises InferError(UNAVAILABLE).
        """

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


class SequenceModel(ServedProxy):
    """Stands before the served version of this process, and passes on what belongs to another.

    What it tells, counts and measures is this process's own: what is forwarded is counted where it is executed.
    Everything but `stop` and the counts is called on the event loop.
    """

    def __init__(self, key: str, served: Served, membership: Membership, forwarding: Forwarding) -> None:
        """`key` is what all processes know the model by."""
        super().__init__(served)
        self._key = key
        self._slot = membership.slot
        self._process_count = membership.process_count
        self._is_successor = membership.is_successor
        self._forwarding = forwarding

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Execute a request here or have it executed where its sequence is. Raises InferError."""
        sequence_id = request.header.sequence_id
        # One without an id is refused here as well as anywhere.
        owner = owner_of(self._key, sequence_id, self._process_count) if sequence_id else self._slot
        if owner == self._slot:
            self.accept(request)
            return
        request.model = self
        self._forwarding.forward(owner, self._key, self.version, request)

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

    def is_waiting(self, request: InferRequest) -> bool:
        """Whether a request waits for an instance here; one that another process has is taken to be executed."""
        return request.model is not self and self._served.is_waiting(request)

    def close_to_new_sequences(self) -> None:
        """Take only requests of live sequences from now on; those elsewhere are refused there."""
        self._served.close_to_new_sequences()

    # --- what the served version tells ------------------------------------------------------------------------------

    @property
    def live_sequence_count(self) -> int:
        """Sequences of this process that have begun and not ended."""
        return self._served.live_sequence_count

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance of this process."""
        return self._served.pending_count

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest request that waits for an instance; 0 when none does."""
        return self._served.oldest_ns

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute in this process."""
        return self._served.in_flight_count
