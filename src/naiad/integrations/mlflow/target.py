"""The target URI of a server, and the settings of a deployment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.client import Client, InferError

NAME = "naiad"
REPOSITORY_VARIABLE = "NAIAD_REPOSITORY"
KEY_VARIABLE = "NAIAD_API_KEY"
_DEFAULT_URL = "http://localhost:8000"
_LOAD_TIMEOUT_S = 600.0
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")

_HELP = f"""\
A running server of naiad. It needs --model-control-mode=explicit.

Target:
  naiad:http://HOST:PORT     also https, grpc and grpcs; `naiad` alone is naiad:{_DEFAULT_URL}
  {KEY_VARIABLE:<26} environment variable with the API key

Settings of create and update (-C NAME=VALUE), and of delete:
  repository=DIR             the directory of the server's --model-repository; default: {REPOSITORY_VARIABLE}.
                             Without it the files go with the load request, which the server must permit.
  trust=true                 permit code of this model: pickles, Python files. naiad refuses them otherwise.
  environment=true           an environment of exactly the packages in the model's requirements.txt
  max_batch_size=N           rows in a batch; default: that of the backend
  instances=N                copies of the model
  allow_other_tensors=true   replace a deployment that has other inputs or outputs
  keep_versions=N            remove older versions from the repository
  timeout_s=SECONDS          of a load; default 600

Flavors (-f): python_function, onnx, sklearn, xgboost, lightgbm. Default: onnx for ONNX models with named tensors,
which needs no MLflow in the server, and python_function for all others.
"""


def target_help() -> str:
    """Return the help of `mlflow deployments help -t naiad`."""
    return _HELP


class TargetError(ValueError):
    """The target or a setting has a wrong value; the message names it and the expected value."""


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """How a model is deployed."""

    repository: Path | None = None
    """None to send the files with the load request."""
    trust: bool = False
    environment: bool = False
    max_batch_size: int | None = None
    instances: int = 0
    """0 for the backend's default."""
    allow_other_tensors: bool = False
    keep_versions: int = 0
    timeout_s: float = _LOAD_TIMEOUT_S


def read_settings(config: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> DeploymentSettings:
    """Return the settings of MLflow's `config`, whose values are text on the command line. Raises TargetError."""
    given = dict(config or {})
    repository = given.pop("repository", None) or environ.get(REPOSITORY_VARIABLE)
    max_batch_size = given.pop("max_batch_size", None)
    settings = DeploymentSettings(
        repository=Path(repository) if repository else None,
        trust=_flag(given, "trust"),
        environment=_flag(given, "environment"),
        max_batch_size=None if max_batch_size is None else _count("max_batch_size", max_batch_size),
        instances=_count("instances", given.pop("instances", 0)),
        allow_other_tensors=_flag(given, "allow_other_tensors"),
        keep_versions=_count("keep_versions", given.pop("keep_versions", 0)),
        timeout_s=_seconds("timeout_s", given.pop("timeout_s", _LOAD_TIMEOUT_S)),
    )
    if given:
        known = ", ".join(field for field in DeploymentSettings.__dataclass_fields__)
        raise TargetError(f"config has '{next(iter(given))}', which is no setting of naiad; expected {known}")
    return settings


def url_of(target: str) -> str:
    """Return the address in a target URI. Raises TargetError."""
    name, _, url = target.partition(":")
    if name != NAME:
        raise TargetError(f"target '{target}' is none of naiad; expected naiad:http://HOST:PORT")
    url = url.removeprefix("//") if not url.startswith("///") else url
    if not url:
        return _DEFAULT_URL
    return url if "://" in url else f"http://{url}"


def client_of(target: str, timeout_s: float, environ: Mapping[str, str] = os.environ) -> Client:
    """Return a client of a target, for one event loop. Raises TargetError."""
    key = environ.get(KEY_VARIABLE, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return Client(url_of(target), headers=headers, timeout_s=timeout_s)
    except InferError as error:
        raise TargetError(f"target '{target}': {error.message}") from error


def _flag(given: dict[str, Any], name: str) -> bool:
    value = str(given.pop(name, False)).lower()
    if value not in (*_TRUE, *_FALSE):
        raise TargetError(f"{name} is '{value}'; expected true or false")
    return value in _TRUE


def _count(name: str, value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal()):
        raise TargetError(f"{name} is '{text}'; expected a whole number from 0")
    return int(text)


def _seconds(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise TargetError(f"{name} is '{value}'; expected a number of seconds above 0")
    return found
