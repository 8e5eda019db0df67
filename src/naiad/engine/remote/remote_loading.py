"""Loading a model of other servers: its tensors come from them, or are compared with theirs."""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.remote_settings import check_written, completed_by, read_remote
from naiad.core.environment.ports import Loop
from naiad.core.errors import InferError, invalid_argument, unsupported
from naiad.engine.remote.remote_addresses import RemoteAddresses
from naiad.engine.remote.remote_model import RemoteModel, note_description
from naiad.engine.remote.remote_port import RemotePort, RemoteServer
from naiad.telemetry.statistics.model_statistics import ModelStatistics

_ANSWER_S = 15.0
"""How long a load waits for the answers of the servers."""


def load_remote(
    config: ModelConfig,
    version: int,
    finish: Callable[[ModelConfig], ModelConfig],
    port: RemotePort | None,
    loop: Loop,
    namespace: str,
) -> RemoteModel:
    """Return a version that the servers in `config` execute. On a loading thread.

    `finish` returns a completed configuration, checked. Raises InferError if a server has another model under that
    name, or if none answers and the configuration does not have the tensors.
    """
    if port is None:
        raise unsupported(f"model '{config.name}' is on another server, which only a server can reach")
    settings = read_remote(config)
    servers = [port.connect(url, settings.access) for url in settings.servers]
    try:
        found = [each.describe(settings.model, settings.version) for each in servers]
        wait(found, _ANSWER_S)
        completed = finish(_completed(config, found))
        addresses = RemoteAddresses(servers)
        for address, each in zip(addresses.all, found, strict=True):
            if not each.done():
                address.note_problem(f"no answer within {_ANSWER_S:g} s", 0)
                continue
            note_description(address, each, completed)
            if address.difference:
                raise invalid_argument(
                    f"model '{config.name}' does not fit model '{settings.model}' at {address.server.url}: "
                    f"{address.difference}"
                )
    except BaseException:
        _close(servers, loop)
        raise
    return RemoteModel(
        name=config.name,
        version=version,
        config=completed,
        settings=settings,
        addresses=addresses,
        statistics=ModelStatistics(config.name, str(version), namespace=namespace),
        loop=loop,
    )


def _completed(config: ModelConfig, found: "Sequence[Future[ModelConfig]]") -> ModelConfig:
    """Return the configuration with the tensors of the first server that answers, if it has none itself."""
    failure: InferError | None = None
    for each in found:
        if each.done():
            try:
                return completed_by(config, each.result())
            except InferError as error:
                failure = failure or error
    try:
        check_written(config)
    except InferError as error:
        raise error.with_message(
            f"{error.message}: {failure.message.strip()}" if failure else error.message
        ) from None
    return config


def _close(servers: Sequence[RemoteServer], loop: Loop) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        for server in servers:
            loop.call_soon_threadsafe(server.close)
