"""`mlflow deployments run-local`: serve a model on this machine, until it is interrupted."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2 as codes

from naiad.client import InferError
from naiad.integrations.mlflow.model import FlavourError, deployable
from naiad.integrations.mlflow.target import TargetError, read_settings
from naiad.repository.stores.new_version import added_version


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
            status = subprocess.run(
                [sys.executable, "-m", "naiad", "serve", "--model-repository", temporary], env=os.environ, check=False
            ).returncode
    if status:
        raise MlflowException(f"{target}: the server ended with status {status}; its log has the reason")
