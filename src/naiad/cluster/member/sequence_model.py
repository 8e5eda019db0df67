"""A sequence model in one of several processes: each sequence belongs to one process, which executes its requests."""

import hashlib
from typing import Protocol

from naiad.cluster.messages import Welcome
from naiad.core.errors import InferError, UnknownSequenceError
from naiad.core.request import InferRequest
from naiad.engine.serving.served import Served, ServedProxy


class Forwarding(Protocol):
    """Sends requests to other processes."""

    def forward(self, owner: int, model: str, version: str, request: InferRequest) -> None:
        """Forward a request to another process, for a version of the model with a key.

        Raises InferError(UNAVAILABLE).
        """

    def cancel(self, request: InferRequest) -> None:
        """Cancel a forwarded request in its process."""


def owner_of(model: str, sequence_id: int | str, process_count: int) -> int:
    """Return the process of a sequence: the same in every process, and evenly distributed for any choice of ids."""
    digest = hashlib.blake2b(f"{model}\0{sequence_id!r}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % process_count


class SequenceModel(ServedProxy):
    """A proxy of the served version that forwards requests of sequences in other processes.

    Its counts and measurements cover this process only: the executing process counts forwarded requests.
    All methods except `stop` and the counts are called on the event loop.
    """

    def __init__(self, key: str, served: Served, membership: Welcome, forwarding: Forwarding) -> None:
        """`key` names the model in all processes."""
        super().__init__(served)
        self._key = key
        self._slot = membership.slot
        self._process_count = membership.process_count
        self._is_successor = membership.is_successor
        self._forwarding = forwarding

    # --- called on the event loop -----------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Execute a request here or forward it to the process of its sequence. Raises InferError."""
        sequence_id = request.header.sequence_id
        # A request without an id is rejected here as in every process.
        owner = owner_of(self._key, sequence_id, self._process_count) if sequence_id else self._slot
        if owner == self._slot:
            self.accept(request)
            return
        request.model = self
        self._forwarding.forward(owner, self._key, self.version, request)

    def accept(self, request: InferRequest) -> None:
        """Execute a request of a sequence of this process. Raises InferError."""
        try:
            self._served.submit(request)
        except UnknownSequenceError as error:
            if self._is_successor:
                raise InferError(
                    error.code,
                    f"{error.message}; the process that had this sequence may have died and been "
                    "replaced: begin the sequence again",
                ) from None
            raise

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a request; return True if it was dropped at once, which only happens in this process."""
        if request.model is not self:
            return self._served.cancel(request)
        if not request.cancelled:
            request.cancelled = True
            self._forwarding.cancel(request)
        return False

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether a request waits for an instance here; forwarded requests count as executing."""
        return request.model is not self and self._served.is_waiting(request)
