"""The manifests for KServe and Seldon.

Set `NAIAD_CRDS` to a directory with the systems' definitions (KServe: config/crd/full, Seldon:
operator/config/crd/bases) to validate against them; the other tests need no files.
"""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from naiad.options.command_line import parse_options
from support.kubernetes_manifests import DEPLOY, Manifest, container_of_kserve, read_manifests
from support.serving_commands import KSERVE, SELDON_1, SELDON_2

RUNTIMES = ("servingruntime", "clusterservingruntime")
FILES = sorted([*(DEPLOY / "kserve").glob("*.yaml"), *(DEPLOY / "seldon").glob("*.yaml")])


def manifest_of(path: Path) -> Manifest:
    (manifest,) = read_manifests(path.read_text())
    return manifest


def runtime(name: str) -> Manifest:
    return manifest_of(DEPLOY / "kserve" / f"{name}.yaml")


@pytest.mark.parametrize(
    ("command", "http_port", "grpc_port"),
    [(KSERVE, 8080, 9000), (SELDON_1, 9000, 9500), (SELDON_2, 9000, 9500)],
    ids=["kserve", "seldon-1", "seldon-2"],
)
def test_command_line_is_accepted_unchanged(command: Sequence[str], http_port: int, grpc_port: int) -> None:
    options = parse_options(command[1:])
    assert list(options.repository.paths) in (["/mnt/models"], ["/mnt/agent/models"])
    assert (options.http.port, options.grpc.port) == (http_port, grpc_port)


@pytest.mark.parametrize("name", RUNTIMES)
def test_runtime_starts_with_the_command_of_kserve(name: str) -> None:
    server = container_of_kserve(runtime(name))
    words = [*server["command"], *server["args"]]
    assert tuple(words[: len(KSERVE)]) == KSERVE
    options = parse_options(words[1:])
    assert options.drain_s + options.exit_timeout_s < 30  # the default grace period of a pod
    assert server["readinessProbe"]["httpGet"]["port"] == options.http.port


def test_runtimes_differ_by_kind_only() -> None:
    assert runtime(RUNTIMES[0])["spec"] == runtime(RUNTIMES[1])["spec"]


@pytest.mark.parametrize("name", ["inferenceservice", "inferenceservice-grpc"])
def test_inference_services_match_the_runtime(name: str) -> None:
    spec = runtime("servingruntime")
    model = runtime(name)["spec"]["predictor"]["model"]
    assert model["runtime"] == spec["metadata"]["name"]
    assert model["modelFormat"] in spec["spec"]["supportedModelFormats"]
    assert model["protocolVersion"] in spec["spec"]["protocolVersions"]


def test_grpc_port_is_that_of_the_runtime() -> None:
    model = runtime("inferenceservice-grpc")["spec"]["predictor"]["model"]
    options = parse_options(container_of_kserve(runtime("servingruntime"))["args"])
    assert [port["containerPort"] for port in model["ports"]] == [options.grpc.port]


def test_server_of_seldon_has_its_arguments() -> None:
    (server,) = manifest_of(DEPLOY / "seldon" / "server.yaml")["spec"]["podSpec"]["containers"]
    values = {"SERVER_MODELS_DIR": "/mnt/agent/models", "SERVER_HTTP_PORT": "9000", "SERVER_GRPC_PORT": "9500"}
    words = [*server["command"], *server["args"]]
    for name, value in values.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert set(words) == {word for word in SELDON_2 if not word.startswith(("--log-verbose", "--backend-config"))}


# --- the definitions of the systems ---------------------------------------------------------------------------------


def schema_of(manifest: Manifest) -> dict[str, Any]:
    """The schema of a kind among the definitions, in which unknown fields are errors."""
    directory = os.environ.get("NAIAD_CRDS")
    if not directory:
        pytest.skip("NAIAD_CRDS names no directory with the custom resource definitions of KServe and Seldon")
    group, _, version = manifest["apiVersion"].partition("/")
    for path in Path(directory).glob("*.yaml"):
        spec = yaml.load(path.read_bytes(), yaml.CSafeLoader)["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, manifest["kind"]):
            (found,) = [each for each in spec["versions"] if each["name"] == version]
            schema: dict[str, Any] = found["schema"]["openAPIV3Schema"]
            return strict(schema)
    raise AssertionError(f"no definition of {manifest['apiVersion']} {manifest['kind']} in {directory}")


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with unknown fields forbidden, as `kubectl apply --validate=strict` does."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    fields = schema.get("properties")
    if fields is not None:
        schema["properties"] = {name: strict(field) for name, field in fields.items()}
        if "metadata" in fields:
            schema["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = strict(schema[key])
    return schema


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_manifest_is_valid_for_its_definition(path: Path) -> None:
    manifest = manifest_of(path)
    validator = jsonschema.Draft7Validator(schema_of(manifest))
    validator.validate(manifest)
    broken = copy.deepcopy(dict(manifest))
    broken["spec"]["modelStore"] = "/mnt/models"
    with pytest.raises(jsonschema.ValidationError, match="modelStore"):
        validator.validate(broken)
