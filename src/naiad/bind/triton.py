"""Serve Python functions as models: bind them, run the server in this process, stop it.

    with Triton() as triton:
        triton.bind("Linear", infer, inputs=[Tensor(shape=(-1,), dtype=np.float32)], outputs=[...])
        triton.serve()

The server has an event loop of its own in a thread; the functions execute in threads of their instances.
"""

import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from naiad.bind.backend import BindBackend, BoundModel
from naiad.bind.callable_context import TritonContext
from naiad.bind.exceptions import (
    PyTritonBadParameterError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from naiad.bind.model_config.model_config import ModelConfig
from naiad.bind.model_config.tensor import Tensor
from naiad.bind.model_store import ModelStore, complete_config
from naiad.bind.triton_config import TritonConfig, TritonSecurityConfig, server_options
from naiad.core.errors import InferError
from naiad.options.options import ServerOptions
from naiad.server.hosted import HostedServer
from naiad.telemetry.logs import log

__all__ = [
    "DefaultTritonLifecyclePolicy",
    "Triton",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "VertextAILifecyclePolicy",
]

_log = logging.getLogger(__name__)

MONITORING_PERIOD_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class TritonLifecyclePolicy:
    """Accepted for programs written for PyTriton; here the server always starts with its models, see `Triton.run`."""

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
VertextAILifecyclePolicy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)


class Triton:
    """A server of bound functions. Its methods may be called from any thread.

    Models that are bound before `run` or `serve` are loaded before the server is ready; later ones at once.
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: str | Path | None = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
    ) -> None:
        """Prepare a server. Options come from `config`, otherwise from PYTRITON_TRITON_CONFIG_* variables.

        `workspace`: a directory for the configurations of the models; by default a temporary one. `security_config`:
        parts of the protocols that need a token; by default none does. Raises PyTritonBadParameterError for an
        unknown option or a wrong value.
        """
        self._security = security_config
        self._store = ModelStore(workspace)
        self._remove_files = weakref.finalize(self, self._store.close)
        self._options: ServerOptions = server_options(config, security_config, self._store.path)
        self._context = TritonContext()
        self._backend = BindBackend(self._context, self._stop_after)
        self._server: HostedServer | None = None
        self._starting: HostedServer | None = None
        self._lock = threading.RLock()
        """Held while the server starts, stops, and loads a model."""
        self._ended = threading.Event()
        self._failure = ""
        """Why an unrecoverable error has stopped the server."""

    def __enter__(self) -> Self:
        """Return the object; `run` and `serve` start the server."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server and remove the temporary files."""
        self.stop()
        self._remove_files()

    def bind(
        self,
        model_name: str,
        infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: Sequence[str] | None = None,
    ) -> None:
        """Serve a function as a model; a list of functions as a model with an instance for each.

        A function takes a list of `Request`s and returns a list of dictionaries of arrays, one for each request; the
        decorators in `naiad.bind.decorators` have other forms. It may be a coroutine function, and, with
        `ModelConfig(decoupled=True)`, a generator. `strict` checks names, dtypes and shapes of outputs.

        Raises PyTritonValidationError, PyTritonBadParameterError and PyTritonModelConfigError for a wrong
        description, PyTritonInvalidOperationError for a version that is bound already, PyTritonRuntimeError if the
        model does not load.
        """
        if trace_config:
            raise PyTritonBadParameterError(
                f"model '{model_name}': trace_config is an option of the server, expected in "
                "Triton(config=TritonConfig(trace_config=[...]))"
            )
        callables = list(infer_func) if isinstance(infer_func, Sequence) else [infer_func]
        _check_callables(model_name, callables)
        complete = complete_config(
            model_name, model_version, inputs, outputs, config or ModelConfig(), len(callables)
        )
        with self._lock:
            self._store.add(complete)
            self._backend.add(BoundModel(complete, callables, strict))
            if self._server is None:
                return
            try:
                self._server.load_model(model_name)
            except InferError as error:
                self._store.remove(model_name, model_version)
                self._backend.remove(model_name, model_version)
                raise PyTritonRuntimeError(f"model '{model_name}' does not load: {error.message}") from error

    def run(self) -> None:
        """Start the server and load the models; returns when they are ready.

        Raises PyTritonRuntimeError if a port is taken or a model does not load.
        """
        with self._lock:
            if self.is_alive():
                return
            self._failure = ""
            self._ended.clear()
            _configure_log(self._options)
            server = self._starting = HostedServer(self._options, [self._backend])
            try:
                server.start()
            except BaseException as error:
                log.shut_down()
                if not isinstance(error, InferError):
                    raise
                raise PyTritonRuntimeError(f"the server does not start: {error.message}") from error
            finally:
                self._starting = None
            self._server = server
        self._log_next()

    def connect(self) -> None:
        """Start the server, as `run` does: there is no separate connection."""
        self.run()

    def is_connected(self) -> bool:
        """Return whether the server runs."""
        return self.is_alive()

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Run the server until SIGINT, SIGTERM or `stop`; requests in flight get their responses.

        A second signal ends the process at once. Every `monitoring_period_s` it checks that the server is alive.
        Raises PyTritonRuntimeError if it does not start, or has stopped after PyTritonUnrecoverableError.
        """
        signalled = threading.Event()

        def end() -> None:
            signalled.set()
            self._ended.set()
            if self._starting is not None:
                _log.info("stopping when the models have loaded; a second signal ends the process at once")
                self._starting.abandon()

        with _first_signal_calls(end):
            try:
                self.run()
            except PyTritonRuntimeError:
                if not signalled.is_set():
                    raise
            while not (signalled.is_set() or self._ended.wait(monitoring_period_s)) and self.is_alive():
                pass
            self.stop()
        if self._failure:
            raise PyTritonRuntimeError(f"the server has stopped: {self._failure}")

    def stop(self) -> bool:
        """Stop the server: requests in flight end, models unload. Return False if it did not run.

        Models stay bound: `run` starts the server again.
        """
        with self._lock:
            server, self._server = self._server, None
            if server is None:
                return False
            is_graceful = server.stop()
            log.shut_down()
            self._ended.set()
        if not is_graceful:
            _log.error("requests were still executing after the exit timeout")
        return True

    def is_alive(self) -> bool:
        """Return whether the server runs."""
        server = self._server
        return server is not None and server.is_alive

    def port(self, service: str = "http") -> int:
        """naiad: return the open port of `http`, `grpc` or `metrics`; 0 for none."""
        server = self._server
        return 0 if server is None else server.port(service)

    def get_access_token(self) -> str | None:
        """Return the token of `security_config`; None without one."""
        return None if self._security is None else self._security.access_token

    def _stop_after(self, reason: str) -> None:
        """Stop because of an unrecoverable error; called on the thread of an instance, which must not wait for it."""
        self._failure = reason
        _log.error("unrecoverable error, the server stops: %s", reason)
        threading.Thread(target=self.stop, name="naiad stop", daemon=True).start()

    def _log_next(self) -> None:
        config = next(iter(self._context.model_configs.values()), None)
        if config is None:
            return
        protocol = "grpc" if self.port("grpc") else "http"
        command = f"naiad perf -m {config.model_name} -i {protocol} -u localhost:{self.port(protocol)}"
        shapes = [f"{spec.name}:{','.join('1' for _ in spec.shape)}" for spec in config.inputs if -1 in spec.shape]
        options = [*(f"--shape {each}" for each in shapes), *(["--streaming"] if config.decoupled else [])]
        _log.info("to measure it: %s; to stop it: Ctrl+C, or Triton.stop()", " ".join([command, *options]))


def _check_callables(model: str, callables: Sequence[object]) -> None:
    if not callables:
        raise PyTritonValidationError(f"model '{model}': infer_func is an empty list, expected at least one function")
    for each in callables:
        if not callable(each):
            raise PyTritonValidationError(f"model '{model}': infer_func is {each!r}, expected a function")
    if len({id(each) for each in callables}) < len(callables):
        _log.info(
            "model '%s' has several instances of one function: it must be safe for use by several threads", model
        )


def _configure_log(options: ServerOptions) -> None:
    """Write the server's log, unless the program has configured logging: then its handlers get it."""
    if not logging.getLogger().handlers or options.log.file:
        try:
            log.configure(options.log, escapes=os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0")
        except OSError as error:
            raise PyTritonBadParameterError(
                f"TritonConfig.log_file is {options.log.file}, which cannot be written: {error.strerror}"
            ) from error


@contextlib.contextmanager
def _first_signal_calls(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at the first signal, and end the process at the second one; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        if received:
            os._exit(1)
        received.append(number)
        end()

    previous = {number: signal.signal(number, receive) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
