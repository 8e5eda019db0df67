"""The environment of every server process: log, event loop, signals, limit of open files, exit status.

Connections are files, and the usual limit of 1024 open files is soon reached. Of SIGINT and SIGTERM, the first signal
starts a graceful exit, the second ends the process at once.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence

import uvloop

from naiad.core.errors import ErrorCode, InferError
from naiad.options.options import ServerOptions
from naiad.telemetry.logs import log
from naiad.telemetry.logs.console import print_failure

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


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Whether the server was asked to exit."""

    def __init__(self, exit_now: Callable[[int], object] = os._exit) -> None:
        self._event = asyncio.Event()
        self._exit_now = exit_now

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle the signals while `loop` runs; before that, `cli.serve` lets them end the process."""
        for number in SIGNALS:
            loop.add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        """Handle one signal; called on the event loop."""
        # Triton prints this line unchanged, outside the log.
        print(f"Signal ({int(number)}) received.", file=sys.stderr, flush=True)
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


class FailedStartError(InferError):
    """Models did not load. `problems` are readable lines, `hint` has the commands to run next."""

    def __init__(self, problems: Sequence[str], hint: str) -> None:
        super().__init__(ErrorCode.INTERNAL, "failed to load all models")
        self.problems = problems
        self.hint = hint


def run_to_status(options: ServerOptions, run: Callable[[], Coroutine[object, object, int]]) -> int:
    """Set up the log, run `run` on an event loop and return its status, 1 if it raises InferError."""
    # Objects from start-up stay; collections meanwhile only cost time. Modules need no collection at the end.
    gc.disable()
    gc.freeze()
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
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    except InferError as error:
        # Triton: "error: creating server: Internal - ...".
        _log.error("creating server: %s - %s", error.code.words, error.message)
        failure = error
    finally:
        log.shut_down()
    # Of several server processes only one reports the start.
    if _log.isEnabledFor(logging.ERROR):
        _print_start_failure(failure)
    return 1


def _print_start_failure(failure: InferError) -> None:
    if isinstance(failure, FailedStartError):
        print_failure("naiad serve: models did not load, and --exit-on-error is true", failure.problems, failure.hint)
    else:
        print_failure(f"naiad serve: {failure.message}")
