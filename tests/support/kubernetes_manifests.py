"""The files of `deploy/` for Kubernetes, and what holds for every pod in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES_VERSIONS = ("1.30", "1.37")
WORKLOADS = ("Deployment", "StatefulSet")
CUSTOM_GROUPS = ("keda.sh", "monitoring.coreos.com", "serving.kserve.io", "mlops.seldon.io")
"""API groups that Kubernetes' schemas do not have."""

Manifest = Mapping[str, Any]


def read_manifests(text: str) -> list[Manifest]:
    """Return the objects of a YAML text."""
    return [document for document in yaml.safe_load_all(text) if document]


def workload(manifests: Sequence[Manifest]) -> Manifest:
    """Return the Deployment or StatefulSet."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] in WORKLOADS]
    return found


def container(manifests: Sequence[Manifest]) -> Manifest:
    """Return the container of the workload that runs naiad."""
    found: Manifest = workload(manifests)["spec"]["template"]["spec"]["containers"][0]
    return found


def validate_strictly(manifest: Manifest) -> None:
    """Check an object against Kubernetes' schemas without unknown fields; custom resources pass unread."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate of the group test is missing")
    if manifest["apiVersion"].partition("/")[0] in CUSTOM_GROUPS:
        return
    for version in KUBERNETES_VERSIONS:
        validator.validate(dict(manifest), version, strict=True)


def container_of_kserve(manifest: Manifest) -> Manifest:
    """Return the container of a ServingRuntime that runs naiad."""
    (found,) = manifest["spec"]["containers"]
    assert found["name"] == "kserve-container"
    return dict(found)
