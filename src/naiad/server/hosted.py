"""A server inside another program: it runs on an event loop of its own, in a thread of the program's process.

The program starts it, loads and unloads models, and stops it, from any thread but the server's own. Signals, the
garbage collector and the log stay the program's business.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import uvloop

from naiad.backend.api import Backend
from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.core.model import IndexEntry
from naiad.engine.engine import Engine
from naiad.engine.serving.served import Served
from naiad.options.options import ServerOptions
from naiad.repository.control.control_modes import RepositoryControl
from naiad.server.app import Server
from naiad.server.parts import ServerParts, announce
from naiad.server.ports.ports import Ports
from naiad.server.process.process_environment import FailedStartError, StopSignal, raise_file_limit

_log = logging.getLogger(__name__)


class _ThreadStop(StopSignal):
    """Set by the program's threads instead of signals."""

    def __init__(self) -> None:
        super().__init__(exit_now=lambda _: None)
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the loop; only the main thread can handle signals."""
        self._loop = loop

    def set_from_thread(self) -> None:
        """Ask the server to exit; callable from any thread, also before the loop runs."""
        if self._loop is None:
            self._event.set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._event.set)


class _AbandonedStartError(InferError):
    def __init__(self) -> None:
        super().__init__(ErrorCode.CANCELLED, "the server was stopped while its models were loading")


class _Hosting:
    """What a server in a thread reports to its program."""

    def __init__(self, on_serving: Callable[[], object]) -> None:
        self._on_serving = on_serving
        self._is_serving = False
        self.ports: Mapping[str, int] = {}
        """The open ports by the prefix of their flags."""
        self.exit_status = 0

    def serves(self, options: ServerOptions, engine: Engine, ports: Ports) -> None:
        """Note the ports of a server that serves."""
        announce(options, engine, ports)
        self.ports = {endpoint.flag: endpoint.port for endpoint in ports.endpoints()}
        self._is_serving = True
        self._on_serving()

    def end(self, status: int) -> None:
        """Give up what is still running: its threads are daemons."""
        if not self._is_serving:
            raise _AbandonedStartError
        self.exit_status = status


class HostedServer:
    """A server in a thread. Its methods block; none may be called on the server's own event loop."""

    def __init__(self, options: ServerOptions, backends: Sequence[Backend] = ()) -> None:
        """`backends` are objects for models whose backend no package has."""
        self._options = options
        self._backends = backends
        self._stop = _ThreadStop()
        self._server: Server | None = None
        self._is_decided = threading.Event()
        """The server serves, or its start has failed."""
        self._hosting = _Hosting(self._is_decided.set)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="naiad server", daemon=True)

    def start(self) -> None:
        """Open the ports, load the models of the start, and return once the server is ready.

        Raises InferError if a port cannot be opened or a model does not load; nothing is left then.
        """
        raise_file_limit(self._options.most_connections, is_requested=self._options.has_connection_limits)
        self._thread.start()
        try:
            self._is_decided.wait()
        except BaseException:  # a signal: the start goes on in the thread, and must end
            self._stop.set_from_thread()
            raise
        if self._failure is not None:
            self._thread.join()
            raise _explained(self._failure)

    def abandon(self) -> None:
        """Ask the server to stop, without waiting: `start` raises InferError if it has not ended."""
        self._stop.set_from_thread()

    @property
    def is_alive(self) -> bool:
        """Whether the server runs: from its start until `stop`."""
        return self._thread.is_alive()

    def port(self, service: str) -> int:
        """Return the open port of `http`, `grpc` or `metrics`; 0 for none."""
        return self._hosting.ports.get(service, 0)

    def load_model(self, name: str) -> None:
        """Load a model of the repository, or load it again. Raises InferError."""
        self._control().load_model(name, {})

    def unload_model(self, name: str) -> None:
        """Unload a model when its requests have ended. Raises InferError."""
        self._control().unload_model(name, {})

    def index(self) -> Sequence[IndexEntry]:
        """Return the models and versions of the repository with their states."""
        return () if self._server is None else self._server.engine.views.repository_index()

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance, or for their model to be loaded; from any thread."""
        return 0 if self._server is None else self._server.engine.in_flight.pending_count

    def stop(self) -> bool:
        """Stop taking requests, finish those in flight, unload the models; return whether all ended in time.

        Further calls wait for the end, too.
        """
        self._stop.set_from_thread()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        return self._hosting.exit_status == 0

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the server; False after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _control(self) -> RepositoryControl[Served]:
        server = self._server
        if server is None or server.control is None or not self._thread.is_alive():
            raise unavailable("the server does not run")
        return server.control

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._is_decided.is_set():
                _log.exception("the server has ended after an error")
            self._failure = error
        finally:
            self._is_decided.set()

    async def _serve(self) -> None:
        parts = ServerParts(
            self._stop,
            backends=self._backends,
            on_serving=self._hosting.serves,
            tune=lambda: None,  # the garbage collector is the program's
            end=self._hosting.end,
        )
        server = self._server = Server(self._options, parts)
        await server.run()


def _explained(error: BaseException) -> BaseException:
    """Return the error of a start with the problems of the models in its message."""
    if isinstance(error, FailedStartError) and error.problems:
        return error.with_message("; ".join([error.message, *error.problems]))
    return error
