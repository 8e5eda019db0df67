"""Sequences: the live ones, the slots they hold on instances, and the backlog of sequences without a slot.

Both strategies share it. A sequence begins with its START request and gets a free slot or a place in the backlog; it
keeps its slot, and so its instance, until its last request is taken. Triton's rules:

- Slots are assigned by number first and instance second, so slot 0 of each instance fills before slot 1.
- END removes the id from the table on arrival: a START with the same id opens another sequence at once.
- START of a live id goes to the same slot behind the requests before it.
- A sequence without an arriving, queued or executing request for too long ends.
- A whole sequence moves from the backlog into the slot that was freed first.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.core.errors import (
    ErrorCode,
    InferError,
    UnknownSequenceError,
    cancelled_request,
    invalid_argument,
    request_prefix,
)
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped

if TYPE_CHECKING:
    from naiad.core.batch import EndReason

_BACKLOG = -1
_EXPIRED_LIMIT = 1024
"""Limit of the remembered expired sequences, which explain errors to their clients."""

_SWEEP_SLACK = 64


class LiveSequence:
    """One sequence from its START to its end."""

    __slots__ = (
        "active_ns",
        "correlation_id",
        "end_reason",
        "has_ended",
        "instance",
        "is_busy",
        "is_released",
        "queue",
        "slot",
        "state",
    )

    def __init__(self, correlation_id: int | str, active_ns: int) -> None:
        self.correlation_id = correlation_id
        self.active_ns = active_ns
        """Time of its last arrival or of the end of its last execution, the later one."""
        self.has_ended = False
        """Whether it accepts no further requests: after END, an idle timeout, or a cancellation."""
        self.end_reason: EndReason | None = None
        """Reason of its end, if not END."""
        self.instance = _BACKLOG
        self.slot = _BACKLOG
        self.queue: deque[InferRequest] = deque()
        """Its requests in order of arrival that neither a batch nor an inner batcher has taken."""
        self.is_busy = False
        """Whether the next request must wait for one that is in the inner batcher or executing."""
        self.is_released = False
        """Whether its slot, or its place in the backlog, is freed."""
        self.state: object = None
        """For the engine: the implicit state for its next request."""

    @property
    def is_backlogged(self) -> bool:
        """Whether it waits for a slot."""
        return self.slot == _BACKLOG


class SequenceTable:
    """The live sequences of a model version and their slots. Pure: every time is an argument."""

    def __init__(self, *, model_name: str, instance_count: int, slot_count: int, idle_ns: int) -> None:
        """Make `slot_count` slots for each of `instance_count` instances.

        A sequence ends after `idle_ns` without activity.
        """
        self._model_name = model_name
        self._idle_ns = idle_ns
        self._free = [(slot, instance) for slot in range(slot_count) for instance in range(instance_count)]
        self.slots: list[list[LiveSequence | None]] = [[None] * slot_count for _ in range(instance_count)]
        self.backlog: deque[LiveSequence] = deque()
        self._retired: set[int] = set()
        """Instances with slots that no further sequence gets."""
        self._by_id: dict[int | str, LiveSequence] = {}
        self._expired: OrderedDict[int | str, int] = OrderedDict()
        """Ids of the newest expired sequences, each with the start of its idle time."""
        self._idle: list[tuple[int, int, LiveSequence]] = []
        """A heap of (earliest time of becoming idle, number, sequence), one entry per sequence. Ended sequences are
        skipped at the top, and swept when they are the majority."""
        self._opened_count = 0
        self.live_count = 0
        """Sequences that hold a slot or wait for one."""

    def add_instance(self) -> list[LiveSequence]:
        """Make slots for one more instance; return the sequences from the backlog that got them."""
        instance, slot_count = len(self.slots), len(self.slots[0])
        self.slots.append([None] * slot_count)
        seated = []
        for slot in range(slot_count):
            if self.backlog:
                seated.append(self.backlog.popleft())
                self._seat(seated[-1], slot, instance)
            else:
                heapq.heappush(self._free, (slot, instance))
        return seated

    def retire_instance(self, instance: int) -> None:
        """Give the slots of an instance to no further sequence; its current sequences continue."""
        self._retired.add(instance)
        self._free = [place for place in self._free if place[1] != instance]
        heapq.heapify(self._free)

    def is_vacated(self, instance: int) -> bool:
        """Return whether a retired instance has no sequence left."""
        return instance in self._retired and not any(self.slots[instance])

    def find(self, correlation_id: int | str) -> LiveSequence | None:
        """Return the sequence that accepts requests of this id."""
        return self._by_id.get(correlation_id)

    def admit(self, request: InferRequest, now_ns: int) -> LiveSequence:
        """Return the sequence of a request, opened by START if necessary; END is noted.

        Raises InferError(INVALID_ARG) in Triton's order: batch size, correlation id, START missing.
        """
        header = request.header
        correlation_id = header.sequence_id
        if request.batch_size > 1:
            raise invalid_argument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        if not correlation_id:
            raise invalid_argument(
                f"inference request to model '{self._model_name}' must specify a non-zero or non-empty correlation ID"
            )
        sequence = self._by_id.get(correlation_id)
        if sequence is None:
            if not header.sequence_start:
                raise self._without_start(correlation_id, now_ns)
            sequence = self.open(correlation_id, now_ns)
        sequence.active_ns = now_ns
        if header.sequence_end:
            sequence.has_ended = True
            del self._by_id[correlation_id]
        return sequence

    def _without_start(self, correlation_id: int | str, now_ns: int) -> InferError:
        message = (
            f"inference request for sequence {correlation_id} to model '{self._model_name}' must specify the START "
            "flag on the first request of the sequence"
        )
        idle_since_ns = self._expired.get(correlation_id)
        if idle_since_ns is not None:
            # naiad: the reason follows Triton's text, because a client that has sent START would search the wrong
            # place.
            message += (
                f"; sequence {correlation_id} has expired: no request arrived for "
                f"{(now_ns - idle_since_ns) // 1_000_000} ms, and "
                f"max_sequence_idle_microseconds is {self._idle_ns // 1000}"
            )
        return UnknownSequenceError(ErrorCode.INVALID_ARG, message)

    def open(self, correlation_id: int | str, now_ns: int) -> LiveSequence:
        """Open a sequence in a free slot or at the end of the backlog."""
        sequence = LiveSequence(correlation_id, now_ns)
        self._expired.pop(correlation_id, None)
        self._by_id[correlation_id] = sequence
        self._opened_count += 1
        self.live_count += 1
        if len(self._idle) > 2 * self.live_count + _SWEEP_SLACK:
            self._idle = [entry for entry in self._idle if not entry[2].has_ended]
            heapq.heapify(self._idle)
        heapq.heappush(self._idle, (now_ns + self._idle_ns, self._opened_count, sequence))
        if self._free:
            slot, instance = heapq.heappop(self._free)
            self._seat(sequence, slot, instance)
        else:
            self.backlog.append(sequence)
        return sequence

    def _seat(self, sequence: LiveSequence, slot: int, instance: int) -> None:
        sequence.slot, sequence.instance = slot, instance
        self.slots[instance][slot] = sequence

    def end(self, sequence: LiveSequence) -> None:
        """Accept no further requests of a sequence; `release` frees its slot."""
        sequence.has_ended = True
        if self._by_id.get(sequence.correlation_id) is sequence:
            del self._by_id[sequence.correlation_id]

    def release(self, sequence: LiveSequence) -> LiveSequence | None:
        """Free the slot, or the place in the backlog, of a sequence that has ended and has no work left.

        Returns the sequence from the backlog that got the slot, if any.
        """
        self.live_count -= 1
        sequence.is_released = True
        if sequence.is_backlogged:
            self.backlog.remove(sequence)
            return None
        slot, instance = sequence.slot, sequence.instance
        if instance in self._retired:
            self.slots[instance][slot] = None
            return None
        if not self.backlog:
            self.slots[instance][slot] = None
            heapq.heappush(self._free, (slot, instance))
            return None
        successor = self.backlog.popleft()
        self._seat(successor, slot, instance)
        return successor

    def idle_ns(self) -> int:
        """Return a time before which no sequence becomes idle; 0 without sequences."""
        self._skip_released()
        return self._idle[0][0] if self._idle else 0

    def pop_idle(self, now_ns: int) -> list[LiveSequence]:
        """End and return the sequences in slots that were idle for too long.

        Triton: sequences in the backlog do not become idle. Unlike in Triton, neither does a sequence with a queued
        or executing request: then the server is slow, not the client.
        """
        ended: list[LiveSequence] = []
        heap = self._idle
        while heap and heap[0][0] <= now_ns:
            _, number, sequence = heapq.heappop(heap)
            if sequence.has_ended:
                continue
            due_ns = sequence.active_ns + self._idle_ns
            if sequence.is_backlogged or sequence.is_busy or sequence.queue:
                due_ns = now_ns + self._idle_ns
            if due_ns > now_ns:
                heapq.heappush(heap, (due_ns, number, sequence))
                continue
            self.end(sequence)
            sequence.end_reason = "expired"
            self._note_expired(sequence)
            ended.append(sequence)
        return ended

    def _note_expired(self, sequence: LiveSequence) -> None:
        self._expired[sequence.correlation_id] = sequence.active_ns
        if len(self._expired) > _EXPIRED_LIMIT:
            self._expired.popitem(last=False)

    def _skip_released(self) -> None:
        while self._idle and self._idle[0][2].has_ended:
            heapq.heappop(self._idle)

    def clear(self) -> None:
        """End and remove every sequence."""
        for sequence in self._by_id.values():
            sequence.has_ended = True
        self._by_id.clear()
        self._expired.clear()
        self._idle.clear()
        for sequence in self.backlog:
            sequence.queue.clear()
            sequence.is_released = True
        self.backlog.clear()
        for instance, slots in enumerate(self.slots):
            for slot, held in enumerate(slots):
                if held is not None:
                    held.queue.clear()
                    held.is_released = True
                    slots[slot] = None
                    if instance not in self._retired:
                        heapq.heappush(self._free, (slot, instance))
        self.live_count = 0


def cut_short(sequence: LiveSequence, request: InferRequest) -> list[InferRequest]:
    """Remove and return `request`, which is queued in `sequence`, and all requests behind it."""
    queue = sequence.queue
    kept: list[InferRequest] = []
    while queue and queue[0] is not request:
        kept.append(queue.popleft())
    removed = list(queue)
    queue.clear()
    queue.extend(kept)
    return removed


def cancelled(requests: Sequence[InferRequest]) -> list[Dropped]:
    """Return requests with the error for clients of a cancelled sequence."""
    # Triton sends no text; these clients did not cancel.
    words = "a request before it in its sequence was cancelled, which ends the sequence"
    return [Dropped(each, cancelled_request(f"{request_prefix(each.id)}{words}")) for each in requests]
