"""What the executions of a model may cost: time before they count as hung, workers before a request is refused."""

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument

EXECUTE_TIMEOUT = "execute_timeout_s"
"""Parameter of a model's configuration."""
DEFAULT_EXECUTE_TIMEOUT_S = 600.0
REFUSE_AFTER_DEATHS = "refuse_after_deaths"
"""Parameter of a model's configuration."""
_REFUSE_AFTER_DEATHS = 2


def read_execute_timeout_s(config: ModelConfig, default_s: float) -> float:
    """Return the limit of a model, 0 for none: its parameter, or what the server says. Raises InferError."""
    return _read(config, EXECUTE_TIMEOUT, default_s)


def read_refuse_after_deaths(config: ModelConfig) -> int:
    """Return after how many deaths of workers a request is refused that was executed each time; 0 for never.

    Raises InferError.
    """
    return int(_read(config, REFUSE_AFTER_DEATHS, _REFUSE_AFTER_DEATHS))


def _read(config: ModelConfig, name: str, default: float) -> float:
    text = config.parameters[name].string_value if name in config.parameters else ""
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise invalid_argument(
            f"model '{config.name}': parameter '{name}' is '{text}'; use a number that is not negative"
        )
    return value
