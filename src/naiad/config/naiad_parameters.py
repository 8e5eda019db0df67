"""naiad's own model parameters, apart from the parameters of Python models.

They set the limit of a model in the response cache, adaptive batching, and the isolation of instances in worker
processes. Parameters with a module of their own have only their names here: few models have them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.config.backends import PROCESS_BACKENDS, canonical_name
from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument

OPENAI = "openai"
"""See `openai_mapping`."""
PICTURES = "pictures"
"""See `tensors.pictures`."""
SWITCH = "adaptive_batching"
"""`parameters { key: "adaptive_batching" value { string_value: "true" } }`"""
GOAL = "adaptive_batching_latency_goal_us"
"""Latency goal: maximum time from the arrival of a request to its response, in microseconds."""
_MAX_GOAL_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class AdaptiveBatching:
    """The values of the parameters."""

    latency_goal_ns: int = 0
    """0: respond as soon as possible."""


def read_adaptive_batching(config: ModelConfig) -> AdaptiveBatching | None:
    """Return the values in a valid configuration; None for a dynamic batcher that does not adapt."""
    if SWITCH not in config.parameters or config.parameters[SWITCH].string_value.lower() != "true":
        return None
    goal_us = int(config.parameters[GOAL].string_value) if GOAL in config.parameters else 0
    return AdaptiveBatching(goal_us * 1000)


def check_adaptive_batching(findings: Findings) -> None:
    """Check the parameters."""
    config = findings.config
    switch = config.parameters[SWITCH].string_value if SWITCH in config.parameters else ""
    if SWITCH in config.parameters and switch.lower() not in ("true", "false"):
        expected = 'string_value: "true" or "false"'
        findings.parameter_error(SWITCH, "is neither true nor false", text=switch, expected=expected)
    is_on = switch.lower() == "true"
    if is_on and not config.HasField("dynamic_batching"):
        expected = "'dynamic_batching { }' in the configuration"
        findings.parameter_error(SWITCH, "requires the dynamic batcher", text=switch, expected=expected)
    if GOAL in config.parameters:
        _check_goal(findings, config.parameters[GOAL].string_value, is_on=is_on)


def _check_goal(findings: Findings, goal: str, *, is_on: bool) -> None:
    if not (goal.isascii() and goal.isdecimal() and 0 < int(goal[:20]) <= _MAX_GOAL_US):
        expected = f"a whole number from 1 to {_MAX_GOAL_US}"
        findings.parameter_error(GOAL, "is not a time in microseconds", text=goal, expected=expected)
    elif not is_on:
        findings.warning(
            f"parameter '{GOAL}' has no effect without '{SWITCH}'",
            map_path("parameters", GOAL),
            text=goal,
            expected=f"parameter '{SWITCH}' with string_value \"true\"",
        )


LIMIT = "response_cache_max_bytes"
"""`parameters { key: "response_cache_max_bytes" value { string_value: "1000000" } }`"""
_MAX_BYTES = 1 << 50


def read_cache_limit_bytes(config: ModelConfig) -> int:
    """Return the limit for cached responses of a version in a valid configuration; 0 for the whole cache."""
    return int(config.parameters[LIMIT].string_value) if LIMIT in config.parameters else 0


def check_response_cache(findings: Findings) -> None:
    """Check whether the model can be cached, and the parameter."""
    config = findings.config
    if LIMIT in config.parameters:
        _check_limit(findings)
    if not config.response_cache.enable:
        return
    opening = f"Response Cache does not currently support model {config.name} "
    if config.HasField("sequence_batching"):
        findings.error(
            f"{opening}with sequence batching scheduler. Please disable the response cache.", "response_cache.enable"
        )
    if config.model_transaction_policy.decoupled:
        findings.error(
            f"{opening}with 'decoupled' transaction policy. Please disable the response cache.",
            "response_cache.enable",
        )


def _check_limit(findings: Findings) -> None:
    text = findings.config.parameters[LIMIT].string_value
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= _MAX_BYTES):
        expected = f"a whole number from 1 to {_MAX_BYTES}"
        findings.parameter_error(LIMIT, "is not a number of bytes", text=text, expected=expected)
    elif not findings.config.response_cache.enable:
        findings.warning(
            f"parameter '{LIMIT}' has no effect without 'response_cache'",
            map_path("parameters", LIMIT),
            text=text,
            expected="response_cache { enable: true }",
        )


ISOLATION = "isolation"
"""`parameters { key: "isolation" value { string_value: "process" } }`"""
_PROCESS = "process"


TENSOR_PARALLEL = "tensor_parallel_size"
"""Number of worker processes of each instance."""
ENVIRONMENT = "EXECUTION_ENV_PATH"
"""Triton: the environment of a model's workers."""


def is_isolated(config: ModelConfig, settings: Mapping[str, str]) -> bool:
    """Return whether a valid configuration has its instances in worker processes.

    `settings` are the `--backend-config` settings of the backend. An environment of its own needs processes too, and
    so do ranks, and some backends.
    """
    own = config.parameters
    if settings.get(ISOLATION, _PROCESS) != _PROCESS:
        raise invalid_argument(
            f"--backend-config={config.backend},{ISOLATION}={settings[ISOLATION][:200]}: expected {_PROCESS}"
        )
    needs_process = canonical_name(config.backend) in PROCESS_BACKENDS
    return needs_process or any(name in own or name in settings for name in (ISOLATION, ENVIRONMENT, TENSOR_PARALLEL))


def check_isolation(findings: Findings) -> None:
    """Check the parameter."""
    config = findings.config
    if ISOLATION not in config.parameters:
        return
    text = config.parameters[ISOLATION].string_value
    if text != _PROCESS:
        expected = f'string_value: "{_PROCESS}", or no such parameter'
        findings.parameter_error(ISOLATION, "has an unknown value", text=text, expected=expected)
    elif config.HasField("ensemble_scheduling"):
        findings.parameter_error(
            ISOLATION,
            "has no meaning for an ensemble, which has no instances",
            text=text,
            expected="the parameter in the models of its steps",
        )
