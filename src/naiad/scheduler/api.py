"""The interface of schedulers, which decide which queued requests execute together, and when."""

import abc
from collections.abc import Collection, Sequence
from typing import NamedTuple

from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import InferError
from naiad.core.request import InferRequest


class Dropped(NamedTuple):
    """A request that left the queue without execution, and the error for its client."""

    request: InferRequest
    error: InferError
    """Its `reason` selects the counter in the statistics."""


class Scheduler(abc.ABC):
    """The queued requests of one served model version.

    Pure: it has neither clock nor lock. The caller of every method, `wake_ns` and `expire_ns` included, holds the
    model's lock and passes the time; only `pending_count` may be read without the lock.
    """

    has_timeouts: bool = False
    """Whether queued requests may time out, so that `expire` can have an effect."""
    pending_count: int = 0
    """Queued requests."""
    live_sequence_count: int = 0
    """Sequences that hold a slot or wait for one."""
    is_by_instance: bool = False
    """Whether each request belongs to one instance, so that waking another instance is useless."""
    learns: bool = False
    """Whether `record_execution` must be called for every executed batch."""

    dropped: Sequence[Dropped] = ()
    """Requests that left during `take` without execution, for `pop_dropped`."""
    wake_up_ns: int = 0
    """Deadline at which an idle instance must be woken even without new requests; 0 for none."""

    @abc.abstractmethod
    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Add a request; it waits from `request.arrival_ns`, and its timeout counts from `now_ns`.

        Returns whether to wake a free instance: False when a free instance that has called `take` and sleeps until
        `wake_ns` would find nothing new. A caller may ignore the result. Raises InferError(UNAVAILABLE) when the
        queue is full; statistics do not count that.
        """

    @abc.abstractmethod
    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch for a free instance, or None when nothing should run now.

        Everything taken for this instance before, and not decoupled, has been executed. None although requests are
        queued means that they wait for a larger batch: call again at `wake_ns`.
        """

    @abc.abstractmethod
    def wake_ns(self, instance: int = 0) -> int:
        """Return the monotonic time at which `take` or `expire` acts even without new requests; 0 for never.

        This free instance calls it after `take` returned None. The time may lie in the past.
        """

    def expire_ns(self) -> int:
        """Return the monotonic time of the nearest timeout, at which `expire` acts; 0 for none.

        A timer needs it while every instance is busy: `wake_ns` also includes the end of a batching delay, which has
        no effect without a free instance.
        """
        return 0

    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """Remove and return the requests to reject because their timeout has passed at `now_ns`."""
        return ()

    @abc.abstractmethod
    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; return True if it was queued, False if it was never here or has left."""

    @abc.abstractmethod
    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests of a model that stops."""

    def pop_dropped(self) -> Sequence[Dropped]:
        """Return the requests that left during `take` since the last call; the caller sends their errors."""
        dropped, self.dropped = self.dropped, ()
        return dropped

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest queued request; 0 for an empty queue or an unknown time."""
        return 0

    def close(self) -> None:  # noqa: B027 - most schedulers have no resources
        """Release all resources; the queue is empty and stays empty."""

    def drain_instance(self, instance: int) -> list[InferRequest]:
        """Remove and return the requests that only the failed instance `instance` may execute."""
        return []

    def pop_ended(self, instance: int) -> Sequence[SequenceEnd]:
        """Return the sequences of an instance that ended without END since the last call; `is_by_instance` only."""
        return ()

    def instance_of(self, request: InferRequest) -> int | None:
        """Return the only instance that may execute a new request; None if every instance may."""
        return None

    def pop_woken(self) -> Collection[int]:
        """Return the instances that got work since the last call; with `is_by_instance` only."""
        return ()

    def release(  # noqa: B027 - most schedulers do not track taken requests
        self, request: InferRequest, now_ns: int
    ) -> None:
        """Note the final response of a taken request of a decoupled or iterative model."""

    def record_execution(  # noqa: B027 - most schedulers do not learn
        self, batch: Batch, *, failed: bool = False
    ) -> None:
        """Note that an instance is free again after a batch with `exec_start_ns` and `exec_end_ns` set.

        With `learns` it is called once for every taken batch, failed ones included.
        """

    def change_instance_count(self, count: int) -> None:  # noqa: B027 - most schedulers ignore it
        """Set the number of instances that take batches."""

    def add_instance(self, now_ns: int) -> None:  # noqa: B027 - with `is_by_instance` only
        """Add an instance; its number is the next one."""

    def retire_instance(self, instance: int) -> None:  # noqa: B027 - with `is_by_instance` only
        """Assign no new work to an instance; it completes its own until `is_vacated`."""

    def is_vacated(self, instance: int) -> bool:
        """Return whether a retired instance has no work left."""
        return True

    def reschedule(self, request: InferRequest, now_ns: int) -> bool:
        """Queue a taken request for another execution; return False if its sequence no longer exists."""
        return False

    def admits_while_stopping(self, request: InferRequest) -> bool:
        """Return whether a stopping model still accepts a request, because it continues a live sequence."""
        return False
