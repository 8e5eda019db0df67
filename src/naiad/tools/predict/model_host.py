"""Where a job executes its model: in this process, or on a server."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from naiad.client import Client
from naiad.client.client import InferResult
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_declaration import STABLE
from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array
from naiad.server.embedded import EmbeddedServer
from naiad.tools.predict.job_signature import DEFAULT_ROWS
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.stores.store_place import StorePlace

_ADDRESSES = ("http://", "https://", "grpc://", "grpcs://", "http+unix://", "grpc+unix://")


class ModelEndpoint(Protocol):
    """Executes requests of one model. All calls raise InferError."""

    async def metadata(self) -> ModelMetadata:
        """Return inputs, outputs and versions."""

    async def config(self) -> ModelConfig:
        """Return the complete configuration."""

    async def infer(self, inputs: Mapping[str, Array], outputs: Iterable[str]) -> InferResult:
        """Execute one request; shapes include the batch dimension."""


class RemoteEndpoint:
    """A model of a running server."""

    def __init__(self, client: Client, model: str, version: str) -> None:
        self._client = client
        self._model = model
        self._version = version

    async def metadata(self) -> ModelMetadata:
        """Return inputs, outputs and versions."""
        return await self._client.model_metadata(self._model, self._version)

    async def config(self) -> ModelConfig:
        """Return the complete configuration."""
        return await self._client.model_config(self._model, self._version)

    async def infer(self, inputs: Mapping[str, Array], outputs: Iterable[str]) -> InferResult:
        """Execute one request."""
        return await self._client.infer(self._model, inputs, version=self._version, outputs=outputs)

    def at(self, version: str) -> "RemoteEndpoint":
        """Return the same model in a version."""
        return RemoteEndpoint(self._client, self._model, version)


class LocalEndpoint:
    """A model of a repository in this process."""

    def __init__(self, server: EmbeddedServer, model: str, version: str) -> None:
        self._server = server
        self._model = model
        self._version = version

    async def metadata(self) -> ModelMetadata:
        """Return inputs, outputs and versions."""
        return self._server.model_metadata(self._model, self._version)

    async def config(self) -> ModelConfig:
        """Return the complete configuration."""
        return self._server.model_config(self._model, self._version)

    async def infer(self, inputs: Mapping[str, Array], outputs: Iterable[str]) -> InferResult:
        """Execute one request."""
        return await self._server.infer(self._model, inputs, version=self._version, outputs=outputs)

    def at(self, version: str) -> "LocalEndpoint":
        """Return the same model in a version."""
        return LocalEndpoint(self._server, self._model, version)


def is_address(target: str) -> bool:
    """Return whether a target is a server, not a repository."""
    return target.startswith(_ADDRESSES)


def model_folders(target: str, config: ModelConfig) -> list[Path]:
    """Return the folders with the files of a model and of its steps, as far as they are on this machine."""
    if is_address(target):
        return []
    folders = (Path(target) / name for name in _models(config))
    return [folder for folder in folders if folder.is_dir()]


def model_objects(job: PredictJob, config: ModelConfig) -> dict[str, list[int | str]]:
    """Return size and identity of the objects of a model and of its steps, by name. Raises InferError."""
    place = StorePlace(job.target, job.timeout_s, "model repository")
    found = [each for name in _models(config) for each in place.objects.list_objects(name)]
    return {each.key: [each.size_bytes, each.identity] for each in sorted(found, key=lambda each: each.key)}


def _models(config: ModelConfig) -> list[str]:
    return list(dict.fromkeys([config.name, *(step.model_name for step in config.ensemble_scheduling.step)]))


@contextlib.asynccontextmanager
async def open_endpoint(job: PredictJob, *, follows_versions: bool = False) -> AsyncIterator[ModelEndpoint]:
    """Load the model, or connect to its server, for the block. Raises InferError.

    All requests of a job without a version are for the version that serves when it begins, also during a rollout:
    nothing in the output shows which version a row is from. With `follows_versions` each request is for the version
    that serves then.
    """
    if is_address(job.target):
        async with Client(job.target, headers=job.headers) as client:
            remote = RemoteEndpoint(client, job.model, job.version)
            yield remote if follows_versions else await _of_one_version(remote, job, remote.at)
        return
    if job.headers:
        raise invalid_argument(f"headers are for a server, and target '{job.target}' is a model repository")
    server = EmbeddedServer(
        job.target, [job.model], may_unpickle=job.allow_pickle, default_max_batch_size=DEFAULT_ROWS
    )
    try:
        await server.start()
        local = LocalEndpoint(server, job.model, job.version)
        yield local if follows_versions else await _of_one_version(local, job, local.at)
    finally:
        await server.close()


async def _of_one_version(
    endpoint: ModelEndpoint, job: PredictJob, at: Callable[[str], ModelEndpoint]
) -> ModelEndpoint:
    """Return the endpoint of the version that serves; the same one for a server without numbers of versions."""
    if job.version:
        return endpoint
    served = (await endpoint.metadata()).versions
    numbers = [each for each in served if each.isascii() and each.isdigit()]
    if len(served) > 1:
        # naiad has a name for the version that serves besides a canary; other servers serve the highest one.
        stable = await _known(at(STABLE).metadata())
        numbers = list(stable.versions) if stable is not None and len(stable.versions) == 1 else numbers
    found = at(max(numbers, key=int, default=""))
    # Some servers have versions in their metadata and none in their paths.
    return found if await _known(found.metadata()) is not None else endpoint


async def _known(asked: Awaitable[ModelMetadata]) -> ModelMetadata | None:
    """Return the answer about a version; None if the server does not know it."""
    try:
        return await asked
    except InferError as error:
        if error.code in (ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.CANCELLED):
            raise
        return None
