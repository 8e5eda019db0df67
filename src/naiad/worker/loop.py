"""The worker: its start as a process (signals, streams, log, modules), then its loop.

The loop loads the model, executes batches and finalizes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import inspect
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from naiad.worker.api import pb_utils
from naiad.worker.api.failure import ErrorCode, LoadError, describe, format_traceback
from naiad.worker.api.logger import LineStream, SinkHandler, set_sink
from naiad.worker.api.metric_family import set_metric_server
from naiad.worker.api.request import InferenceRequest, set_caller, set_rescheduling
from naiad.worker.bls_calls import Calls, MetricChannel
from naiad.worker.busy_polling import SpinWait
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import IDLE_S, TransportFullError
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import FIRST_LATE_PLACE, FIRST_LATE_SLOT, FlagsPage
from naiad.worker.channel.frame import ChannelClosedError, Frame
from naiad.worker.control_socket import ControlSocket, ExecutionContext, dump_on_signal, late_streams
from naiad.worker.execution.codec import RequestDecoder, ResponseEncoder, set_model_name
from naiad.worker.execution.execution import (
    DecoupledExecution,
    FinishedRequest,
    LateResponses,
    ModelLoop,
    Pending,
    answered,
    checked,
    failure_notes,
    rescheduled_indexes,
    settled,
    with_rescheduled,
)
from naiad.worker.execution.response_sender import ResponseSender
from naiad.worker.group_watcher import follow_channel
from naiad.worker.model_class import Readiness, join_group, leave_group, load_class

_PR_SET_PDEATHSIG = 1


def run(arguments: list[str]) -> None:
    """Serve: the arguments are descriptors (read, write, blocks, control socket, flags page) and the server's pid."""
    read_fd, write_fd, blocks_fd, side_fd, board_fd, server_pid = (int(argument) for argument in arguments)
    _follow(server_pid)
    _outlast_signals()
    faulthandler.enable(2)
    dump_on_signal()
    for descriptor in (read_fd, write_fd, blocks_fd, side_fd):
        os.set_inheritable(descriptor, False)
    follow_channel(read_fd)
    side = ControlSocket(socket.socket(fileno=side_fd))
    _redirect(side)
    for name in ("triton_python_backend_utils", "c_python_backend_utils"):
        sys.modules[name] = pb_utils
    board = FlagsPage(board_fd)
    os.close(board_fd)
    channel = Channel(read_fd, write_fd, socket.socket(fileno=blocks_fd), limit_bytes=0, own=bytearray)
    worker = Worker(channel, side, board, read_fd)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=worker.close_in_child)
    worker.run()


def _follow(server_pid: int) -> None:
    """Exit with the server, even while the model executes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server_pid:
        os._exit(1)


def _outlast_signals() -> None:
    """Continue after SIGINT and SIGTERM: the server drains after them, and its workers must serve meanwhile.

    A service manager sends them to all processes. Programs that the model starts, and processes that it forks, end as
    usual: they inherit ignored signals, but no handlers.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.signal(number, _continue) for number in numbers}
    if not hasattr(os, "register_at_fork"):
        return
    # A signal that reached the new process before its handlers are restored would be lost: it waits until then.
    masks: list[set[int | signal.Signals]] = []

    def hold() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def restore() -> None:
        for number, handler in usual.items():
            if signal.getsignal(number) is _continue:
                signal.signal(number, handler)
        let_through()

    os.register_at_fork(before=hold, after_in_parent=let_through, after_in_child=restore)


def _continue(number: int, frame: object) -> None:
    """Do nothing on a signal."""


def _redirect(side: ControlSocket) -> None:
    """Send prints, `logging` and `pb_utils.Logger` to the server's log."""
    set_sink(side.log)
    sys.stdout = LineStream(side.log, 1)
    sys.stderr = LineStream(side.log, 2)
    # Registered first, so that they run after the exit handlers of the model.
    for stream in (sys.stdout, sys.stderr):
        atexit.register(_send_rest, stream)
    root = logging.getLogger()
    root.addHandler(SinkHandler(side.log))
    root.setLevel(logging.INFO)


def _send_rest(stream: LineStream) -> None:
    with contextlib.suppress(OSError):  # the server has exited, and its log with it
        stream.send_rest()


class Worker:
    """One model in one process."""

    def __init__(self, channel: Channel, side: ControlSocket, board: FlagsPage, read_fd: int) -> None:
        self._channel = channel
        self._side = side
        self._board = board
        channel.buffer_owner.board = board.blocks
        self._poll = select.poll()
        self._poll.register(read_fd, select.POLLIN)
        self._spin_wait = SpinWait(self._poll)
        self._model: Any = None
        self._instance_name = ""
        self._request_decoder = RequestDecoder(frozenset())
        self._replies = ResponseEncoder()
        self._model_loop = ModelLoop()
        self._decoupled: DecoupledExecution | None = None
        self._late: LateResponses | None = None
        self._readiness: Readiness | None = None
        self._sends_outputs = True
        """False in ranks whose responses do not count."""
        self._is_iterative = False
        self._late_streams: list[Any] = []
        """The late responses of the executing batch."""
        self._scope = ExecutionContext()
        self._calls = Calls(side, self._scope, channel)
        set_caller(self._calls)

    def run(self) -> None:
        """Serve frames until the server sends finalize or exits."""
        try:
            self._channel.send(frames.DONE)
            while self._serve(self._next_frame()):
                pass
        except ChannelClosedError:
            return

    def close_in_child(self) -> None:
        """Close the channels in a forked process."""
        self._channel.close_in_child()
        self._calls.close_in_child()

    def _next_frame(self) -> Frame:
        channel = self._channel
        if channel.has_rest:
            # It arrived together with the previous frame, perhaps as the last one: do not wait for input.
            return channel.receive()
        self._spin_wait.wait()
        # Only a worker with shared memory or open requests wakes up periodically.
        while self._needs_care and not self._poll.poll(IDLE_S * 1000):
            self._calls.trim()
            if self._late is not None and self._late.has_open:
                # Only the garbage collector finds a sender in a reference cycle, and nothing else starts it here.
                gc.collect()
            if self._response_sender is not None:
                self._response_sender.trim()
            else:
                channel.buffer_owner.trim()
        return channel.receive()

    @property
    def _needs_care(self) -> bool:
        if self._channel.buffer_owner.total_bytes or self._calls.has_blocks:
            return True
        return self._late is not None and self._late.has_open

    @property
    def _response_sender(self) -> ResponseSender | None:
        if self._decoupled is not None:
            return self._decoupled.response_sender
        return None if self._late is None else self._late.response_sender

    def _serve(self, frame: Frame) -> bool:
        if frame.kind in (frames.EXECUTE, frames.EXECUTE_COMPLETELY):
            if self._decoupled is None:
                self._execute(frame)
            else:
                self._note_begin(frame)
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
        """Call the model's `sequence_ended`, if any; its exceptions are logged."""
        notify = getattr(self._model, "sequence_ended", None)
        if notify is None:
            return
        for correlation_id, reason in ended:
            try:
                notify(correlation_id, reason)
            except BaseException as error:
                pb_utils.Logger.log_error(f"sequence_ended: {format_traceback(error)}")

    # --- executing --------------------------------------------------------------------------------------------------

    def _note_begin(self, frame: Frame) -> None:
        self._channel.buffer_owner.limit_bytes = frame.allowance_bytes
        scope = self._scope
        scope.serial += 1
        self._board.note_begun(scope.serial)
        scope.is_executing = True

    def _execute(self, frame: Frame) -> None:
        # hot: bench/micro_worker.py
        channel, side, scope = self._channel, self._side, self._scope
        self._note_begin(frame)
        cancellation = _Cancellation(self._board)
        requests: Sequence[Any] = self._request_decoder.requests(frame, cancellation)
        self._spin_wait.had_single_request = len(requests) == 1
        frame.payload = b""
        side.request_ids = frame.text
        late: Sequence[Pending] = ()
        try:
            try:
                responses, are_late = self._call(requests)
                if are_late:
                    slots = self._reserve(frame, requests, responses)
                    requests = [FinishedRequest(request._plan) for request in requests]
                    responses, late = settled(requests, responses, slots)
                reply = self._replies.encode(requests, responses)
                parts, payload_bytes, block = (
                    (reply.parts, reply.payload_bytes, 0) if self._sends_outputs else ([], 0, 0)
                )
                if payload_bytes > channel_module.INLINE_BYTES:
                    parts, block = [], self._lend(parts, payload_bytes)
            finally:
                scope.is_executing = False
                side.request_ids = ""
                cancellation.is_over = True
        except TransportFullError as error:
            self._refuse(error)
            return
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: Triton fails the batch and continues.
            self._replies.restart()
            self._fail(failure_notes(error, self._instance_name))
            return
        words, extra = reply.words, reply.extra()
        if self._is_iterative:
            extra = {**(extra or {}), "rescheduled": rescheduled_indexes(responses)}
        # Inputs that the model did not keep are free now, and the response frame reports it.
        del reply, requests, responses
        if late:
            extra = {**(extra or {}), "late": [(each.place, each.slot) for each in late]}
        with channel.lock:
            channel.send(frames.EXECUTED, words, "", extra, parts, payload_bytes, block)
        if late:
            self._divert(late)

    def _divert(self, late: Sequence[Pending]) -> None:
        """Send late responses when they arrive: after the frame with their slots."""
        self._late_streams.extend(self._late_responses().divert(late))
        self._late_streams = []

    def _reserve(self, frame: Frame, requests: Sequence[Any], responses: Sequence[Any]) -> dict[int, int]:
        """Return slots for late responses by their indexes; empty if the batch must wait for them."""
        self._model_loop.keep_running()
        if frame.kind != frames.EXECUTE:
            return {}
        return self._late_responses().reserve(requests, responses)

    def _late_responses(self) -> LateResponses:
        if self._late is None:
            self._late = LateResponses(self._channel, self._board)
        return self._late

    def _lend(self, parts: Sequence[Any], payload_bytes: int) -> int:
        channel = self._channel
        if self._late is None:
            return channel.buffer_owner.lend(parts, payload_bytes)
        with channel.lock:
            # The server reports released blocks on the flags page, since late responses may need them.
            channel.buffer_owner.reclaim(self._board.blocks)
            return channel.buffer_owner.lend(parts, payload_bytes)

    def _call(self, requests: Sequence[InferenceRequest]) -> tuple[list[Any], bool]:
        """Return the responses, and whether some of them are pending. Raises the exception of the model."""
        try:
            returned = self._model.execute(requests)
            if type(returned) is not list and inspect.iscoroutine(returned):
                # Tasks of the model inherit this, and find the late responses of their batch.
                late_streams.set(self._late_streams)
                self._scope.thread = self._model_loop.thread_id
                returned = self._model_loop.run(returned)
            if self._is_iterative:
                returned = with_rescheduled(requests, returned)
            return checked(requests, returned)
        except BaseException as error:
            return self._responses_despite(requests, error), False

    def _responses_despite(self, requests: Sequence[Any], error: BaseException) -> list[Any]:
        """Return the responses of a failed batch, if the model has sent some. Raises `error` otherwise."""
        notes = failure_notes(error, self._instance_name)
        responses = answered(requests, notes)
        if responses is None:
            raise error
        pb_utils.Logger.log_error(notes["detail"] or notes["message"])
        return responses

    def _refuse(self, error: TransportFullError) -> None:
        self._replies.restart()
        notes = {"code": int(ErrorCode.UNAVAILABLE), "full": [error.needed_bytes, error.limit_bytes]}
        self._fail(notes)

    def _fail(self, notes: dict[str, Any]) -> None:
        # Other threads send late responses of earlier batches.
        with self._channel.lock:
            self._channel.send(frames.FAILED, extra=notes)

    # --- life -------------------------------------------------------------------------------------------------------

    def _answer(self, action: Callable[[dict[str, Any]], dict[str, Any]], notes: dict[str, Any]) -> None:
        try:
            result = action(notes)
        except BaseException as error:
            message = str(error) if isinstance(error, LoadError) else describe(error)
            self._fail({"message": message, "detail": format_traceback(error)})
        else:
            with self._channel.lock:
                self._channel.send(frames.DONE, extra=result)

    def _initialize(self, notes: dict[str, Any]) -> dict[str, Any]:
        pb_utils.set_model_dir(notes["version_dir"])
        model_class = load_class(notes)
        if notes["completes"]:
            if "adapter" in notes:
                return dict(model_class.describe(notes["args"]))
            return {"config": completed_config(model_class, notes["args"])}
        if not callable(getattr(model_class, "execute", None)):
            raise LoadError(f"{notes['model_file']}: class TritonPythonModel has no method execute(self, requests)")
        self._instance_name = notes["args"]["model_instance_name"]
        set_model_name(notes["args"]["model_name"])
        self._request_decoder = RequestDecoder(frozenset(notes["outputs"]))
        self._calls.transport_bytes = notes["transport_bytes"]
        self._sends_outputs = notes.get("sends_outputs", True)
        self._is_iterative = notes.get("iterative", False)
        set_rescheduling(self._is_iterative)
        self._scope.is_initializing = True
        if notes.get("metrics", -1) >= 0:
            os.set_inheritable(notes["metrics"], False)
            set_metric_server(MetricChannel(self._calls, notes["metrics"]))
        if notes.get("torch_distributed"):
            join_group(notes["torch_distributed"], notes["args"])
        model = model_class()
        if hasattr(model, "initialize"):
            model.initialize(notes["args"])
        self._model = model
        self._scope.is_initializing, self._scope.is_open = False, True
        if notes["decoupled"]:
            response_sender = ResponseSender(self._channel, self._board)
            self._decoupled = DecoupledExecution(
                model, self._instance_name, self._request_decoder, response_sender, self._side
            )
        self._readiness = Readiness(model, self._board)
        self._readiness.start()
        # The objects of the load are permanent; the garbage collector need not scan them again.
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
        leave_group()
        self._model_loop.close()
        return {}


class _Cancellation:
    """The cancelled requests of one batch, while it executes."""

    __slots__ = ("_slots", "is_over")

    def __init__(self, board: FlagsPage) -> None:
        self._slots = board.slots
        self.is_over = False

    def __call__(self, position: int) -> bool:
        if position >= FIRST_LATE_PLACE:
            return self._slots[position - FIRST_LATE_PLACE] != 0
        return not self.is_over and position < FIRST_LATE_SLOT and self._slots[position] != 0


def completed_config(model_class: Any, args: dict[str, str]) -> dict[str, Any] | None:
    """Return the configuration of the model's `auto_complete_config`, None without one.

    Raises LoadError if the function returns another type, and any exception of it.
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
