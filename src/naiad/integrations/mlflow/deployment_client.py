"""The client of `mlflow.deployments`: deployments are models of a running server."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

# MLflow reports its use over the network otherwise.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.artifacts import download_artifacts
from mlflow.deployments import BaseDeploymentClient
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2 as codes

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.core.model import ModelMetadata, ModelState
from naiad.core.tensor import Array
from naiad.integrations.mlflow.mlflow_tables import InputsError, Predictions, predictions_of, row_count, tensors_of
from naiad.integrations.mlflow.model_directory import FUNCTION, FlavourError, deployable, read_example
from naiad.integrations.mlflow.target import DeploymentSettings, TargetError, client_of, read_settings, url_of
from naiad.repository.stores.store import check_model_name
from naiad.tools.publish import Publication, PublicationSource, PublishError, SourceError, TrialSample, publish, push

_TIMEOUT_S = 60.0
_CONCURRENCY = 4
"""Requests of a prediction at the same time."""
_MOST_ROWS = 4096
"""In a request, for models with larger batches."""
_BACKENDS = {"mlflow": FUNCTION, "onnxruntime": "onnx", "trees": "xgboost"}
_CODES = {
    ErrorCode.NOT_FOUND: codes.RESOURCE_DOES_NOT_EXIST,
    ErrorCode.INVALID_ARG: codes.INVALID_PARAMETER_VALUE,
    ErrorCode.PERMISSION_DENIED: codes.PERMISSION_DENIED,
    ErrorCode.UNAVAILABLE: codes.TEMPORARILY_UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: codes.TEMPORARILY_UNAVAILABLE,
}
_T = TypeVar("_T")


class NaiadDeploymentClient(BaseDeploymentClient):
    """Deploys models to a server: `get_deploy_client("naiad:http://localhost:8000")`.

    All methods raise MlflowException that names target, deployment and fix. Endpoints are not supported.
    """

    def __init__(self, target_uri: str) -> None:
        """Read the target. Raises MlflowException."""
        super().__init__(target_uri)
        with _failures(target_uri):
            self.url = url_of(target_uri)

    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Deploy a model of the tracking server, the registry or a directory; return name and flavour.

        `config` has the settings that `mlflow deployments help -t naiad` lists.
        """
        with _failures(self.target_uri, endpoint):
            settings = read_settings(config)
            if self._run(lambda client: _versions(client, name)):
                raise MlflowException(
                    f"{self.target_uri} has deployment '{name}' already; use update_deployment, or another name",
                    codes.RESOURCE_ALREADY_EXISTS,
                )
            return self._deploy(name, model_uri, flavor, settings)

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Replace the model of a deployment without an interruption; return the flavour.

        If the new model fails, the old one continues.
        """
        with _failures(self.target_uri, endpoint):
            settings = read_settings(config)
            if not model_uri:
                raise MlflowException(
                    f"update of deployment '{name}' has no model_uri; give the model that replaces the served one",
                    codes.INVALID_PARAMETER_VALUE,
                )
            self._run(lambda client: _require(client, self.target_uri, name))
            return self._deploy(name, model_uri, flavor, settings)

    def delete_deployment(
        self, name: str, config: Mapping[str, Any] | None = None, endpoint: str | None = None
    ) -> None:
        """Unload a model; with a repository also remove its directory. An unknown name is no error."""
        with _failures(self.target_uri, endpoint):
            settings = read_settings(config)
            check_model_name(name)  # a path would name another directory, which would be removed
            self._run(lambda client: client.unload(name, timeout_s=settings.timeout_s))
            if settings.repository is not None and (settings.repository / name).is_dir():
                _remove(settings.repository, name)

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """Return name, ready versions and state of all models that the server serves, or fails to load."""
        with _failures(self.target_uri, endpoint):
            rows = self._run(lambda client: client.repository_index())
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            if not (row.version and row.is_wanted):  # unloaded, or a directory that was never loaded
                continue
            entry = found.setdefault(row.name, {"name": row.name, "versions": [], "state": "UNAVAILABLE"})
            if row.state is ModelState.READY:
                entry["versions"].append(row.version)
                entry["state"] = "READY"
        return list(found.values())

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """Return name, flavour, versions, inputs and outputs of a deployment."""
        with _failures(self.target_uri, endpoint):
            return self._run(lambda client: _describe(client, self.target_uri, name))

    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> Predictions:
        """Ask a deployment with a DataFrame, a dictionary of arrays, an array, or a list.

        `get_predictions()` of the result is a DataFrame, `result["predictions"]` an array, or arrays by output.
        """
        with _failures(self.target_uri, endpoint):
            if not deployment_name:
                raise MlflowException("predict has no deployment_name", codes.INVALID_PARAMETER_VALUE)
            return self._run(lambda client: _predict(client, deployment_name, inputs))

    def _deploy(self, name: str, model_uri: str, flavor: str | None, settings: DeploymentSettings) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="naiad-mlflow-") as temporary:
            directory = Path(download_artifacts(artifact_uri=model_uri, dst_path=temporary))
            source, flavour = deployable(directory, name, flavor, settings)
            sample = read_example(directory)
            done = self._run(lambda client: _publish(client, source, sample, settings))
        return {"name": done.model, "flavor": flavour, "version": str(done.version)}

    def _run(self, call: Callable[[Client], Awaitable[_T]]) -> _T:
        async def connected() -> _T:
            async with client_of(self.target_uri, _TIMEOUT_S) as client:
                return await call(client)

        return asyncio.run(connected())


async def _publish(
    client: Client, source: PublicationSource, sample: TrialSample | None, settings: DeploymentSettings
) -> Any:
    if settings.repository is None:
        return await push(
            client, source, sample, allows_other_tensors=settings.allow_other_tensors, timeout_s=settings.timeout_s
        )
    publication = Publication(
        source,
        settings.repository,
        sample,
        allows_other_tensors=settings.allow_other_tensors,
        keep_versions=settings.keep_versions,
        timeout_s=settings.timeout_s,
    )
    return await publish(client, publication)


async def _versions(client: Client, name: str) -> list[str]:
    rows = await client.repository_index()
    return [row.version for row in rows if row.name == name and row.state is ModelState.READY]


async def _require(client: Client, target: str, name: str) -> list[str]:
    versions = await _versions(client, name)
    if not versions:
        raise MlflowException(
            f"{target} has no deployment '{name}'; create it with create_deployment", codes.RESOURCE_DOES_NOT_EXIST
        )
    return versions


async def _describe(client: Client, target: str, name: str) -> dict[str, Any]:
    versions = await _require(client, target, name)
    metadata, config = await asyncio.gather(client.model_metadata(name), client.model_config(name))
    return {
        "name": name,
        "flavor": _BACKENDS.get(config.backend, config.backend),
        "versions": versions,
        "max_batch_size": config.max_batch_size,
        "inputs": {spec.name: f"{spec.datatype.value} {list(spec.shape)}" for spec in metadata.inputs},
        "outputs": {spec.name: f"{spec.datatype.value} {list(spec.shape)}" for spec in metadata.outputs},
    }


async def _predict(client: Client, name: str, inputs: Any) -> Predictions:
    metadata, config = await asyncio.gather(client.model_metadata(name), client.model_config(name))
    tensors = tensors_of(metadata, inputs)
    rows, size = row_count(tensors), min(config.max_batch_size, _MOST_ROWS)
    if not size or rows <= size:
        return predictions_of([await _ask(client, metadata, tensors)])
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def part(start: int) -> Mapping[str, Array]:
        async with slots:
            piece = {key: array[start : start + size] for key, array in tensors.items()}
            return await _ask(client, metadata, piece)

    return predictions_of(await asyncio.gather(*[part(start) for start in range(0, rows, size)]))


async def _ask(client: Client, metadata: ModelMetadata, tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    result = await client.infer(metadata.name, tensors)
    return {name: result[name] for name in result}


def _remove(repository: Path, name: str) -> None:
    """Remove a model in one step, for a server that looks at the repository meanwhile."""
    with tempfile.TemporaryDirectory(prefix=".removed-", dir=repository) as temporary:
        shutil.move(repository / name, temporary)


@contextmanager
def _failures(target: str, endpoint: str | None = None) -> Iterator[None]:
    """Raise MlflowException for the errors of the body, and for an endpoint."""
    if endpoint is not None:
        raise MlflowException(
            f"{target} has no endpoints, but endpoint is '{endpoint}'; leave it out", codes.INVALID_PARAMETER_VALUE
        )
    try:
        yield
    except ConnectionFailedError as error:
        raise MlflowException(
            f"{target}: {error.message}; start the server, or correct the target", codes.TEMPORARILY_UNAVAILABLE
        ) from error
    except InferError as error:
        raise MlflowException(f"{target}: {error.message}", _CODES.get(error.code, codes.INTERNAL_ERROR)) from error
    except (TargetError, FlavourError, InputsError, SourceError, PublishError) as error:
        raise MlflowException(f"{target}: {error}", codes.INVALID_PARAMETER_VALUE) from error
