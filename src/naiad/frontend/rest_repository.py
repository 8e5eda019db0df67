"""REST routes of the model repository: index, load, unload. The work is done beside the event loop."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import InferError, excerpt, internal, unavailable, unsupported
from naiad.core.model import IndexEntry
from naiad.core.tensor import Buffer
from naiad.frontend.client_files import MayBringFiles, check_files
from naiad.frontend.exchange import HttpExchange
from naiad.frontend.router import JSON_HEADERS, respond_error
from naiad.frontend.side_threads import RunAside, run_here
from naiad.protocol.control_json import (
    decode_index_request,
    decode_load_parameters,
    decode_unload_parameters,
    encode_repository_index,
)
from naiad.protocol.status import status_of

_log = logging.getLogger(__name__)


class RepositoryEngine(Protocol):
    """What is asked of the engine about the repository, on other threads than the loop's."""

    is_draining: bool

    def survey_repository(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        """Return the repository index. Raises InferError."""

    def load_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model. Raises InferError."""

    def unload_model(self, name: str, parameters: Mapping[str, object]) -> None:
        """Unload a model. Raises InferError."""


class RepositoryRoutes:
    """The actions of `/v2/repository`."""

    def __init__(
        self,
        engine: RepositoryEngine,
        run_aside: RunAside = run_here,
        run_control: RunAside = run_here,
        may_bring_files: MayBringFiles = lambda: False,
    ) -> None:
        """`run_control` is for work that may take minutes."""
        self._engine = engine
        self._may_bring_files = may_bring_files
        self._run_aside = run_aside
        self._run_control = run_control

    def index(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Answer with the models of all repositories."""
        self._run(exchange, self._run_aside, functools.partial(self._survey, exchange.body))

    def load(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Load a model and answer when it is ready."""
        self._check(arguments)
        work = functools.partial(self._load, arguments["model"], exchange.body)
        self._run(exchange, self._run_control, work)

    def unload(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Unload a model and answer when it is gone."""
        self._check(arguments)
        work = functools.partial(self._unload, arguments["model"], exchange.body)
        self._run(exchange, self._run_control, work)

    def _check(self, arguments: Mapping[str, str]) -> None:
        if arguments["repository"]:
            raise unsupported("'repository_name' specification is not supported")
        if self._engine.is_draining:
            raise unavailable("Server not ready")

    def _run(self, exchange: HttpExchange, run: RunAside, work: Callable[[], Sequence[Buffer]]) -> None:
        run(work, functools.partial(exchange.respond, 200, JSON_HEADERS), functools.partial(_fail, exchange))

    # --- on other threads -------------------------------------------------------------------------------------------

    def _survey(self, body: Buffer) -> Sequence[Buffer]:
        return (encode_repository_index(self._engine.survey_repository(decode_index_request(body))),)

    def _load(self, model: str, body: Buffer) -> Sequence[Buffer]:
        parameters = decode_load_parameters(body)
        check_files(parameters, self._may_bring_files)
        self._engine.load_model(model, parameters)
        return ()

    def _unload(self, model: str, body: Buffer) -> Sequence[Buffer]:
        self._engine.unload_model(model, decode_unload_parameters(body))
        return ()


def _fail(exchange: HttpExchange, error: Exception) -> None:
    if not isinstance(error, InferError):
        _log.error("%s %s failed", exchange.method, excerpt(exchange.path), exc_info=error)
        error = internal("internal error; the log tells more")
    respond_error(exchange, status_of(error.code).http, error.message)
