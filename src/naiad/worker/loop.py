"""The loop of a worker: load the model, execute batches, finalize."""

from __future__ import annotations

import gc
import inspect
import os
import select
from collections.abc import Callable, Sequence
from typing import Any

from naiad.worker.api import pb_utils
from naiad.worker.api.failure import ErrorCode, describe, format_traceback
from naiad.worker.api.inference import InferenceRequest, set_caller, set_rescheduling
from naiad.worker.api.metrics import set_metric_server
from naiad.worker.busy_polling import Alertness
from naiad.worker.calls import Calls, MetricLine
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import IDLE_S, TransportFullError
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import SLOTS, Board
from naiad.worker.channel.frame import ChannelClosedError, Frame
from naiad.worker.control import Scope, SideLine
from naiad.worker.execution import (
    AnsweredRequest,
    DecoupledExecution,
    ModelLoop,
    answered,
    awaited,
    checked,
    failure_notes,
    rescheduled_indexes,
    with_rescheduled,
)
from naiad.worker.loading import LoadError, Readiness, load_backend_class, load_model_class
from naiad.worker.request_decoder import Intake
from naiad.worker.response_encoder import ReplyEncoder
from naiad.worker.response_sender import Outbox


class Worker:
    """One model in one process."""

    def __init__(self, channel: Channel, side: SideLine, board: Board, read_fd: int) -> None:
        self._channel = channel
        self._side = side
        self._board = board
        channel.lender.board = board.blocks
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)
        self._alertness = Alertness(self._poll)
        self._model: Any = None
        self._instance_name = ""
        self._intake = Intake(frozenset())
        self._replies = ReplyEncoder()
        self._model_loop = ModelLoop()
        self._decoupled: DecoupledExecution | None = None
        self._readiness: Readiness | None = None
        self._is_iterative = False
        self._scope = Scope()
        self._calls = Calls(side, self._scope, channel)
        set_caller(self._calls)
        pb_utils.set_commander(self._calls)

    def run(self) -> None:
        """Serve frames until the server says finalize or goes away."""
        try:
            self._channel.send(frames.DONE)
            while self._serve(self._next_frame()):
                pass
        except ChannelClosedError:
            return

    def forsake(self) -> None:
        """Let go of the lines in a process that the model has forked."""
        self._channel.forsake()
        self._calls.forsake()

    def _next_frame(self) -> Frame:
        channel = self._channel
        if channel.has_rest:
            # It came together with the frame before, and perhaps nothing else does: there is nothing to wait for.
            return channel.receive()
        self._alertness.wait()
        # Only who has shared memory wakes up now and then to give some back.
        while (channel.lender.total_bytes or self._calls.has_blocks) and not self._poll.poll(IDLE_S * 1000):
            self._calls.trim()
            if self._decoupled is not None:
                self._decoupled.outbox.trim()
            else:
                channel.lender.trim()
        return channel.receive()

    def _serve(self, frame: Frame) -> bool:
        if frame.kind == frames.EXECUTE:
            if self._decoupled is None:
                self._execute(frame)
            else:
                self._channel.lender.limit_bytes = frame.allowance_bytes
                self._scope.serial += 1
                self._board.note_begun(self._scope.serial)
                self._scope.is_executing = True
                self._decoupled.execute(frame)
                self._scope.is_executing = False
        elif frame.kind == frames.INITIALIZE:
            self._answer(self._initialize, frame.extra)
        elif frame.kind == frames.FINALIZE:
            self._answer(self._finalize, frame.extra)
            return False
        elif frame.kind == frames.SEQUENCES_ENDED:
            self._end_sequences(frame.extra["ended"])
        return True

    def _end_sequences(self, ended: Sequence[tuple[int | str, str]]) -> None:
        """Call the model's `sequence_ended`, if it has one; what it raises is logged."""
        told = getattr(self._model, "sequence_ended", None)
        if told is None:
            return
        for correlation_id, reason in ended:
            try:
                told(correlation_id, reason)
            except Exception as error:
                pb_utils.Logger.log_error(f"sequence_ended: {format_traceback(error)}")

    # --- executing --------------------------------------------------------------------------------------------------

    def _execute(self, frame: Frame) -> None:
        # hot: bench/micro_worker.py
        channel = self._channel
        channel.lender.limit_bytes = frame.allowance_bytes
        side = self._side
        scope = self._scope
        scope.serial += 1
        self._board.note_begun(scope.serial)
        scope.is_executing = True
        cancellation = _Cancellation(self._board)
        requests: Sequence[Any] = self._intake.requests(frame, cancellation)
        self._alertness.had_single_request = len(requests) == 1
        frame.payload = b""
        side.request_ids = frame.text
        try:
            try:
                responses, are_late = self._call(requests)
                if are_late:
                    self._model_loop.keep_running()
                    requests = [AnsweredRequest(request._plan) for request in requests]
                    responses = awaited(responses)
                reply = self._replies.encode(requests, responses)
                parts, payload_bytes, block = reply.parts, reply.payload_bytes, 0
                if payload_bytes > channel_module.INLINE_BYTES:
                    block = channel.lender.lend(parts, payload_bytes)
                    parts = []
            finally:
                scope.is_executing = False
                side.request_ids = ""
                cancellation.is_over = True
        except TransportFullError as error:
            self._refuse(error)
            return
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: Triton fails the batch and goes on.
            self._replies.restart()
            self._channel.send(frames.FAILED, extra=failure_notes(error, self._instance_name))
            return
        words, extra = reply.words, reply.extra()
        if self._is_iterative:
            extra = {**(extra or {}), "rescheduled": rescheduled_indexes(responses)}
        # What the model did not keep is free now, and the reply says so.
        del reply, requests, responses
        channel.send(frames.EXECUTED, words, "", extra, parts, payload_bytes, block)

    def _call(self, requests: Sequence[InferenceRequest]) -> tuple[list[Any], bool]:
        """Return the responses, and whether some of them are still to come. Raises what the model raises."""
        try:
            returned = self._model.execute(requests)
            if type(returned) is not list and inspect.iscoroutine(returned):
                self._scope.thread = self._model_loop.thread_id
                returned = self._model_loop.run(returned)
            if self._is_iterative:
                returned = with_rescheduled(requests, returned)
            return checked(requests, returned)
        except BaseException as error:
            return self._responses_despite(requests, error), False

    def _responses_despite(self, requests: Sequence[Any], error: BaseException) -> list[Any]:
        """Return the responses of a failed batch, of which the model has sent some. Raises `error` otherwise."""
        notes = failure_notes(error, self._instance_name)
        responses = answered(requests, notes)
        if responses is None:
            raise error
        pb_utils.Logger.log_error(notes["detail"] or notes["message"])
        return responses

    def _refuse(self, error: TransportFullError) -> None:
        self._replies.restart()
        notes = {"code": int(ErrorCode.UNAVAILABLE), "full": [error.needed_bytes, error.limit_bytes]}
        self._channel.send(frames.FAILED, extra=notes)

    # --- life -------------------------------------------------------------------------------------------------------

    def _answer(self, action: Callable[[dict[str, Any]], dict[str, Any]], notes: dict[str, Any]) -> None:
        try:
            result = action(notes)
        except BaseException as error:
            message = str(error) if isinstance(error, LoadError) else describe(error)
            self._channel.send(frames.FAILED, extra={"message": message, "detail": format_traceback(error)})
        else:
            self._channel.send(frames.DONE, extra=result)

    def _initialize(self, notes: dict[str, Any]) -> dict[str, Any]:
        model_file = notes["model_file"]
        pb_utils.set_model_dir(notes["version_dir"])
        if notes["is_shared"]:
            model_class = load_backend_class(model_file)
        else:
            model_class = load_model_class(model_file, notes["model_dir"])
        if notes["completes"]:
            return {"config": completed_config(model_class, notes["args"])}
        if not callable(getattr(model_class, "execute", None)):
            raise LoadError(f"{model_file}: class TritonPythonModel has no method execute(self, requests)")
        self._instance_name = notes["args"]["model_instance_name"]
        self._intake = Intake(frozenset(notes["outputs"]))
        self._calls.transport_bytes = notes["transport_bytes"]
        self._is_iterative = notes.get("iterative", False)
        set_rescheduling(self._is_iterative)
        self._scope.is_initializing = True
        if notes.get("metrics", -1) >= 0:
            os.set_inheritable(notes["metrics"], False)
            set_metric_server(MetricLine(self._calls, notes["metrics"]))
        model = model_class()
        if hasattr(model, "initialize"):
            model.initialize(notes["args"])
        self._model = model
        self._scope.is_initializing, self._scope.is_open = False, True
        if notes["decoupled"]:
            outbox = Outbox(self._channel, self._board)
            self._decoupled = DecoupledExecution(model, self._instance_name, self._intake, outbox, self._side)
        self._readiness = Readiness(model, self._board)
        self._readiness.start()
        # What loading has made stays; the garbage collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        return {}

    def _finalize(self, _: dict[str, Any]) -> dict[str, Any]:
        if self._readiness is not None:
            self._readiness.stop()
        if self._decoupled is not None:
            self._decoupled.close()
        self._scope.is_open = False
        if hasattr(self._model, "finalize"):
            self._model.finalize()
        self._model_loop.close()
        return {}


class _Cancellation:
    """Tells which requests of one batch were cancelled, while it executes."""

    __slots__ = ("_slots", "is_over")

    def __init__(self, board: Board) -> None:
        self._slots = board.slots
        self.is_over = False

    def __call__(self, position: int) -> bool:
        return not self.is_over and position < SLOTS and self._slots[position] != 0


def completed_config(model_class: Any, args: dict[str, str]) -> dict[str, Any] | None:
    """Return the configuration that the model's `auto_complete_config` makes, None when it has none.

    Raises LoadError when the function returns something else, and whatever it raises.
    """
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return None
    completed = complete(pb_utils.ModelConfig(args["model_config"]))
    if not isinstance(completed, pb_utils.ModelConfig):
        raise LoadError(
            f"auto_complete_config function in model '{args['model_name']}' must return a valid pb.ModelConfig "
            "object."
        )
    return completed.as_dict()
