"""The shared base of both strategies of the sequence batcher: arrival, idleness, timeouts, cancellation."""

import abc
from collections import deque
from collections.abc import Collection, Sequence

from naiad.core.batch import SequenceEnd
from naiad.core.errors import ErrorCode, FailureReason, InferError, Rejection
from naiad.core.request import InferRequest
from naiad.scheduler.api import Dropped, Scheduler
from naiad.scheduler.queue import Deadlines
from naiad.scheduler.sequence.slots import LiveSequence, SequenceTable, cancelled, cut_short

_AT_ONCE = 1
"""A time in the past."""
_ENDED_LIMIT = 4096
"""Limit of the ended sequences that a busy instance is not yet notified of; the newest are kept."""


class SequenceScheduler(Scheduler):
    """Routes each request to the instance and slot of its sequence."""

    has_timeouts = True
    is_by_instance = True

    def __init__(
        self,
        *,
        model_name: str,
        instance_count: int,
        slot_count: int,
        idle_ns: int,
        is_decoupled: bool = False,
        is_iterative: bool = False,
    ) -> None:
        """`slot_count` sequences begin on each of `instance_count` instances; `idle_ns`: see `SequenceTable`.

        `is_decoupled`: a request ends with `release`, not when its instance is free. `is_iterative`: nor when
        `reschedule` puts it back; its sequence ends with it.
        """
        self._table = table = SequenceTable(
            model_name=model_name, instance_count=instance_count, slot_count=slot_count, idle_ns=idle_ns
        )
        self._is_decoupled = is_decoupled or is_iterative
        self._is_iterative = is_iterative
        self._woken: set[int] = set()
        self._rejected: list[Dropped] = []
        self._backlog_deadlines = Deadlines()
        self._executing: list[list[InferRequest]] = [[] for _ in table.slots]
        """Executing requests by instance; empty for decoupled models, which call `release`."""
        self._ended: list[deque[SequenceEnd]] = [deque(maxlen=_ENDED_LIMIT) for _ in table.slots]

    # --- arrival --------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest, now_ns: int) -> bool:
        """Add a request. Raises InferError(INVALID_ARG) for one without a sequence."""
        sequence = self._table.admit(request, now_ns)
        self.live_sequence_count = self._table.live_count
        request.sequence = sequence
        request.queue = sequence
        sequence.queue.append(request)
        self.pending_count += 1
        if sequence.is_backlogged:
            if request.header.timeout_us:
                self._backlog_deadlines.add(request, now_ns + request.header.timeout_us * 1000)
            return False
        self._feed(sequence, now_ns)
        self._woken.add(sequence.instance)
        return True

    @abc.abstractmethod
    def _feed(self, sequence: LiveSequence, now_ns: int) -> None:
        """Include a sequence with a slot in batches, after its queue has grown or it was released."""

    def admits_while_stopping(self, request: InferRequest) -> bool:
        """Return whether a request continues a live sequence."""
        return not self._is_iterative and self._table.find(request.header.sequence_id) is not None

    def reschedule(self, request: InferRequest, now_ns: int) -> bool:
        """Put a request back at the head of its sequence.

        Triton: at its end, and the request fails when the sequence was idle for too long, even if it was executing.
        """
        sequence: LiveSequence = request.sequence
        if sequence.is_released:
            return False
        sequence.active_ns = now_ns
        sequence.queue.appendleft(request)
        request.queue = sequence
        self.pending_count += 1
        sequence.is_busy = False
        self._feed(sequence, now_ns)
        self._woken.add(sequence.instance)
        return True

    def _end_if_iterated(self, sequence: LiveSequence) -> None:
        """End an iterative sequence with its request; another sequence may have begun under the same id."""
        if self._is_iterative and not sequence.queue:
            self._table.end(sequence)

    def instance_of(self, request: InferRequest) -> int | None:
        """Return the instance of a request's live sequence; None without a live sequence or slot."""
        sequence = None if request.header.sequence_start else self._table.find(request.header.sequence_id)
        return None if sequence is None or sequence.is_backlogged else sequence.instance

    def pop_woken(self) -> Collection[int]:
        """Return the instances with new work in their slots."""
        woken, self._woken = self._woken, set()
        return woken

    def pop_ended(self, instance: int) -> Sequence[SequenceEnd]:
        """Return the sequences of an instance that were idle for too long or were cancelled, in order."""
        waiting = self._ended[instance]
        if not waiting:
            return ()
        ended = list(waiting)
        waiting.clear()
        return ended

    # --- instances are added and retired ----------------------------------------------------------------------------

    def add_instance(self, now_ns: int) -> None:
        """Add an instance, whose number is the next one; sequences that wait for a slot may begin there."""
        self._executing.append([])
        self._ended.append(deque(maxlen=_ENDED_LIMIT))
        for sequence in self._table.add_instance():
            self._begin_in_slot(sequence, now_ns)

    def retire_instance(self, instance: int) -> None:
        """Give an instance no further sequences; it continues its own until `is_vacated`."""
        self._table.retire_instance(instance)

    def is_vacated(self, instance: int) -> bool:
        """Return whether a retired instance has no work left."""
        return self._table.is_vacated(instance)

    def _begin_in_slot(self, sequence: LiveSequence, now_ns: int) -> None:
        """Include a sequence that has waited for a slot in batches."""
        for request in sequence.queue:
            self._backlog_deadlines.remove(request)
        self._feed(sequence, now_ns)
        self._woken.add(sequence.instance)

    # --- execution ------------------------------------------------------------------------------------------------

    def _note_taken(self, instance: int, requests: Sequence[InferRequest]) -> None:
        self.pending_count -= len(requests)
        if not self._is_decoupled:
            self._executing[instance].extend(requests)

    def _settle(self, instance: int, now_ns: int) -> None:
        """Continue the sequences of the requests that this instance has executed."""
        executed = self._executing[instance]
        if not executed:
            return
        self._executing[instance] = []
        for request in executed:
            self._go_on(request.sequence, now_ns)

    def _go_on(self, sequence: LiveSequence, now_ns: int) -> None:
        sequence.is_busy = False
        sequence.active_ns = now_ns
        self._feed(sequence, now_ns)
        self._release_if_over(sequence, now_ns)

    def release(self, request: InferRequest, now_ns: int) -> None:
        """Allow the next request of a sequence to execute, after the final response of this one."""
        sequence: LiveSequence = request.sequence
        self._end_if_iterated(sequence)
        self._go_on(sequence, now_ns)
        if sequence.queue or sequence.is_busy:
            self._woken.add(sequence.instance)

    # --- the end of sequences -------------------------------------------------------------------------------------

    def _release_if_over(self, sequence: LiveSequence, now_ns: int) -> None:
        """Free the slot of a sequence that has ended and has no work left.

        A request may end after its sequence has lost its slot: the instance failed, or the model has stopped.
        """
        if not sequence.has_ended or sequence.queue or sequence.is_released or sequence.is_busy:
            return
        self._note_end(sequence)
        successor = self._table.release(sequence)
        self.live_sequence_count = self._table.live_count
        if self._table.is_vacated(sequence.instance):
            self._woken.add(sequence.instance)
        if successor is None:
            return
        self._begin_in_slot(successor, now_ns)
        self._release_if_over(successor, now_ns)

    def _note_end(self, sequence: LiveSequence) -> None:
        """Notify the instance of an end that its model cannot see, unless the id is live there again."""
        if sequence.end_reason is None or sequence.is_backlogged:
            return
        successor = self._table.find(sequence.correlation_id)
        if successor is None or successor.instance != sequence.instance:
            self._ended[sequence.instance].append(SequenceEnd(sequence.correlation_id, sequence.end_reason))
            self._woken.add(sequence.instance)

    # --- time -----------------------------------------------------------------------------------------------------

    def expire_ns(self) -> int:
        """Return the time at which the next sequence may become idle or times out in the backlog; 0 for never."""
        if self._rejected:
            return _AT_ONCE
        times = [time_ns for time_ns in (self._table.idle_ns(), self._backlog_deadlines.nearest_ns()) if time_ns]
        return min(times) if times else 0

    def expire(self, now_ns: int) -> Sequence[Dropped]:
        """End the idle sequences, and remove and return the requests of sequences that timed out."""
        for sequence in self._table.pop_idle(now_ns):
            self._release_if_over(sequence, now_ns)
        for request in self._backlog_deadlines.pop_expired(now_ns):
            self._expire_backlogged(request, now_ns)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _expire_backlogged(self, request: InferRequest, now_ns: int) -> None:
        """Triton: the timeout of one request in the backlog ends its whole sequence."""
        sequence: LiveSequence = request.sequence
        if not sequence.is_backlogged or request.queue is not sequence:
            return
        for waiting in self._remove_from(sequence, sequence.queue[0]):
            error = InferError(
                ErrorCode.UNAVAILABLE,
                "timeout of the corresponding sequence has been expired",
                reason=FailureReason.REJECTED,
                rejection=Rejection.TIMEOUT,
            )
            self._rejected.append(Dropped(waiting, error))
        self._table.end(sequence)
        self._release_if_over(sequence, now_ns)

    def oldest_ns(self) -> int:
        """Return the arrival of the oldest request queued in its sequence; 0 for empty queues."""
        slots = (sequence for slots in self._table.slots for sequence in slots if sequence is not None)
        return min((each.queue[0].arrival_ns for each in (*slots, *self._table.backlog) if each.queue), default=0)

    # --- removal --------------------------------------------------------------------------------------------------

    def cancel(self, request: InferRequest) -> bool:
        """Remove a queued request; its sequence ends, and `expire` rejects the later requests of the sequence.

        Earlier requests are still executed.
        """
        sequence = request.sequence
        if request.queue is None or sequence is None:
            return False
        now_ns = sequence.active_ns
        if request.queue is sequence:
            behind = self._remove_from(sequence, request)[1:]
        else:
            self._withdraw(request)
            behind = self._remove_from(sequence, sequence.queue[0]) if sequence.queue else []
        self._rejected.extend(cancelled(behind))
        self._table.end(sequence)
        sequence.end_reason = "cancelled"
        self._release_if_over(sequence, now_ns)
        return True

    @abc.abstractmethod
    def _withdraw(self, request: InferRequest) -> None:
        """Take back a request that has left its sequence's queue and was not taken yet."""

    def _remove_from(self, sequence: LiveSequence, request: InferRequest) -> list[InferRequest]:
        removed = cut_short(sequence, request)
        for waiting in removed:
            waiting.queue = None
            self._backlog_deadlines.remove(waiting)
        self.pending_count -= len(removed)
        return removed

    def drain(self) -> list[InferRequest]:
        """Remove and return all queued requests; every sequence ends."""
        left: list[InferRequest] = []
        for slots in self._table.slots:
            for sequence in slots:
                left.extend(self._drain_sequence(sequence))
        for sequence in self._table.backlog:
            left.extend(self._drain_sequence(sequence))
        self._table.clear()
        self._backlog_deadlines.clear()
        self.pending_count = self.live_sequence_count = 0
        self._woken.clear()
        return left

    def drain_instance(self, instance: int) -> list[InferRequest]:
        """Remove and return the queued requests of a dead instance; its sequences end, because their state is
        lost.
        """
        left: list[InferRequest] = []
        self._executing[instance] = []
        self._ended[instance].clear()
        for sequence in self._table.slots[instance]:
            if sequence is not None:
                drained = self._drain_sequence(sequence)
                self.pending_count -= len(drained)
                left.extend(drained)
                sequence.is_busy = False
                self._table.end(sequence)
                self._release_if_over(sequence, sequence.active_ns)
        return left

    def _drain_sequence(self, sequence: LiveSequence | None) -> list[InferRequest]:
        """Empty the queue of a sequence, without counting."""
        if sequence is None:
            return []
        left = list(sequence.queue)
        sequence.queue.clear()
        for request in left:
            request.queue = None
        return left
