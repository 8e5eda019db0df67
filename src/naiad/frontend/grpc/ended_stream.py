"""The end of a streaming call: what still arrives for it is dropped."""

from naiad.core.errors import InferError
from naiad.core.tensor import Buffer


class EndedStream:
    """State of a call whose stream has ended while its last responses are still being compressed."""

    def take(self, message: Buffer) -> None:
        """Do nothing: a response would come after the end."""

    def refuse(self, message: Buffer, error: InferError) -> None:
        """Do nothing: a response would come after the end."""

    def half_close(self) -> None:
        """Do nothing: the call is ending."""

    def drain(self) -> None:
        """Do nothing: the call is ending."""

    def writable(self) -> None:
        """Do nothing: there is nothing to resume."""

    def fail(self) -> None:
        """Do nothing: no request is open."""


ENDED = EndedStream()
