"""The target `naiad` of `mlflow deployments`: MLflow loads it through the entry point `mlflow.deployments`.

The module has what MLflow looks for: one client class, `target_help` and `run_local`.
"""

from naiad.integrations.mlflow.deployment_client import NaiadDeploymentClient
from naiad.integrations.mlflow.run_local import run_local
from naiad.integrations.mlflow.target import target_help

__all__ = ["NaiadDeploymentClient", "run_local", "target_help"]
