"""How a worker executes batches of a decoupled model: `execute` returns nothing, response senders say everything."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any

from naiad.backend.worker import scope
from naiad.backend.worker.exchange import StreamedRequest, is_rescheduled
from naiad.backend.worker.frame import Frame
from naiad.backend.worker.intake import Intake
from naiad.backend.worker.model_loop import ModelLoop
from naiad.backend.worker.outbox import Outbox, Stream
from naiad.backend.worker.returned import ExecutionFault, failure_notes
from naiad.backend.worker.side import SideLine

_log = logging.getLogger(__name__)


class DecoupledExecution:
    """Executes batches one after the other; their requests stay open until their final responses."""

    def __init__(self, model: Any, instance_name: str, intake: Intake, outbox: Outbox, side: SideLine) -> None:
        self.outbox = outbox
        self._model = model
        self._instance_name = instance_name
        self._intake = intake
        self._side = side
        self._loop = ModelLoop()

    def execute(self, frame: Frame) -> None:
        """Execute a batch and tell the server that the next may come. Raises ChannelError."""
        requests, streams = self._intake.streamed_requests(frame, self.outbox)
        frame.payload = b""
        self._side.request_ids = frame.text
        # Coroutines of the batch inherit this. Weak references: who refers to a stream is expected to answer.
        scope.streams.set([weakref.ref(stream) for stream in streams])
        try:
            returned = self._model.execute(requests)
            again: list[Stream] = []
            if inspect.iscoroutine(returned):
                # Triton: the coroutines of all batches run side by side.
                self._loop.submit(self._finish(returned, streams, requests))
            else:
                self._check(returned)
                again = _rescheduled(requests, streams)
            # Who may still send refers to the stream; when nobody does, the request is answered with an error.
            del requests
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: Triton fails the batch and goes on.
            self.outbox.failed(streams, failure_notes(error, self._instance_name))
            return
        finally:
            self._side.request_ids = ""
        del streams
        if again:
            self.outbox.reschedule(again)
            del again
        self.outbox.executed()

    def close(self) -> None:
        """End the loop of coroutines; nothing is open any more."""
        self._loop.close()

    def _check(self, returned: Any) -> None:
        if returned is not None:
            raise ExecutionFault(
                f"Python model '{self._instance_name}' is using the decoupled mode and the execute function must "
                "return None."
            )

    # --- coroutines -------------------------------------------------------------------------------------------------

    async def _finish(
        self, coroutine: Coroutine[Any, Any, Any], streams: Sequence[Stream], requests: Sequence[StreamedRequest]
    ) -> None:
        try:
            self._check(await coroutine)
            again = _rescheduled(requests, streams)
            if again:
                self.outbox.reschedule(again)
        except BaseException as error:
            # Triton only logs this, and the client waits for ever.
            notes = failure_notes(error, self._instance_name)
            _log.error("%s", notes["detail"] or notes["message"])
            self.outbox.fail(streams, notes["message"])


def _rescheduled(requests: Sequence[StreamedRequest], streams: Sequence[Stream]) -> list[Stream]:
    """Return the streams of the requests that are to be executed again."""
    return [stream for request, stream in zip(requests, streams) if is_rescheduled(request)]
