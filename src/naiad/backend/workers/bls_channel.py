"""Calls of one worker's model to other models: frames in, calls to the engine, responses back."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from naiad.backend.custom_metrics import MetricHolder, define
from naiad.backend.workers.conversation.server_codec import CallDecoder, CallResponseEncoder
from naiad.backend.workers.life_cycle import WorkerLife
from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.backend.workers.process.worker_process import WorkerProcess
from naiad.core.environment.model_call import ModelCall, ModelCommand
from naiad.core.environment.ports import InferencePort, TimerHandle
from naiad.core.errors import ErrorCode, InferError, invalid_argument, unavailable
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry.statistics.part_statistics import CallStatistics
from naiad.worker.api.failure import not_ready
from naiad.worker.bls_calls import MOST_CALLS
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import IDLE_S, TransportFullError
from naiad.worker.channel.frame import ChannelClosedError, ChannelError, Frame
from naiad.worker.execution.codec import DECOUPLED, FINAL, HOLDS, TRACED

_now_ns = time.monotonic_ns

_AHEAD = 64
"""Limit of the responses of a call that are sent before the worker has taken them."""
_MOST_AHEAD = 16384
"""Limit after which the called model, which cannot be paused, is cancelled."""


class _OpenCall(ModelCall):
    __slots__ = ("ahead_count", "has_failed", "is_answered", "is_stream", "number", "timer")

    number: int
    is_stream: bool
    is_answered: bool
    """Whether the worker got its final response; later responses of the called model are dropped."""
    has_failed: bool
    """Whether a response of it was an error; of a stream, the last one says nothing about those before."""
    ahead_count: int
    """Responses that the worker has not taken."""
    timer: TimerHandle | None


class BlsChannel:
    """One worker's calls. All methods except `close` and `parent_cancelled` are called on the event loop."""

    def __init__(
        self,
        channel: ServerChannel,
        port: InferencePort,
        process: WorkerProcess,
        life: WorkerLife,
        *,
        model: str,
        instance: object,
        metrics: MetricHolder | None,
        called: CallStatistics,
    ) -> None:
        """`metrics`: owner of the worker's metrics; None without metrics. `called` counts the calls."""
        self._channel = channel
        self._port = port
        self._process = process
        self._life = life
        """Its conversation is None while the model is being initialized."""
        self._model = model
        self._instance = instance
        self._metrics = metrics
        self._called = called
        self._loop = port.loop
        self._decoder = CallDecoder()
        self._encoder = CallResponseEncoder()
        self._open: dict[int, _OpenCall] = {}
        self._known_bytes = 0
        self._header = ResponseHeader(model, "", ())
        self._is_closed = False
        self._trim_timer: TimerHandle | None = None
        channel.on_full = self._await_room

    def attach(self) -> None:
        """Start listening."""
        if not self._is_closed:
            self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def close(self) -> None:
        """Cancel the calls and close the channel soon; callable on any thread."""
        try:
            self._loop.call_soon_threadsafe(self._detach)
        except RuntimeError:  # the loop has ended
            self._channel.close()

    def _detach(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._channel.fileno())
        for descriptor in self._channel.write_fds:
            self._loop.remove_writer(descriptor)
        if self._trim_timer is not None:
            self._trim_timer.cancel()
        for call in list(self._open.values()):
            call.has_failed = True
            self._settle(call)
            self._port.cancel(call)
        self._channel.close()

    # --- messages of the worker -------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            for frame in self._channel.receive_some():
                self._take(frame)
            self._see_memory()
        except ChannelClosedError:
            self._detach()
        except (ChannelError, LookupError, TypeError, ValueError) as error:
            self._detach()
            self._process.kill(f"was killed because it sent nonsense ({error})")

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.CALL:
            self._take_call(frame)
        elif kind == frames.CALL_TAKEN:
            call = self._open.get(frame.words[0])
            if call is not None:
                call.ahead_count -= frame.words[1]
                call.is_paused = call.is_paused and call.ahead_count >= _AHEAD // 2
        elif kind == frames.CALL_CANCEL:
            call = self._open.get(frame.words[0])
            if call is not None:
                self._take_cancel(call, is_listening=bool(frame.words[1]))
        elif kind == frames.COMMAND:
            self._take_command(frame)
        elif kind in (frames.METRIC, frames.METRIC_RELEASED):
            self._take_metric(frame)
        elif kind != frames.TIDY:
            raise ChannelError(f"a frame of kind {kind} on the line of calls")

    def _take_call(self, frame: Frame) -> None:
        # hot: once a call
        words = iter(frame.words)
        number, parents, serial = self._read_whose(words)
        flags, timeout_us = next(words), next(words)
        conversation = self._life.conversation
        place = next(words) if flags & TRACED else -1
        traced_with = None if conversation is None or place < 0 else conversation.request_at(serial, place)
        header, data = self._decoder.decode(frame, words)
        if number in self._open:
            raise ChannelError(f"a second call {number}")
        call = _OpenCall(header, data, self._on_response, id=frame.text, arrival_ns=_now_ns())
        call.number = number
        call.caller, call.caller_model = self._instance, self._model
        call.parents = parents
        call.traced_with = traced_with
        call.holds_execution = flags & HOLDS != 0
        call.refuse = self._abort
        call.is_listening = False
        call.is_stream = flags & DECOUPLED != 0
        call.is_answered = False
        call.has_failed = False
        call.ahead_count = 0
        call.timer = None
        self._open[number] = call
        try:
            self._check(call)
            self._port.submit(call)
        except InferError as error:
            self._open.pop(number, None)
            self._answer(call, InferResponse(self._header, error=error), is_final=True)
            return
        if timeout_us and not call.is_answered:
            call.timer = self._loop.call_later(timeout_us / 1e6, self._on_timeout, call, timeout_us)

    def _read_whose(self, words: Iterator[int]) -> tuple[int, Sequence[InferRequest], int]:
        """Return the number of a call, its parent requests, and the number of the caller's batch."""
        try:
            number, serial, count = next(words), next(words), next(words)
            slots = [next(words) for _ in range(count)]
        except StopIteration:
            raise ChannelError("a call whose table is too short") from None
        conversation = self._life.conversation
        return number, () if conversation is None else conversation.parents(serial, slots), serial

    def _check(self, call: _OpenCall) -> None:
        """Raise InferError for a forbidden call."""
        header = call.header
        if len(self._open) > 2 * MOST_CALLS:
            # Calls that the worker has cancelled count too, until they have ended.
            raise unavailable(f"{len(self._open)} calls of one instance of model '{self._model}' are open")
        try:
            is_decoupled = self._port.is_decoupled(header.model_name, header.model_version)
        except InferError as error:
            raise error.with_message(not_ready(header.model_name, error.message)) from None
        if is_decoupled and not call.is_stream:
            raise invalid_argument(
                f"Model {header.model_name} is using the decoupled. The current BLS request call doesn't support "
                "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' "
                "or 'async_exec' calls for decoupled models.'"
            )
        if call.parents and all(parent.cancelled for parent in call.parents):
            raise self._cancelled(call, "the request that it was made for is cancelled")

    def _take_command(self, frame: Frame) -> None:
        words = iter(frame.words)
        number, parents, _ = self._read_whose(words)
        notes = frame.extra
        name = str(notes["model"])
        if notes["command"] == "is_ready":
            ready = self._port.is_ready(name, str(notes["version"]))
            self._send(number, InferResponse(self._header, parameters={"ready": ready}), FINAL)
            return
        is_load = notes["command"] == "load"
        command = ModelCommand(
            caller_model=self._model,
            is_initializing=self._life.conversation is None,
            parents=parents,
            name=name,
            is_load=is_load,
            parameters=_load_parameters(notes, frame) if is_load else {"unload_dependents": notes["dependents"]},
        )
        self._port.command(command, lambda error: self._on_command_done(number, error))

    def _take_metric(self, frame: Frame) -> None:
        metrics = self._metrics
        if frame.kind == frames.METRIC_RELEASED:
            if metrics is not None:
                metrics.release_family(frame.words[0])
            return
        try:
            if metrics is None:
                raise unavailable("no server counts metrics here")
            answer = define(metrics, frame.extra)
        except InferError as error:
            self._send(frame.words[0], InferResponse(self._header, error=error), FINAL)
        except OSError as error:
            failure = unavailable(f"there is no memory for metrics: {error}")
            self._send(frame.words[0], InferResponse(self._header, error=failure), FINAL)
        else:
            self._send(frame.words[0], InferResponse(self._header, parameters=answer), FINAL)

    def _on_command_done(self, number: int, error: InferError | None) -> None:
        if not self._is_closed:
            self._send(number, InferResponse(self._header, error=error, empty_final=error is None), FINAL)

    # --- what the called models say ---------------------------------------------------------------------------------

    def _on_response(self, request: InferRequest, response: InferResponse) -> None:
        # hot: once a response
        call: _OpenCall = request  # type: ignore[assignment]  # made in _take_call
        is_final = response.final
        if is_final:
            self._port.close(call)
            self._open.pop(call.number, None)
            # Remaining references to the call must not keep the worker's memory.
            call.data = ()
        if call.is_answered:
            return
        error = response.error
        if error is not None and error.code is ErrorCode.CANCELLED and not error.message:
            response = InferResponse(response.header, error=self._cancelled(call, "it was cancelled"))
        self._answer(call, response, is_final=is_final)

    def _answer(self, call: _OpenCall, response: InferResponse, *, is_final: bool) -> None:
        if response.error is not None:
            call.has_failed = True
        if is_final:
            self._settle(call)
        self._send(call.number, response, FINAL if is_final else 0)
        if not is_final:
            call.ahead_count += 1
            if call.ahead_count >= _AHEAD:
                call.is_paused = True
            if call.ahead_count >= _MOST_AHEAD:
                name = call.header.model_name
                self._abort(call, unavailable(f"model '{name}' sends responses faster than its caller takes them"))

    def _settle(self, call: _OpenCall) -> None:
        """Note that the worker needs no further response, and count the call."""
        if not call.is_answered:
            self._called.record(call.header.model_name, _now_ns() - call.arrival_ns, has_failed=call.has_failed)
        call.is_answered = True
        call.is_paused = False
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None

    def _send(self, number: int, response: InferResponse, flags: int) -> None:
        # hot: once a response
        if self._is_closed:
            return
        words, extra, parts, payload_bytes = self._encoder.encode(number, flags, response)
        block = 0
        try:
            if payload_bytes > channel_module.INLINE_BYTES:
                block = self._lend(parts, payload_bytes)
                parts = []
            self._channel.send(frames.ANSWER, words, "", extra, parts, payload_bytes, block)
        except (TransportFullError, OSError) as error:
            self._encoder.restart()
            what = "there is no shared memory for the response: " if isinstance(error, OSError) else ""
            self._send(number, InferResponse(self._header, error=unavailable(f"{what}{error}")), flags)
        except ChannelClosedError:
            self._loop.call_soon(self._detach)  # not at once: the caller goes through the calls

    def _lend(self, parts: Sequence[Any], payload_bytes: int) -> int:
        buffer_owner, conversation = self._channel.buffer_owner, self._life.conversation
        room_bytes = 0 if conversation is None else conversation.room_bytes
        buffer_owner.limit_bytes = room_bytes - self._channel.buffer_user.total_bytes
        block = buffer_owner.lend(parts, payload_bytes)
        self._see_memory()
        if self._trim_timer is None:
            self._trim_timer = self._loop.call_later(IDLE_S, self._trim)
        return block

    def _see_memory(self) -> None:
        """Let batches have less memory when calls have more, and more when calls have less."""
        if self._channel.block_bytes != self._known_bytes:
            self._known_bytes = self._channel.block_bytes
            conversation = self._life.conversation  # a worker that dies has none from now on
            if conversation is not None:
                conversation.take_room(self._known_bytes)

    def _trim(self) -> None:
        """Give up memory that has not been used for a while, for as long as there is some."""
        self._trim_timer = None
        buffer_owner = self._channel.buffer_owner
        buffer_owner.trim()
        self._see_memory()
        with contextlib.suppress(ChannelClosedError):  # the reader sees it
            if self._channel.has_news:
                self._channel.send(frames.TIDY)
        if buffer_owner.total_bytes:
            self._trim_timer = self._loop.call_later(IDLE_S, self._trim)

    def _await_room(self) -> None:
        for descriptor in self._channel.full_fds:
            self._loop.add_writer(descriptor, self._on_writable)

    def _on_writable(self) -> None:
        channel = self._channel
        try:
            channel.flush()
        except ChannelClosedError:
            self._detach()
            return
        full = channel.full_fds
        for descriptor in channel.write_fds:
            if descriptor not in full:
                self._loop.remove_writer(descriptor)

    # --- giving up --------------------------------------------------------------------------------------------------

    def parent_cancelled(self, request: InferRequest) -> None:
        """Cancel the calls that were made for requests which are all cancelled; callable on any thread."""
        self._loop.call_soon_threadsafe(self._on_parent_cancelled, request)

    def _on_parent_cancelled(self, request: InferRequest) -> None:
        if not request.cancelled:
            return
        for call in list(self._open.values()):
            parents = call.parents
            if any(parent is request for parent in parents) and all(parent.cancelled for parent in parents):
                self._abort(call, self._cancelled(call, "the request that it was made for is cancelled"))

    def _take_cancel(self, call: _OpenCall, *, is_listening: bool) -> None:
        call.is_listening = is_listening and not call.is_answered
        if call.is_listening:
            # Triton: the called model, which hears of it, decides what comes.
            self._port.cancel(call)
        else:
            self._abort(call, self._cancelled(call, "the model that made it has cancelled it"))

    def _on_timeout(self, call: _OpenCall, timeout_us: int) -> None:
        call.timer = None
        name = call.header.model_name
        self._abort(call, unavailable(f"the call of model '{name}' exceeded its execution_timeout, {timeout_us} us"))

    def _abort(self, call: ModelCall, error: InferError) -> None:
        """Fail a call at once, and cancel it."""
        opened: _OpenCall = call  # type: ignore[assignment]  # made in _take_call
        if not opened.is_answered:
            self._answer(opened, InferResponse(self._header, error=error), is_final=True)
            self._port.cancel(call)

    def _cancelled(self, call: ModelCall, why: str) -> InferError:
        return InferError(ErrorCode.CANCELLED, f"the request to model '{call.header.model_name}' ended: {why}")


def _load_parameters(notes: Mapping[str, Any], frame: Frame) -> dict[str, object]:
    parameters: dict[str, object] = {}
    position = 0
    for path, size in notes["files"]:
        parameters[str(path)] = bytes(frame.payload[position : position + size])
        position += size
    if notes["config"]:
        parameters["config"] = str(notes["config"])
    return parameters
