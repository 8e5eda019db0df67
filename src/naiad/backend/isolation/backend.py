"""The server's part: a backend with instances in worker processes.

Only workers import the backend and its framework. A crash of the framework ends one worker, which is restarted like
that of a Python model. An `EXECUTION_ENV_PATH`, of the model or of its backend (`--backend-config`), gives the
framework an interpreter and packages of its own; naiad itself is the server's there too.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naiad.backend.api import Backend, InstanceSpec, Model, ModelContext
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.process.execution_environment import BASE_PARAMETER, PARAMETER
from naiad.backend.workers.worker_model import WorkerModel, ask_once
from naiad.backend.workers.worker_settings import WorkerSettings, WorkerSource, read_settings, thread_count
from naiad.config.backends import ISOLATION_ADAPTER
from naiad.config.forms.json_form import config_from_dict, config_to_json
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.config.problem import raise_problems
from naiad.core.version import PACKAGE_DIR

_NEEDS = ("numpy", "protobuf>=5.29", "ml_dtypes>=0.4", "orjson>=3.10")
"""What the adapter imports, installed with the packages of a requirements file."""


class IsolatedBackend(Backend):
    """Represents the backend `name` at `point` (`module:class`), which workers import, for one model."""

    def __init__(self, name: str, point: str) -> None:
        self.name = name  # type: ignore[misc]  # a ClassVar of ordinary backends
        self._point = point
        self._gpu_unsupported_reason: str | None = None

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Return the backend's completion, from a temporary process. Raises InferError."""
        settings = self._settings(context)
        said = ask_once(context, self._source(settings), settings)
        self._gpu_unsupported_reason = str(said["gpu_unsupported_reason"])
        completed, problems = config_from_dict(said["config"])
        raise_problems(problems)
        return completed

    def gpu_unsupported_reason(self) -> str:
        """Return the reason of the backend, which `auto_complete` has queried."""
        if self._gpu_unsupported_reason is None:
            return (
                f"backend '{self.name}' with parameter 'isolation' was not asked whether it can use one: that is "
                "part of completing configurations, which --disable-auto-complete-config turns off"
            )
        return self._gpu_unsupported_reason

    def load(self, context: ModelContext) -> Model:
        """Read the settings of the workers; each of them loads the model. Raises InferError(INVALID_ARG)."""
        settings = self._settings(context)
        # The backend applies `reshape`; workers receive and send the shapes of clients.
        shown = ModelConfig()
        shown.CopyFrom(context.config)
        for tensor in (*shown.input, *shown.output):
            tensor.ClearField("reshape")
        rules = TensorRules(shown, version=str(context.version), is_strict=settings.has_strict_outputs)
        return WorkerModel(context, self._source(settings), settings, rules)

    def _settings(self, context: ModelContext) -> WorkerSettings:
        return read_settings(_with_environment(context), context.worker_config, needs=_NEEDS)

    def source_on(self, import_paths: Sequence[str]) -> "BackendSource":
        """Return the source for workers that also find modules on `import_paths`."""
        return BackendSource(self.name, self._point, tuple(import_paths))

    def _source(self, settings: WorkerSettings) -> "BackendSource":
        has_own_packages = settings.interpreter.executable != sys.executable
        source = self.source_on(() if has_own_packages else sys.path)
        return replace(source, package_dir=str(PACKAGE_DIR)) if has_own_packages else source


@dataclass(frozen=True, slots=True)
class BackendSource(WorkerSource):
    """The backend and the model of workers."""

    backend: str
    point: str
    import_paths: tuple[str, ...]
    """Module directories of the server, for workers on its own interpreter."""
    package_dir: str = ""
    """The server's package naiad, for workers on another interpreter."""

    def notes(self, context: ModelContext) -> dict[str, Any]:
        """Return the notes that a worker needs before it loads the model."""
        return {
            "adapter": ISOLATION_ADAPTER,
            "import_paths": self.import_paths,
            "package_dir": self.package_dir,
            "version_dir": str(context.version_dir),
        }

    def args(self, context: ModelContext, spec: InstanceSpec) -> Mapping[str, str]:
        """Return the adapter's arguments besides the arguments of `initialize`."""
        isolation = {
            "backend": self.backend,
            "point": self.point,
            "index": spec.index,
            "version_dir": str(context.version_dir),
            "usable_cores": thread_count(context, context.host_policies.get(spec.host_policy)),
            "backend_config": dict(context.backend_config),
            "execute_timeout_s": context.execute_timeout_s,
            "namespace": context.namespace,
        }
        config = _config_of_one(context.config, spec)
        return {"isolation": json.dumps(isolation), "model_config": config_to_json(config).decode()}


def _with_environment(context: ModelContext) -> ModelContext:
    """Return a context with the environment of `--backend-config`, if the model has none of its own."""
    settings = context.backend_config
    if PARAMETER in context.config.parameters or PARAMETER not in settings:
        return context
    config = ModelConfig()
    config.CopyFrom(context.config)
    # A relative path is one of the command line.
    path = settings[PARAMETER]
    config.parameters[PARAMETER].string_value = path if path.startswith("$$") else str(Path(path).absolute())
    if BASE_PARAMETER in settings:
        config.parameters[BASE_PARAMETER].string_value = settings[BASE_PARAMETER]
    return replace(context, config=config)


def _config_of_one(config: ModelConfig, spec: InstanceSpec) -> ModelConfig:
    """Return the configuration with only the instance of one worker."""
    if not config.instance_group:
        return config
    own = ModelConfig()
    own.CopyFrom(config)
    del own.instance_group[:]
    group = own.instance_group.add(name=spec.name, count=1, kind=ModelInstanceGroup.Kind.Value(spec.kind))
    if spec.kind == "KIND_GPU":
        group.gpus.append(spec.device_id)
    return own
