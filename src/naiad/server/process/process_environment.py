"""The environment of every server process: log, event loop, signals, open files, service manager, exit status.

Connections are files, and the usual limit of 1024 open files is soon reached. Of SIGINT and SIGTERM, the first signal
starts a graceful exit, the second ends the process at once.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence

import uvloop

from naiad.core.errors import ErrorCode, InferError
from naiad.options.options import ServerOptions
from naiad.server.process.shared_heap import share_heap
from naiad.telemetry.logs import log
from naiad.telemetry.logs.console import print_failure
from naiad.telemetry.logs.log_output import make_formatter

_log = logging.getLogger(__name__)

_OTHER_FILES = 1024
"""Descriptors for models, libraries and pipes to workers."""
_MANY = 4096
"""Above this number of connections a low system limit is logged, but without a warning."""
_HOW_TO_RAISE = "ulimit -n, LimitNOFILE="


def raise_file_limit(connections: int, *, is_requested: bool = True) -> None:
    """Raise the file limit for a number of connections, up to the hard limit.

    Logs if that is not enough; for a number that no flag has requested, only if few connections are left.
    """
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError) as error:  # a kernel's own limit
            _log.warning("the limit of open files stays at %d: %s", soft, error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = max(0, soft - _OTHER_FILES)
        if not is_requested:
            if allowed < _MANY:
                _log.warning(
                    "the limit of open files allows only %d connections; raise it (%s)", allowed, _HOW_TO_RAISE
                )
            return
        _log.log(
            logging.WARNING if allowed < _MANY else logging.INFO,
            "the flags allow %d connections, the limit of open files only %d; raise it (%s) or "
            "lower --http-max-connections and --grpc-max-connections",
            connections,
            allowed,
            _HOW_TO_RAISE,
        )


def _print_if_read(line: str) -> None:
    """Write a short line to the standard error, unless that would wait: the pipe may have no reader any more."""
    with contextlib.suppress(OSError):
        if select.select((), (_STDERR,), (), 0)[1]:
            os.write(_STDERR, line.encode())


_STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Whether the server was asked to exit."""

    def __init__(self, exit_now: Callable[[int], object] = os._exit, *, log_format: str = "default") -> None:
        """`log_format` is the value of --log-format."""
        self._log_format = log_format
        self._event = asyncio.Event()
        self._exit_now = exit_now

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the signals while `loop` runs; before that, `cli.serve` lets them end the process."""
        for number in SIGNALS:
            loop.add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        """Handle one signal; called on the event loop."""
        # Triton prints this line unchanged, outside the log; a reader of JSON lines could not parse it.
        text = f"Signal ({int(number)}) received."
        if self._log_format == "json":
            record = _log.makeRecord(_log.name, logging.INFO, __file__, 0, text, (), None)
            text = make_formatter("json").format(record)
        _print_if_read(f"{text}\n")
        if self._event.is_set():
            self._exit_now(1)
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether a signal has arrived."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._event.wait()


_WATCHDOG_SHARE = 0.5
"""systemd recommends to report at half of the watchdog's time."""


class ServiceManager:
    """Reports ready, stopping, and that the event loop runs, by systemd's sd_notify protocol.

    With `Type=notify` systemd sets $NOTIFY_SOCKET, a datagram socket, and with `WatchdogSec=` also $WATCHDOG_USEC.
    Without $NOTIFY_SOCKET it does nothing.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("NOTIFY_SOCKET", "")
        timeout_us = environ.get("WATCHDOG_USEC", "")
        is_watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_s = int(timeout_us) / 1e6 if is_watched and timeout_us.isdigit() else 0.0

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report regularly that the loop runs, if systemd has a watchdog for this process."""
        if self._path and self._watchdog_s:
            self.notify("WATCHDOG=1")
            loop.call_later(self._watchdog_s * _WATCHDOG_SHARE, self.watch, loop)

    def ready(self) -> None:
        """Report that the start is over."""
        self.notify("READY=1\nSTATUS=serving")

    def stopping(self) -> None:
        """Report that the server exits."""
        self.notify("STOPPING=1\nSTATUS=finishing requests")

    def notify(self, state: str) -> None:
        """Send one message; a failure is logged, because the server works without a service manager."""
        if not self._path:
            return
        # A leading @ stands for an abstract socket.
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("systemd was not notified at $NOTIFY_SOCKET %s: %s", self._path, error.strerror)


class FailedStartError(InferError):
    """Models did not load. `problems` are readable lines, `hint` has the commands to run next."""

    def __init__(self, problems: Sequence[str], hint: str) -> None:
        super().__init__(ErrorCode.INTERNAL, "failed to load all models")
        self.problems = problems
        self.hint = hint


def run_to_status(options: ServerOptions, run: Callable[[], Coroutine[object, object, int]]) -> int:
    """Set up the log, run `run` on an event loop and return its status, 1 if it raises InferError."""
    # A crash of a framework's native code ends the process; its stacks name the model and the library.
    faulthandler.enable(2)
    # Objects from start-up stay; collections meanwhile only cost time. Modules need no collection at the end.
    gc.disable()
    gc.freeze()
    share_heap(options.on_demand, os.environ)
    try:
        log.configure(options.log, escapes=os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0")
    except OSError as error:
        print_failure(
            f"naiad serve: --log-file {options.log.file}: {error.strerror}; choose a file that can be written"
        )
        return 1
    if options.no_effect:
        _log.warning("flags without effect in this server: %s", ", ".join(options.no_effect))
    raise_file_limit(options.most_connections, is_requested=options.has_connection_limits)
    failure: InferError | None = None
    status = 1
    is_logged = True
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status = runner.run(run())
    except InferError as error:
        # Triton: "error: creating server: Internal - ...".
        _log.error("creating server: %s - %s", error.code.words, error.message)
        failure = error
    finally:
        is_logged = log.shut_down()
    # Of several server processes only one reports the start.
    if failure is not None and _log.isEnabledFor(logging.ERROR):
        _print_start_failure(failure)
    if not is_logged:
        os._exit(status)  # the interpreter's own end flushes the standard error: it would wait for a reader, or fail
    return status


def _print_start_failure(failure: InferError) -> None:
    if isinstance(failure, FailedStartError):
        print_failure("naiad serve: models did not load, and --exit-on-error is true", failure.problems, failure.hint)
    else:
        print_failure(f"naiad serve: {failure.message}")
