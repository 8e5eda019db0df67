"""The recovery of an instance whose runner has failed in a way that no batch explains."""

import time

from naiad.backend.api import Instance
from naiad.core.errors import ErrorCode, FailureReason, InferError, cause_of
from naiad.telemetry.last_resort import Relapses, report


class Recovery:
    """Keeps an instance from executing for a while after each failure of its runner, longer after each further one.

    Meanwhile its `unavailable_reason` is set: the model is not ready if no other instance can execute, and its
    requests are refused. Used by the runner alone.
    """

    def __init__(self, what: str, instance: Instance) -> None:
        """`what` names the instance in messages."""
        self._what = what
        self._instance = instance
        self._relapses = Relapses()
        self.reason = ""
        """What has failed; empty when the last pause is over."""
        self._due_s = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether its last pause is not over."""
        return bool(self.reason)

    def begin(self, error: BaseException) -> None:
        """Note a failure of the runner."""
        now_s = time.monotonic()
        pause_s = self._relapses.next_pause_s(now_s)
        self._due_s = now_s + pause_s
        self.reason = f"{self._what} failed unexpectedly: {cause_of(error)}; it is tried again in {pause_s:g} s"
        self._instance.unavailable_reason = self.reason
        report(self._what, error, f"; it gets no requests for {pause_s:g} s")

    def error(self) -> InferError:
        """Return the error for the requests of the batch that the runner had."""
        return InferError(ErrorCode.INTERNAL, self.reason, reason=FailureReason.BACKEND)

    def end_if_due(self) -> None:
        """Let the instance execute again when its pause is over."""
        if self.reason and time.monotonic() >= self._due_s:
            if self._instance.unavailable_reason == self.reason:
                self._instance.unavailable_reason = ""
            self.reason = ""
