"""The parameters of a model that say when it is loaded and when it leaves: `load_policy` and two times."""

from dataclasses import dataclass

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelConfig

LOAD_POLICY = "load_policy"
"""`parameters { key: "load_policy" value { string_value: "on-demand" } }`"""
IDLE_UNLOAD_S = "idle_unload_s"
"""Seconds without a request after which an on-demand model is unloaded; 0 for never."""
MIN_RESIDENCE_S = "min_residence_s"
"""Seconds that an on-demand model stays loaded at least."""
ON_DEMAND = "on-demand"
PINNED = "pinned"
_POLICIES = (ON_DEMAND, PINNED)
_TIMES = (IDLE_UNLOAD_S, MIN_RESIDENCE_S)
_MAX_S = 365 * 86400.0


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """When a model is loaded, and when it may leave."""

    is_on_demand: bool = False
    """Whether its first request loads it; otherwise it is loaded at once, and stays."""
    idle_unload_s: float = 0.0
    """0: it stays until its memory is needed."""
    min_residence_s: float = 0.0


def read_load_policy(config: ModelConfig, default: LoadPolicy) -> LoadPolicy:
    """Return the policy in a valid configuration; `default` is the server's."""

    def seconds(name: str, default_s: float) -> float:
        return float(config.parameters[name].string_value) if name in config.parameters else default_s

    is_on_demand = default.is_on_demand
    if LOAD_POLICY in config.parameters:
        is_on_demand = config.parameters[LOAD_POLICY].string_value == ON_DEMAND
    return LoadPolicy(
        is_on_demand,
        seconds(IDLE_UNLOAD_S, default.idle_unload_s),
        seconds(MIN_RESIDENCE_S, default.min_residence_s),
    )


def check_load_policy(findings: Findings) -> None:
    """Check the parameters."""
    parameters = findings.config.parameters
    if LOAD_POLICY in parameters and parameters[LOAD_POLICY].string_value not in _POLICIES:
        findings.parameter_error(
            LOAD_POLICY,
            "has an unknown value",
            text=parameters[LOAD_POLICY].string_value,
            expected=" or ".join(f'string_value: "{policy}"' for policy in _POLICIES),
        )
    for name in _TIMES:
        if name not in parameters:
            continue
        text = parameters[name].string_value
        if not _is_time(text):
            expected = f"a number of seconds from 0 to {_MAX_S:.0f}"
            findings.parameter_error(name, "is not a time in seconds", text=text, expected=expected)
        elif LOAD_POLICY in parameters and parameters[LOAD_POLICY].string_value == PINNED:
            findings.warning(
                f"parameter '{name}' has no effect on a pinned model",
                map_path("parameters", name),
                text=text,
                expected=f"parameter '{LOAD_POLICY}' with string_value \"{ON_DEMAND}\"",
            )


def _is_time(text: str) -> bool:
    try:
        return 0 <= float(text) <= _MAX_S
    except ValueError:
        return False
