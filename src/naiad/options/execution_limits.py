"""Limits of executions: time-outs, worker deaths per request, and rate limiter resources."""

from collections.abc import Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.options.flag import option

EXECUTION_COUNT = "execution_count"
MEASURED_RESOURCES = ("cpu", "memory_mb")
"""Resources whose amount can be measured: usable cores, and MiB of memory."""

_FORM = "write <name>:<count> or <name>:<count>:<device>"


@dataclass(frozen=True, slots=True)
class ResourceAmount:
    """Amount of a resource."""

    name: str
    count: int | None
    """None: the machine's value, for one of `MEASURED_RESOURCES`."""
    device: int | None = None
    """None: the amount of each device, and of a global resource."""


def parse_amounts(texts: Sequence[str]) -> tuple[ResourceAmount, ...]:
    """Return the amounts of `--rate-limit-resource`. Raises ValueError."""
    amounts: dict[tuple[str, int | None], ResourceAmount] = {}
    for text in texts:
        amount = _parse_amount(text)
        key = (amount.name, amount.device)
        if key in amounts:
            raise ValueError(f"'{text}' repeats the amount of '{amount.name}'")
        amounts[key] = amount
    return tuple(amounts.values())


def _parse_amount(text: str) -> ResourceAmount:
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2:
        raise ValueError(f"'{text}' is not an amount of a resource; {_FORM}")
    if numbers[0] == "auto":
        if name not in MEASURED_RESOURCES or len(numbers) > 1:
            known = " and ".join(f"{known}:auto" for known in MEASURED_RESOURCES)
            raise ValueError(f"'{text}': only {known} can be measured; {_FORM}")
        return ResourceAmount(name, None)
    for number in numbers:
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f"'{text}': '{number}' is not a number of 0 or more; {_FORM}")
    return ResourceAmount(name, int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None)


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """Whether executions wait for resources, and the amount of each."""

    mode: str = option(
        "off",
        "rate-limit",
        "Rate limiter. execution_count: instances execute when the resources of their 'rate_limiter' are free; "
        "needs --processes=1. off: ignores 'rate_limiter'.",
        choices=("off", EXECUTION_COUNT),
    )
    resources: Sequence[ResourceAmount] = option(
        (),
        "rate-limit-resource",
        "Amount of a resource, <name>:<count> or <name>:<count>:<device>; repeatable. naiad: cpu:auto and "
        "memory_mb:auto use the machine's values. Default: the largest amount that any instance needs.",
        repeat=True,
        read=parse_amounts,
    )

    @property
    def is_on(self) -> bool:
        """Whether `rate_limiter` in configurations has an effect."""
        return self.mode == EXECUTION_COUNT


EXECUTE_TIMEOUT = "execute_timeout_s"
"""Parameter of a model's configuration."""
DEFAULT_EXECUTE_TIMEOUT_S = 600.0
DEFAULT_CALL_WAIT_TIMEOUT_S = 60.0
REFUSE_AFTER_DEATHS = "refuse_after_deaths"
"""Parameter of a model's configuration."""
_REFUSE_AFTER_DEATHS = 2


def read_execute_timeout_s(config: ModelConfig, default_s: float) -> float:
    """Return the time limit of a model, 0 for none: its parameter, or the server's default. Raises InferError."""
    return _read(config, EXECUTE_TIMEOUT, default_s)


def read_refuse_after_deaths(config: ModelConfig) -> int:
    """Return after how many worker deaths in its executions a request is rejected; 0 for never. Raises InferError."""
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
