"""The direct strategy: a sequence's requests always execute in the same row of the batch."""

from collections.abc import Sequence

from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.scheduler.sequence.scheduler import SequenceScheduler
from naiad.scheduler.sequence.slots import LiveSequence, SequenceTable


class DirectSequenceScheduler(SequenceScheduler):
    """One slot, which is one row of the model's batch, for each sequence.

    A batch extends from slot 0 to the highest slot with a request; `Batch.slots` has the slot of each request, and
    the executor fills the rows between. A request of another shape than the first waits for the next batch.
    """

    def __init__(  # noqa: PLR0913 - the fields of the configuration's message, keyword-only
        self,
        *,
        model_name: str,
        instance_count: int,
        max_batch_size: int,
        idle_ns: int,
        delay_ns: int = 0,
        minimum_slot_utilization: float = 0.0,
        is_decoupled: bool = False,
        is_iterative: bool = False,
        delay_count: int = 0,
        backlog_delay_count: int = 0,
    ) -> None:
        """Triton: the delay counts only with a minimum slot utilisation.

        `delay_count` holds all instances until that many requests are queued in their slots and `backlog_delay_count`
        in the backlog, once (Triton: TRITONSERVER_DELAY_SCHEDULER, TRITONSERVER_BACKLOG_DELAY_SCHEDULER). The second
        has no effect without the first.
        """
        self._slot_count = max(1, max_batch_size)
        super().__init__(
            SequenceTable(
                model_name=model_name, instance_count=instance_count, slot_count=self._slot_count, idle_ns=idle_ns
            ),
            is_decoupled=is_decoupled,
            is_iterative=is_iterative,
        )
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
