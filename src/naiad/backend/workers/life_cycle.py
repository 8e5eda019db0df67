"""The life cycle of an instance's worker: start, watch, restart with back-off, end.

A dead worker is restarted after 0.1 s, 0.2 s, 0.4 s and so on; requests wait for it meanwhile. This is a circuit
breaker:

    READY  --death-->  RESTARTING  --started-->  READY
                           |
                           | `restart_limit` deaths within `restart_window_s`
                           v
                         DOWN  --`restart_interval_s` later, started-->  TRIAL  --response to a batch-->  READY
                           ^                                               |
                           +-------------------death-----------------------+

While the instance is DOWN requests are rejected at once. The next trial always follows.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.backend.api import InstanceState
from naiad.backend.workers.conversation.conversation import Conversation
from naiad.backend.workers.process.worker_process import Event, WorkerProcess
from naiad.backend.workers.worker_settings import WorkerSettings
from naiad.core.errors import ErrorCode, InferError, cause_of, internal
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import IDLE_S
from naiad.worker.channel.frame import ChannelError

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_LOOK_S, _LEAST_LOOK_S = 0.25, 0.01
"""Polling interval for a worker that writes its stacks, or is close to a time limit."""
_TERMINATE_S = 2.0
"""Between SIGTERM and SIGKILL."""
_START = "start (--backend-config=python,stub-timeout-seconds)"
_INITIALIZE = "initialize (parameter initialize_timeout_s)"
_RELEASE_S = 5.0
"""Maximum wait for threads that use the channels of an exited worker."""


class StartError(InferError):
    """A worker did not start."""


def begin(
    process: WorkerProcess,
    settings: WorkerSettings,
    notes: Mapping[str, Any],
    wake_fd: int,
    is_closing: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Start a new worker and return its response to `notes`. Raises StartError.

    Cancelled by `wake_fd` together with `is_closing`.
    """
    _expect(process, settings.start_timeout_s, wake_fd, is_closing, _START)
    with contextlib.suppress(ChannelError):  # then it has died, and `_expect` describes it
        process.channel.send(frames.INITIALIZE, extra=process.localized(notes))
    return _expect(process, settings.initialize_timeout_s, wake_fd, is_closing, _INITIALIZE)


def _expect(
    process: WorkerProcess, timeout_s: float, wake_fd: int, is_closing: Callable[[], bool], what: str
) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    event = process.wait(timeout_s, wake_fd, for_reply=True)
    while event is Event.WAKE and not is_closing():
        # Perhaps meant for the previous worker: the end of its last batch wakes this thread as well.
        event = process.wait(max(0.0, deadline_s - time.monotonic()), wake_fd, for_reply=True)
    if event is Event.EXIT:
        raise StartError(ErrorCode.INTERNAL, f"the worker {process.exit_text} while it was to {what.split(' (')[0]}")
    if event is Event.WAKE:
        raise StartError(ErrorCode.UNAVAILABLE, "the model is being unloaded")
    if event is Event.TIMEOUT:
        raise StartError(ErrorCode.UNAVAILABLE, f"the worker took more than {timeout_s:g} s to {what}")
    try:
        frame = process.channel.receive()
    except ChannelError as error:
        event = process.wait(_TERMINATE_S, wake_fd)
        said = process.exit_text if event is Event.EXIT else f"sent nonsense ({error})"
        raise StartError(ErrorCode.INTERNAL, f"the worker {said} while it was to {what.split(' (')[0]}") from None
    if frame.kind == frames.FAILED:
        raise StartError(
            ErrorCode.INTERNAL, str(frame.extra.get("message", "")), detail=str(frame.extra.get("detail", ""))
        )
    return frame.extra


def end(process: WorkerProcess, grace_s: float, wake_fd: int) -> None:
    """End a worker: by itself within `grace_s`, then by SIGTERM, then by SIGKILL."""
    for wait_s, signal_number in ((grace_s, signal.SIGTERM), (_TERMINATE_S, signal.SIGKILL), (None, None)):
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while not process.gone.is_set():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            process.wait(left_s, wake_fd)
        if process.gone.is_set():
            return
        if signal_number is not None:
            process.kill(f"was killed by {signal_number.name} because it did not end by itself", signal_number)


class WorkerLife:
    """Keeps one worker alive in a thread of its own, which also forwards its output."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        launch: Callable[[], WorkerProcess],
        notes: Mapping[str, Any],
        converse: Callable[[WorkerProcess], Conversation],
        on_health: Callable[[str], None],
    ) -> None:
        self._name = name
        self._settings = settings
        self._launch = launch
        self._notes = notes
        self._converse = converse
        self._on_health = on_health
        self._process: WorkerProcess | None = None
        """The worker that is being watched."""
        self._dumped_since_ns = 0
        """Begin of the last execution whose stacks were asked for."""
        self._taken_count = self._taken_ns = 0
        """Messages of responses that the worker had sent at the last check, and the time of the last change."""
        self.lock = threading.Lock()
        """Held while a batch executes; the channel is closed under it."""
        self.conversation: Conversation | None = None
        self.health = f"instance '{name}' is starting"
        self.restart_count = 0
        self._is_down = False
        """It has died too often, and requests are rejected until it has restarted."""
        self._is_on_trial = False
        """It was down, and has not responded to a batch since, as far as the thread has seen."""
        self._ill_since_s = 0.0
        """Start of the current health state."""
        self.warm_up: Callable[[], None] | None = None
        """The warm-up of a replacement worker, before it is healthy."""
        self._warming: WorkerProcess | None = None
        """The worker that does so at present."""
        self._warming_lock = threading.Lock()
        self._start_error: InferError | None = None
        self._started = threading.Event()
        self._closing = False
        self._closes = threading.Event()
        self._deaths: deque[float] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name=f"worker:{name}", daemon=True)

    def start(self) -> None:
        """Start the first worker and wait until it is ready. Raises InferError if it does not start."""
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self.close()
            raise self._start_error

    def interrupt(self) -> None:
        """End the worker without waiting for it, also while it starts or executes; `close` follows."""
        self._closing = True
        self._closes.set()
        self.wake()

    def close(self) -> None:
        """Finalize the model and end the worker; returns when it has exited. No effect the second time."""
        if self._wake_read < 0:
            return
        self.interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        wake_write, self._wake_write = self._wake_write, -1  # its number soon belongs to another file
        os.close(self._wake_read)
        os.close(wake_write)
        self._wake_read = -1

    @property
    def state(self) -> InstanceState:
        """The state of the worker."""
        if self._is_down:
            return InstanceState.DOWN
        if self.health:
            return InstanceState.RESTARTING
        conversation = self.conversation
        is_proven = conversation is not None and conversation.has_answered
        return InstanceState.TRIAL if self._is_on_trial and not is_proven else InstanceState.READY

    @property
    def awaits_restart(self) -> bool:
        """Whether requests wait for the worker, which restarts."""
        if not self.health or self._is_down or self._closing:
            return False
        return time.monotonic() - self._ill_since_s < self._settings.restart_wait_s

    @property
    def process_ids(self) -> Sequence[int]:
        """The worker that lives now."""
        process = self._process
        return () if process is None else (process.pid,)

    def wake(self) -> None:
        """Wake the thread to check its conditions again."""
        try:
            os.write(self._wake_write, b".")
        except OSError:
            return  # full: it is about to wake up anyway

    def replace_worker(self, reason: str) -> None:
        """Kill the worker; the next one starts after the usual delay."""
        process = self._process
        if process is not None:
            process.kill(f"was killed: {reason}")

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._live()
                except BaseException as error:
                    # A mistake of the server. Without this thread requests would wait for a worker in vain.
                    _log.exception("the thread of instance '%s' failed", self._name)
                    self._fail(StartError(ErrorCode.INTERNAL, f"the worker cannot be run: {cause_of(error)}"))
                if not self._started.is_set() or self._closing:
                    break
                self._await_restart()
        finally:
            self._started.set()

    def _live(self) -> None:
        """Start a worker and stay until it has exited."""
        try:
            process = self._launch()
        except OSError as error:
            executable = self._settings.interpreter.executable
            self._fail(internal(f"the worker cannot be started with {executable}: {error}"))
            return
        except InferError as error:
            self._fail(error)
            return
        # Senders do not wait for the worker: this thread sends the data that the pipe does not take at once.
        process.channel.on_full = self.wake
        try:
            begin(process, self._settings, self._notes, self._wake_read, lambda: self._closing)
            process.await_ready(self._wake_read, lambda: self._closing)
            conversation = self._converse(process)
        except BaseException as error:
            process.kill()
            end(process, 0.0, self._wake_read)
            process.close()
            if not isinstance(error, InferError):
                raise
            self._fail(error)
            return
        self.conversation, self._process = conversation, process
        warming = self._begin_warm_up(process)
        self._started.set()
        self._watch(process, conversation)
        process.settled.set()
        if warming is not None:
            warming.join(_RELEASE_S)
        is_free = self._wait_until_free()
        conversation.close()
        self.conversation = self._process = None
        process.close()
        if is_free:
            self.lock.release()

    def _wait_until_free(self) -> bool:
        """Wait until no thread uses the channels of an exited worker; return False after a timeout.

        A using thread detects the end at once and releases them, even if a busy machine delays it. Only a stopped
        loop never does.
        """
        while not self.lock.acquire(timeout=_RELEASE_S):
            if self._closing:
                return False
        return True

    def _begin_warm_up(self, process: WorkerProcess) -> threading.Thread | None:
        """Mark the worker healthy, or warm it up first if it is a replacement."""
        warm_up = self.warm_up
        if warm_up is None or not self._started.is_set():
            self._set_health("")
            return None
        self._warming = process
        # In a thread of its own: this one must detect the worker's death during the warm-up.
        thread = threading.Thread(target=self._warm_up, args=(process, warm_up), name=f"warmup:{self._name}")
        thread.daemon = True
        thread.start()
        return thread

    def _warm_up(self, process: WorkerProcess, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except BaseException as error:
            said = error.message if isinstance(error, InferError) else cause_of(error)
            with self._warming_lock:
                if self._warming is process:
                    process.kill(f"was killed because its warm-up failed: {said}")
            return
        with self._warming_lock:
            if self._warming is process:
                self._warming = None
                if self.conversation is not None:
                    # A trial ends with the first batch of a client.
                    self.conversation.has_answered = False
                self._set_health("")

    def _watch(self, process: WorkerProcess, conversation: Conversation) -> None:
        """Forward the worker's output until it has exited."""
        while not self._closing:
            event = process.wait(self._patience_s(process, conversation), self._wake_read)
            if event is Event.EXIT:
                self._end_warm_up()
                self._report_death(process.exit_text, has_answered=conversation.has_answered)
                return
            self._check_limit(process, conversation)
            if event is Event.TIMEOUT and self.lock.acquire(blocking=False):
                try:
                    conversation.tidy()
                finally:
                    self.lock.release()
        self._end_warm_up()
        self._set_health(f"instance '{self._name}' is closed")
        grace_s = 0.0
        # An executing batch is not awaited: the closing thread has waited long enough.
        if self.lock.acquire(timeout=0.1):
            try:
                grace_s = self._settings.finalize_timeout_s if conversation.finalize() else 0.0
            finally:
                self.lock.release()
        end(process, grace_s, self._wake_read)

    def _end_warm_up(self) -> None:
        """Ignore the result of a warm-up from now on."""
        with self._warming_lock:
            self._warming = None

    def _patience_s(self, process: WorkerProcess, conversation: Conversation) -> float | None:
        """Return the time of the next check; an idle worker of a model with generous limits is rarely checked."""
        settings = self._settings
        limits_s = [settings.execute_timeout_s, settings.hang_timeout_s, settings.stacks_after_s]
        patience_s = min((limit_s / 8 for limit_s in limits_s if limit_s), default=None)
        if patience_s is not None:
            since_ns = conversation.executing_since_ns
            if since_ns and since_ns == self._dumped_since_ns:
                patience_s = min(_LOOK_S, patience_s)  # its stacks are being written
            elif since_ns:
                executed_s = (time.monotonic_ns() - self._progress_ns(process, since_ns)) / 1e9
                left_s = (limit_s - executed_s for limit_s in limits_s if limit_s > executed_s)
                patience_s = max(_LEAST_LOOK_S, min([patience_s, *left_s]))
        if conversation.has_blocks:
            return IDLE_S if patience_s is None else min(IDLE_S, patience_s)
        return patience_s

    def _progress_ns(self, process: WorkerProcess, since_ns: int) -> int:
        """Return the last progress of the execution that began at `since_ns`: its start or a response."""
        taken_count = process.board.taken_count
        if taken_count != self._taken_count:
            self._taken_count, self._taken_ns = taken_count, time.monotonic_ns()
        return max(since_ns, self._taken_ns)

    def _check_limit(self, process: WorkerProcess, conversation: Conversation) -> None:
        since_ns = conversation.executing_since_ns
        if not since_ns:
            return
        settings = self._settings
        now_ns = time.monotonic_ns()
        executed_s, idle_s = (now_ns - since_ns) / 1e9, (now_ns - self._progress_ns(process, since_ns)) / 1e9
        excess = ""
        if 0 < settings.execute_timeout_s < executed_s:
            excess = f"took longer than execute_timeout_s, {settings.execute_timeout_s:g} s"
        elif 0 < settings.hang_timeout_s < idle_s:
            excess = f"made no progress for {settings.hang_timeout_s:g} s (--execute-timeout-secs)"
        # The stacks come first, and the worker has until the next check to write them.
        if (excess or 0 < settings.stacks_after_s < executed_s) and since_ns != self._dumped_since_ns:
            self._dumped_since_ns = since_ns
            text = "instance '%s': a batch has executed for %.2f s; the stacks of its worker follow"
            _log.warning(text, self._name, executed_s)
            process.dump_stacks()
        elif excess:
            process.kill(f"was killed because a batch {excess}")

    # --- failures ---------------------------------------------------------------------------------------------------

    def _fail(self, error: InferError) -> None:
        if not self._started.is_set():
            error.message = (
                f"instance '{self._name}': {error.message}" if isinstance(error, StartError) else error.message
            )
            self._start_error = error
            return
        if self._closing:
            return
        _log.error("instance '%s' did not start again: %s", self._name, error.message)
        self._report_death(error.message)

    def _report_death(self, how: str, *, has_answered: bool = False) -> None:
        if self._is_on_trial and has_answered:
            self._is_on_trial = False
            self._deaths.clear()
        settings = self._settings
        now_s = time.monotonic()
        self._deaths.append(now_s)
        while now_s - self._deaths[0] > settings.restart_window_s:
            self._deaths.popleft()
        text = how if how.startswith(("was ", "exited")) else f"failed to start: {how}"
        opening = f"the worker of instance '{self._name}' {text}"
        count = len(self._deaths)
        if self._is_on_trial:
            reason = "on trial"
        elif count >= max(1, settings.restart_limit):
            reason = f"that makes {count} deaths within {settings.restart_window_s:g} s"
        else:
            self._set_health(f"{opening}; it is being restarted")
            return
        self._is_down = self._is_on_trial = True
        outlook = f"requests are refused, and it is tried again every {settings.restart_interval_s:g} s"
        self._set_health(f"{opening}; {reason}: {outlook}")

    def _await_restart(self) -> None:
        """Wait for the back-off after recent deaths, or until the model is closed."""
        delay_s = self._settings.restart_interval_s
        if not self._is_down:
            delay_s = min(delay_s, _FIRST_DELAY_S * 2 ** (len(self._deaths) - 1))
        _log.warning("%s; the next start is in %.1f s", self.health, delay_s)
        if not self._closes.wait(delay_s):
            self.restart_count += 1

    def _set_health(self, health: str) -> None:
        if health == self.health:
            return
        if not health:
            self._is_down = False
            if self.restart_count:
                trial = ", on trial: if it dies before its first response, requests are rejected again"
                _log.info("instance '%s' has started again%s", self._name, trial if self._is_on_trial else "")
        elif not self.health:
            self._ill_since_s = time.monotonic()
        self.health = health
        if health and not self._closing:
            _log.error("%s", health)
        self._on_health(health)
