"""The life of an instance's worker: start, watch, restart with back-off, give up, end."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from naiad.backend.python_conversation import Conversation
from naiad.backend.python_process import Event, WorkerProcess
from naiad.backend.python_settings import WorkerSettings
from naiad.backend.worker import frame as frames
from naiad.backend.worker.block import IDLE_S
from naiad.backend.worker.frame import ChannelError
from naiad.core.errors import ErrorCode, InferError, internal

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 30.0
_TERMINATE_S = 2.0
"""Between SIGTERM and SIGKILL."""
_START = "start (--backend-config=python,stub-timeout-seconds)"
_INITIALIZE = "initialize (parameter initialize_timeout_s)"
_RELEASE_S = 5.0
"""How long to wait until nobody uses the lines of a worker that has ended."""


class StartError(InferError):
    """A worker did not come up."""


def begin(
    process: WorkerProcess,
    settings: WorkerSettings,
    notes: Mapping[str, Any],
    wake_fd: int,
    is_closing: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Bring a new worker up and return what it answers to `notes`. Raises StartError.

    Gives up when something comes on `wake_fd` and `is_closing`.
    """
    _expect(process, settings.start_timeout_s, wake_fd, is_closing, _START)
    with contextlib.suppress(ChannelError):  # then it has died, and `_expect` says how
        process.channel.send(frames.INITIALIZE, extra=dict(notes))
    return _expect(process, settings.initialize_timeout_s, wake_fd, is_closing, _INITIALIZE)


def _expect(
    process: WorkerProcess, timeout_s: float, wake_fd: int, is_closing: Callable[[], bool], what: str
) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    event = process.wait(timeout_s, wake_fd, for_reply=True)
    while event is Event.WAKE and not is_closing():
        # Meant for the worker before this one, perhaps: who has let go of its last batch wakes as well.
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
    """Keeps one worker alive in a thread of its own, which also forwards what the worker says."""

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
        self._dumped_since_ns = 0
        """Begin of the last execution whose stacks were asked for."""
        self.lock = threading.Lock()
        """Held while a batch executes; the channel is closed under it."""
        self.conversation: Conversation | None = None
        self.health = f"instance '{name}' is starting"
        self.restart_count = 0
        self.is_lost = False
        """It has died too often and stays down."""
        self.warm_up: Callable[[], None] | None = None
        """What a worker executes that has taken the place of another, before it is healthy."""
        self._warming: WorkerProcess | None = None
        """The worker that does so at present."""
        self._warming_lock = threading.Lock()
        self._start_error: InferError | None = None
        self._started = threading.Event()
        self._closing = False
        self._deaths: deque[float] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name=f"worker:{name}", daemon=True)

    def start(self) -> None:
        """Start the first worker and wait until it is ready. Raises InferError when it does not come up."""
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self.close()
            raise self._start_error

    def close(self) -> None:
        """Finalize the model and end the worker; returns when it has ended. Harmless the second time."""
        if self._wake_read < 0:
            return
        self._closing = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()
        wake_write, self._wake_write = self._wake_write, -1  # its number is soon another file's
        os.close(self._wake_read)
        os.close(wake_write)
        self._wake_read = -1

    def wake(self) -> None:
        """Make the thread look again at what it waits for."""
        try:
            os.write(self._wake_write, b".")
        except OSError:
            return  # full: it is about to wake up anyway

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._live()
                if not self._started.is_set() or self._closing:
                    break
                if not self._may_restart():
                    break
        finally:
            self._started.set()

    def _live(self) -> None:
        """Start a worker and stay until it has ended."""
        try:
            process = self._launch()
        except OSError as error:
            executable = self._settings.interpreter.executable
            self._fail(internal(f"the worker cannot be started with {executable}: {error}"))
            return
        # Whoever sends does not wait for the worker: what it does not take at once this thread sends.
        process.channel.on_full = self.wake
        try:
            begin(process, self._settings, self._notes, self._wake_read, lambda: self._closing)
        except InferError as error:
            process.kill()
            end(process, 0.0, self._wake_read)
            process.close()
            self._fail(error)
            return
        self.conversation = self._converse(process)
        warming = self._begin_warm_up(process)
        self._started.set()
        self._watch(process, self.conversation)
        process.settled.set()
        if warming is not None:
            warming.join(_RELEASE_S)
        is_free = self._wait_until_free()
        self.conversation = None
        process.close()
        if is_free:
            self.lock.release()

    def _wait_until_free(self) -> bool:
        """Wait until nobody uses the lines of a worker that has ended; False when that was in vain.

        Whoever executes hears of the end at once and lets go, however long it then waits for a busy machine. Only a
        loop that was stopped never does.
        """
        while not self.lock.acquire(timeout=_RELEASE_S):
            if self._closing:
                return False
        return True

    def _begin_warm_up(self, process: WorkerProcess) -> threading.Thread | None:
        """Call the worker healthy, or have it warmed up first if it is not the first one."""
        warm_up = self.warm_up
        if warm_up is None or not self._started.is_set():
            self._set_health("")
            return None
        self._warming = process
        # In a thread of its own: this one has to see when the worker dies of it.
        thread = threading.Thread(target=self._warm_up, args=(process, warm_up), name=f"warmup:{self._name}")
        thread.daemon = True
        thread.start()
        return thread

    def _warm_up(self, process: WorkerProcess, warm_up: Callable[[], None]) -> None:
        try:
            warm_up()
        except Exception as error:
            said = error.message if isinstance(error, InferError) else f"{type(error).__name__}: {error}"
            with self._warming_lock:
                if self._warming is process:
                    process.kill(f"was killed because its warm-up failed: {said}")
            return
        with self._warming_lock:
            if self._warming is process:
                self._warming = None
                self._set_health("")

    def _watch(self, process: WorkerProcess, conversation: Conversation) -> None:
        """Forward what the worker says until it has ended."""
        while not self._closing:
            event = process.wait(self._patience_s(conversation), self._wake_read)
            if event is Event.EXIT:
                self._end_warm_up()
                self._report_death(process.exit_text)
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
        # A batch that still executes is not waited for: whoever closes has waited long enough.
        if self.lock.acquire(timeout=0.1):
            try:
                grace_s = self._settings.finalize_timeout_s if conversation.finalize() else 0.0
            finally:
                self.lock.release()
        end(process, grace_s, self._wake_read)

    def _end_warm_up(self) -> None:
        """Let what comes of a warm-up have no effect any more."""
        with self._warming_lock:
            self._warming = None

    def _patience_s(self, conversation: Conversation) -> float | None:
        settings = self._settings
        limits_s = [limit_s for limit_s in (settings.execute_timeout_s, settings.stacks_after_s) if limit_s]
        if limits_s:
            return min(0.25, *(limit_s / 8 for limit_s in limits_s))
        return IDLE_S if conversation.has_blocks else None

    def _check_limit(self, process: WorkerProcess, conversation: Conversation) -> None:
        since_ns = conversation.executing_since_ns
        if not since_ns:
            return
        executed_ns = time.monotonic_ns() - since_ns
        limit_s, stacks_after_s = self._settings.execute_timeout_s, self._settings.stacks_after_s
        is_over = bool(limit_s) and executed_ns > limit_s * 1e9
        is_slow = is_over or (stacks_after_s and executed_ns > stacks_after_s * 1e9)
        # Who is killed is asked first where it is, and has until the next look to tell.
        if is_slow and since_ns != self._dumped_since_ns:
            self._dumped_since_ns = since_ns
            text = "instance '%s': a batch has executed for %.2f s; the stacks of its worker follow"
            _log.warning(text, self._name, executed_ns / 1e9)
            process.dump_stacks()
        elif is_over:
            process.kill(f"was killed because a batch took longer than execute_timeout_s, {limit_s:g} s")

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

    def _report_death(self, how: str) -> None:
        self._deaths.append(time.monotonic())
        text = how if how.startswith(("was ", "exited")) else f"failed to start: {how}"
        self._set_health(f"the worker of instance '{self._name}' {text}; it is being restarted")

    def _may_restart(self) -> bool:
        """Wait as long as the deaths of late demand; False when there were too many or the model is closed."""
        window_s = self._settings.restart_window_s
        now_s = time.monotonic()
        while self._deaths and now_s - self._deaths[0] > window_s:
            self._deaths.popleft()
        count = len(self._deaths)
        if count >= max(1, self._settings.restart_limit):
            self.is_lost = True
            last = self.health.removesuffix("; it is being restarted")
            self._set_health(
                f"{last}; that makes {count} deaths within {window_s:g} s, so it stays down until a reload"
            )
            return False
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (count - 1))
        _log.warning("%s in %.1f s", self.health, delay_s)
        self._sleep(delay_s)
        self.restart_count += 1
        return not self._closing

    def _sleep(self, delay_s: float) -> None:
        deadline_s = time.monotonic() + delay_s
        while not self._closing and time.monotonic() < deadline_s:
            time.sleep(min(0.05, delay_s))

    def _set_health(self, health: str) -> None:
        if health == self.health:
            return
        self.health = health
        if health and not self._closing:
            _log.error("%s", health)
        self._on_health(health)
