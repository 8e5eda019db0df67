"""The repository of bound models: a directory with a `config.pbtxt` for each, written when a model is bound.

For the server it is a repository like any other; only the backend of these models finds their functions in memory.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.bind.backend import NAME
from naiad.bind.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonValidationError,
)
from naiad.bind.model_config.common import DeviceKind
from naiad.bind.model_config.generator import WARMUP_DIRECTORY, to_message, write_warmup_files
from naiad.bind.model_config.model_config import ModelConfig
from naiad.bind.model_config.tensor import Tensor
from naiad.bind.model_config.triton_model_config import ResponseCache, TensorSpec, TritonModelConfig
from naiad.config.autofill import autofill, normalize
from naiad.config.forms.pbtxt.text_format import format_config
from naiad.config.problem import errors_of
from naiad.config.tensors.features import NAMES
from naiad.config.validate.model import validate
from naiad.files.temporary import OwnDirectory

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def complete_config(
    name: str,
    version: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    config: ModelConfig,
    instance_count: int,
) -> TritonModelConfig:
    """Return the complete configuration of a bound model. Raises PyTritonValidationError for a wrong name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise PyTritonValidationError(
            f"model name '{name}' is invalid, expected letters, digits, dots, underscores and dashes"
        )
    if version < 1:
        raise PyTritonValidationError(f"model '{name}': model_version is {version!r}, expected a number from 1")
    optional = [tensor.name or f"OUTPUT_{index}" for index, tensor in enumerate(outputs, 1) if tensor.optional]
    if optional:
        raise PyTritonValidationError(f"model '{name}': outputs cannot be optional: {', '.join(optional)}")
    if config.feature_names and len(inputs) != 1:
        raise PyTritonValidationError(
            f"model '{name}': feature_names are for a model with one input, and this one has {len(inputs)}"
        )
    parameters = {NAMES: json.dumps(list(config.feature_names))} if config.feature_names else {}
    return TritonModelConfig(
        model_name=name,
        model_version=version,
        max_batch_size=config.max_batch_size,
        batching=config.batching,
        batcher=config.batcher if config.batching else None,
        instance_group={DeviceKind.KIND_CPU: instance_count},
        decoupled=config.decoupled,
        inputs=_specs(inputs, "INPUT"),
        outputs=_specs(outputs, "OUTPUT"),
        response_cache=ResponseCache(enable=True) if config.response_cache else None,
        model_warmup=config.model_warmup,
        backend=NAME,
        backend_parameters=parameters,
    )


def _specs(tensors: Sequence[Tensor], prefix: str) -> list[TensorSpec]:
    return [
        TensorSpec(tensor.name or f"{prefix}_{index}", tuple(tensor.shape), tensor.dtype, tensor.optional)
        for index, tensor in enumerate(tensors, start=1)
    ]


class ModelStore:
    """Writes the directories of bound models."""

    def __init__(self, workspace: str | Path | None = None) -> None:
        """`workspace` is created if need be; without one it is a temporary directory, which `close` removes."""
        self._temporary: OwnDirectory | None = None
        if workspace is None:
            self._temporary = OwnDirectory("bind")
            workspace = self._temporary.path
        self.path = Path(workspace).absolute() / "model-store"
        self.path.mkdir(parents=True, exist_ok=True)
        self._versions: dict[str, dict[int, TritonModelConfig]] = {}

    def add(self, config: TritonModelConfig) -> None:
        """Write a version of a model.

        Raises PyTritonInvalidOperationError if it is bound already, PyTritonModelConfigError for a configuration that
        the server would refuse, or that differs from the one of the model's other versions.
        """
        name, version = config.model_name, config.model_version
        versions = self._versions.get(name, {})
        if version in versions:
            raise PyTritonInvalidOperationError(
                f"model '{name}' version {version} is bound already; choose another model_name or model_version"
            )
        for other in versions.values():
            if replace(config, model_version=other.model_version) != other:
                raise PyTritonModelConfigError(
                    f"model '{name}': versions {other.model_version} and {version} have different configurations; "
                    "versions of a model share tensors, batching and number of functions"
                )
        message = to_message(config)
        message.version_policy.all.SetInParent()
        problems = errors_of(
            validate(normalize(autofill(message, model_name=name)), model_name=name, known_backends=(NAME,))
        )
        if problems:
            raise PyTritonModelConfigError(f"model '{name}': {'; '.join(map(str, problems))}")
        directory = self.path / name
        write_warmup_files(config, directory / WARMUP_DIRECTORY)
        (directory / str(version)).mkdir(parents=True, exist_ok=True)
        (directory / "config.pbtxt").write_text(format_config(message))
        self._versions.setdefault(name, {})[version] = config

    def remove(self, name: str, version: int) -> None:
        """Remove a version, and the model with its last one."""
        self._versions.get(name, {}).pop(version, None)
        if self._versions.get(name):
            shutil.rmtree(self.path / name / str(version), ignore_errors=True)
        else:
            self._versions.pop(name, None)
            shutil.rmtree(self.path / name, ignore_errors=True)

    def close(self) -> None:
        """Remove the models of this store, and a temporary workspace completely."""
        for name in list(self._versions):
            shutil.rmtree(self.path / name, ignore_errors=True)
        self._versions.clear()
        if self._temporary is not None:
            self._temporary.remove()
