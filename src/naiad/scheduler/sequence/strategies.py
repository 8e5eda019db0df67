"""The strategies of the sequence batcher: the rows of a batch that the requests of sequences get."""

import functools
from collections.abc import Collection, Sequence
from typing import Any

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.dynamic import DynamicScheduler
from naiad.scheduler.sequence.scheduler import SequenceScheduler
from naiad.scheduler.sequence.slots import LiveSequence


class DirectSequenceScheduler(SequenceScheduler):
    """One slot, which is one row of the model's batch, for each sequence.

    A batch extends from slot 0 to the highest slot with a request; `Batch.slots` has the slot of each request, and
    the executor fills the rows between. A request of another shape than the first waits for the next batch.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        delay_ns: int = 0,
        minimum_slot_utilization: float = 0.0,
        delay_count: int = 0,
        backlog_delay_count: int = 0,
        **options: Any,
    ) -> None:
        """Triton: the delay counts only with a minimum slot utilisation. `options`: see the base class.

        `delay_count` holds all instances until that many requests are queued in their slots and `backlog_delay_count`
        in the backlog, once (Triton: TRITONSERVER_DELAY_SCHEDULER, TRITONSERVER_BACKLOG_DELAY_SCHEDULER). The second
        has no effect without the first.
        """
        self._slot_count = max(1, max_batch_size)
        super().__init__(slot_count=self._slot_count, **options)
        self._delay_ns = delay_ns if minimum_slot_utilization > 0.0 else 0
        self._minimum_ready = minimum_slot_utilization * self._slot_count
        self._hold_count = delay_count
        self._backlog_hold_count = backlog_delay_count

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Add a request. Raises InferError(INVALID_ARG) for one without a sequence."""
        is_worth_waking = super().enqueue(request, now_ns)
        if not self._hold_count:
            return is_worth_waking
        backlog_count = sum(len(sequence.queue) for sequence in self._table.backlog)
        slot_count = self.pending_count - backlog_count
        if slot_count < self._hold_count or backlog_count < self._backlog_hold_count:
            return False
        self._hold_count = 0
        self._woken.update(range(len(self._table.slots)))
        return True

    def _feed(self, sequence: LiveSequence, now_ns: int) -> None:
        """Do nothing: requests are taken from the sequences themselves."""

    def _withdraw(self, request: InferRequest) -> None:
        """Do nothing: all queued requests are in the sequences."""

    def _heads(self, instance: int) -> list[tuple[int, LiveSequence]]:
        """Return the slots of an instance with a request to execute."""
        slots = enumerate(self._table.slots[instance])
        return [(slot, held) for slot, held in slots if held is not None and held.queue and not held.is_busy]

    def take(self, now_ns: int, instance: int = 0) -> Batch | None:
        """Return one request of each ready slot of an instance, or None while there is none or they are delayed."""
        self._settle(instance, now_ns)
        heads = self._heads(instance)
        if not heads or self._hold_count or self._release_ns(heads) > now_ns:
            return None
        shape_key = heads[0][1].queue[0].shape_key
        taken: list[InferRequest] = []
        slots: list[int] = []
        for slot, sequence in heads:
            request = sequence.queue[0]
            if request.shape_key == shape_key:
                sequence.queue.popleft()
                request.queue = None
                sequence.is_busy = True
                taken.append(request)
                slots.append(slot)
        self._note_taken(instance, taken)
        # Triton: filled rows between requests count in the batch's size.
        batch = Batch(taken, slots[-1] + 1, self._reason(heads, taken))
        batch.slots = slots
        return batch

    def _reason(self, heads: Sequence[tuple[int, LiveSequence]], taken: Sequence[InferRequest]) -> str:
        if len(taken) < len(heads):
            return "shape"
        if len(taken) == self._slot_count:
            return "full"
        if not self._delay_ns:
            return "idle"
        return "preferred" if len(taken) >= self._minimum_ready else "delay"

    def _release_ns(self, heads: Sequence[tuple[int, LiveSequence]]) -> int:
        """Return the end of the delay of these requests; 0 for no delay."""
        if not self._delay_ns or len(heads) >= self._minimum_ready:
            return 0
        return min(sequence.queue[0].arrival_ns for _, sequence in heads) + self._delay_ns

    def wake_ns(self, instance: int = 0) -> int:
        """Return the time at which a delayed batch of this instance is sent or a sequence ends, the earlier one."""
        heads = self._heads(instance)
        expire_ns = self.expire_ns()
        if not heads or self._hold_count:
            return expire_ns
        release_ns = self._release_ns(heads) or 1
        return min(release_ns, expire_ns) if expire_ns else release_ns


class OldestSequenceScheduler(SequenceScheduler):
    """A dynamic batcher for each instance, which gets one request of every sequence at a time."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        max_candidate_sequences: int = 0,
        preferred_batch_sizes: Collection[int] = (),
        delay_ns: int = 0,
        delay_count: int = 0,
        **options: Any,
    ) -> None:
        """Triton: without `max_candidate_sequences` there are as many slots as rows in a batch.

        `delay_count` holds the requests of an instance until that many are queued, once (a test hook). `options`: see
        the base class.
        """
        super().__init__(slot_count=max_candidate_sequences or max(1, max_batch_size), **options)
        self._make_inner = functools.partial(
            DynamicScheduler,
            max_batch_size=max_batch_size,
            preferred_batch_sizes=preferred_batch_sizes,
            delay_ns=delay_ns,
            delay_count=delay_count,
        )
        self._inner = [self._make_inner() for _ in self._table.slots]

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
