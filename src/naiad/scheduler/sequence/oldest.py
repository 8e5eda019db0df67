"""The oldest strategy: the oldest requests of many sequences execute together, one of each sequence at a time."""

import functools
from collections.abc import Collection

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.sequence.scheduler import SequenceScheduler
from naiad.scheduler.sequence.slots import LiveSequence, SequenceTable


class OldestSequenceScheduler(SequenceScheduler):
    """A dynamic batcher for each instance, which gets one request of every sequence at a time."""

    def __init__(  # noqa: PLR0913 - the fields of the configuration's message, keyword-only
        self,
        *,
        model_name: str,
        instance_count: int,
        max_batch_size: int,
        idle_ns: int,
        max_candidate_sequences: int = 0,
        preferred_batch_sizes: Collection[int] = (),
        delay_ns: int = 0,
        is_decoupled: bool = False,
        is_iterative: bool = False,
        delay_count: int = 0,
    ) -> None:
        """Triton: without `max_candidate_sequences` there are as many slots as rows in a batch.

        `delay_count` holds the requests of an instance until that many are queued, once (a test hook).
        """
        slot_count = max_candidate_sequences or max(1, max_batch_size)
        super().__init__(
            SequenceTable(
                model_name=model_name, instance_count=instance_count, slot_count=slot_count, idle_ns=idle_ns
            ),
            is_decoupled=is_decoupled,
            is_iterative=is_iterative,
        )
        self._make_inner = functools.partial(
            DynamicScheduler,
            max_batch_size=max_batch_size,
            preferred_batch_sizes=preferred_batch_sizes,
            delay_ns=delay_ns,
            delay_count=delay_count,
        )
        self._inner = [self._make_inner() for _ in range(instance_count)]

    def add_instance(self, now_ns: int) -> None:
        """Add an instance with a batcher of its own."""
        self._inner.append(self._make_inner())
        super().add_instance(now_ns)

    def _feed(self, sequence: LiveSequence, now_ns: int) -> None:
        if sequence.is_busy or not sequence.queue:
            return
        sequence.is_busy = True
        request = sequence.queue.popleft()
        self._inner[sequence.instance].enqueue(request, now_ns)

    def _withdraw(self, request: InferRequest) -> None:
        sequence: LiveSequence = request.sequence
        self._inner[sequence.instance].cancel(request)
        self.pending_count -= 1
        sequence.is_busy = False

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return the batch of this instance's inner batcher."""
        self._settle(instance, now_ns)
        batch = self._inner[instance].take(now_ns)
        if batch is None:
            return None
        self._note_taken(instance, batch.requests)
        return batch

    def wake_ns(self, instance: int = 0) -> int:
        """Return the time at which this instance's inner batcher acts or a sequence ends, the earlier one."""
        times = [time_ns for time_ns in (self._inner[instance].wake_ns(), self.expire_ns()) if time_ns]
        return min(times) if times else 0

    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests; every sequence ends."""
        left = [request for inner in self._inner for request in inner.drain()]
        return left + super().drain()

    def drain_instance(self, instance: int) -> list[InferRequest]:
        """Remove and return the queued requests of a dead instance; its sequences end, because their state is
        lost.
        """
        left = self._inner[instance].drain()
        self.pending_count -= len(left)
        return left + super().drain_instance(instance)
