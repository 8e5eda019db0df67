"""The parameters of a TensorRT model and the settings of the backend. The names are Triton's."""

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.backend.api import ModelContext
from naiad.backend.framework.parameters import Parameters
from naiad.config.model_config_pb2 import ModelConfig

_POLICIES = ("BLOCKING", "DEVICE_BLOCKING")
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")


@dataclass(frozen=True, slots=True)
class TensorRtOptions:
    """How engines are read and executed."""

    is_version_compatible: bool
    """Whether engines may contain a runtime of another version, that is, code."""
    plugins: tuple[str, ...]
    """Libraries with plugins."""
    has_turns: bool
    """DEVICE_BLOCKING: instances on one GPU begin their executions one after another."""
    allocation_strategy: str
    """When an execution context allocates its memory: STATIC or ON_PROFILE_CHANGE."""


def read_options(context: ModelContext) -> TensorRtOptions:
    """Return the options of a model. Raises InferError(INVALID_ARG)."""
    settings = _settings(context.name, context.backend_config)
    strategy = Parameters(context.config).choice("execution_context_allocation_strategy", _STRATEGIES, "STATIC")
    return TensorRtOptions(
        is_version_compatible=settings.flag("version-compatible"),
        plugins=tuple(path for path in settings.text("plugins").split(";") if path),
        has_turns=settings.choice("execution-policy", _POLICIES, "BLOCKING") == "DEVICE_BLOCKING",
        allocation_strategy=strategy,
    )


def _settings(model: str, backend_config: Mapping[str, str]) -> Parameters:
    # A model must not allow itself to contain code: settings of the server only.
    return Parameters(ModelConfig(name=model), backend_config)
