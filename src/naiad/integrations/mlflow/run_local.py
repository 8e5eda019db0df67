"""`mlflow deployments run-local`: serve a model on this machine, until it is interrupted."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2 as codes

from naiad.client import InferError
from naiad.integrations.mlflow.model_directory import FlavourError, deployable
from naiad.integrations.mlflow.target import TargetError, read_settings
from naiad.repository.stores.new_version import added_version
from naiad.tools.process.child import ChildProcess

_GRACE_S = 40.0
"""The server itself gives running requests 30 s."""


def run_local(
    target: str, name: str, model_uri: str, flavor: str | None = None, config: Mapping[str, Any] | None = None
) -> None:
    """Serve a model on the usual ports with a server of its own. Raises MlflowException if it cannot be served."""
    with tempfile.TemporaryDirectory(prefix="naiad-local-") as temporary:
        try:
            settings = read_settings(config, {})
            source, _ = deployable(Path(download_artifacts(artifact_uri=model_uri)), name, flavor, settings)
        except (TargetError, FlavourError, InferError) as error:
            raise MlflowException(f"{target}: {error}", codes.INVALID_PARAMETER_VALUE) from error
        with added_version(Path(temporary), source.model, source.new):
            command = [sys.executable, "-m", "naiad", "serve", "--model-repository", temporary]
            server = ChildProcess(command, shows_output=True)
            try:
                status = server.wait()
            finally:
                server.terminate(_GRACE_S)  # after Ctrl-C
    if status:
        raise MlflowException(f"{target}: the server ended with status {status}; its log has the reason")
