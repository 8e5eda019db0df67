"""What a scheduler decides: which of the waiting requests execute together, and when."""

import abc
from collections.abc import Collection, Sequence
from typing import NamedTuple

from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import InferError
from naiad.core.request import InferRequest


class Dropped(NamedTuple):
    """A request that left the queue without being executed, and what to answer it with."""

    request: InferRequest
    error: InferError
    """Its `reason` says how statistics count it."""


class Scheduler(abc.ABC):
    """The waiting requests of one served model version.

    Pure: it knows neither clock nor lock. Every method, `wake_ns` and `expire_ns` included, is called by a caller
    that holds the model's lock and says what time it is; only `pending_count` may be read without the lock.
    """

    has_timeouts: bool = False
    """Whether requests may time out in the queue, so that `expire` can have anything to do."""
    pending_count: int = 0
    """Requests that wait."""
    live_sequence_count: int = 0
    """Sequences that hold a slot or wait for one."""
    is_by_instance: bool = False
    """Whether a request belongs to a certain instance, so that it is no use to wake any other."""
    learns: bool = False
    """Whether it wants to hear of every batch that was executed, by `record_execution`."""

    dropped: Sequence[Dropped] = ()
    """Requests that left during `take` without being executed, for `pop_dropped`."""
    wake_up_ns: int = 0
    """When a free instance should be woken although nothing comes, since nobody was for what waits; 0 for never."""

    @abc.abstractmethod
    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Take in a request; it waits from `request.arrival_ns`, and its timeout counts from `now_ns`.

        Returns whether it is worth waking a free instance: False when a free instance that has called `take` and
        sleeps until `wake_ns` would find nothing new to do. A caller may ignore it.
        Raises InferError(UNAVAILABLE) when the queue is full; statistics do not count that.
        """

    @abc.abstractmethod
    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the next batch for an instance that is free, or None when nothing should run now.

        Everything that was taken for this instance before, and is not decoupled, has been executed.
        None although requests wait means that they are held back to grow the batch: call again at `wake_ns`.
        """

    @abc.abstractmethod
    def wake_ns(self, instance: int = 0) -> int:
        """Return the monotonic time at which `take` or `expire` acts even if no request comes; 0 for never.

        Asked by this free instance after `take` returned None. The time may lie in the past.
        """

    @abc.abstractmethod
    def expire_ns(self) -> int:
        """Return the monotonic time of the nearest timeout, at which `expire` acts; 0 for none.

        This is what a timer needs while every instance is busy: `wake_ns` also tells the end of a batching delay,
        which nobody can act on without a free instance.
        """

    @abc.abstractmethod
    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """Remove and return the requests whose timeout is over at `now_ns` and that are to be rejected."""

    @abc.abstractmethod
    def cancel(self, request: InferRequest) -> bool:
        """Remove a request; True when it still waited, False when it was never here or has left already."""

    @abc.abstractmethod
    def drain(self) -> list[InferRequest]:
        """Remove and return everything that waits, for a model that stops."""

    def pop_dropped(self) -> Sequence[Dropped]:
        """Return the requests that left during `take` since the last call; the caller answers them."""
        dropped, self.dropped = self.dropped, ()
        return dropped

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request that waits; 0 when none does, or it is not known."""
        return 0

    def close(self) -> None:  # noqa: B027 - most schedulers hold nothing
        """Let go of what the scheduler holds; nothing waits, and nothing will."""

    def drain_instance(self, instance: int) -> list[InferRequest]:
        """Remove and return what waits for an instance that cannot execute, if only that one may execute it."""
        return []

    def pop_ended(self, instance: int) -> Sequence[SequenceEnd]:
        """Return the sequences of an instance that ended without END since the last call; `is_by_instance` only."""
        return ()

    def instance_of(self, request: InferRequest) -> int | None:
        """Return the only instance that could execute a request that has just come; None when any could."""
        return None

    def pop_woken(self) -> Collection[int]:
        """Return the instances that have got something to do since the last call; with `is_by_instance` only."""
        return ()

    def release(  # noqa: B027 - most schedulers forget what they have handed out
        self, request: InferRequest, now_ns: int
    ) -> None:
        """Note that a request of a decoupled or iterative model, which was taken, has had its final response."""

    def record_execution(  # noqa: B027 - most schedulers learn nothing
        self, batch: Batch, *, failed: bool = False
    ) -> None:
        """Note that an instance is free again after a batch, whose `exec_start_ns` and `exec_end_ns` are set.

        With `learns` it is called once for every batch that was taken, also for one whose execution failed.
        """

    def change_instance_count(self, count: int) -> None:  # noqa: B027 - most schedulers do not care
        """Note that so many instances take batches from now on."""

    def add_instance(self, now_ns: int) -> None:  # noqa: B027 - with `is_by_instance` only
        """Take in one more instance; its number is the next one."""

    def retire_instance(self, instance: int) -> None:  # noqa: B027 - with `is_by_instance` only
        """Give an instance nothing new; it goes on with what belongs to it until `is_vacated`."""

    def is_vacated(self, instance: int) -> bool:
        """Tell whether an instance that was retired has nothing left to do."""
        return True

    def reschedule(self, request: InferRequest, now_ns: int) -> bool:
        """Put a request back that was taken and is to be executed again; False when its sequence is gone."""
        return False

    def admits_while_stopping(self, request: InferRequest) -> bool:
        """Tell whether a model that stops still takes a request, because it goes on with something begun."""
        return False
