"""Validation of custom resources against the definitions of their systems.

`NAIAD_CRDS` names a directory with these files, copied from the systems' repositories: KServe `config/crd/full`,
Seldon `operator/config/crd/bases`, KEDA `config/crd/bases`, Prometheus operator `example/prometheus-operator-crd`.
"""

import functools
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.kubernetes_manifests import Manifest


def validate_custom(manifest: Manifest) -> None:
    """Check an object against its definition, without unknown fields. Raises jsonschema.ValidationError."""
    directory = os.environ.get("NAIAD_CRDS")
    if not directory:
        pytest.skip("NAIAD_CRDS names no directory with custom resource definitions")
    schema = _schema(directory, manifest["apiVersion"], manifest["kind"])
    jsonschema.Draft7Validator(schema).validate(manifest)


@functools.cache
def _schema(directory: str, api_version: str, kind: str) -> dict[str, Any]:
    group, _, version = api_version.partition("/")
    for path in Path(directory).glob("*.yaml"):
        spec = yaml.load(path.read_bytes(), yaml.CSafeLoader)["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, kind):
            (found,) = [each for each in spec["versions"] if each["name"] == version]
            return _strict(found["schema"]["openAPIV3Schema"])
    raise AssertionError(f"no definition of {api_version} {kind} in {directory}")


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown fields forbidden, as `kubectl apply --validate=strict` does."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    fields = schema.get("properties")
    if fields is not None:
        schema["properties"] = {name: _strict(field) for name, field in fields.items()}
        if "metadata" in fields:
            schema["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _strict(schema[key])
    return schema
