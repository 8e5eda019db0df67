"""What the driver of an instance asks of the model that it works for."""

from collections.abc import Sequence
from typing import Any, Protocol

from naiad.backend.api import Instance
from naiad.core.batch import Batch
from naiad.core.response import InferResponse


class BatchSource(Protocol):
    """A served model, as its instances' drivers see it."""

    name: str
    version: str

    def take(self, driver: Any) -> tuple[Batch | None, int]:
        """Return the next batch, or None and when to ask again (0: when woken, negative: never, it has stopped)."""

    def join_idle(self, driver: Any) -> bool:
        """Put a driver that has begun on the list of the idle; True when there is work, and it is not on it."""

    def withdraw(self, driver: Any) -> bool:
        """Take a driver off the list of the idle; False when someone is about to wake it."""

    def tend_unhealthy(self, driver: Any) -> bool:
        """See to the queue while an instance cannot execute; False when the model has stopped."""

    def prepare(self, batch: Batch) -> None:
        """Make of the requests of a batch what an instance executes, as `execute` does itself. Raises as that."""

    def execute(self, instance: Instance, batch: Batch, *, on_loop: bool = False) -> None:
        """Execute a batch, blocking, and see to its answers."""

    def complete(self, batch: Batch, responses: Sequence[InferResponse], *, on_loop: bool = False) -> None:
        """See to the answers of a batch that was executed."""

    def fail(self, batch: Batch, error: Exception, *, on_loop: bool = False) -> None:
        """Answer every request of a batch whose execution raised `error`."""
