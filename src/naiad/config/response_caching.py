"""How much of the response cache a model may take."""

from naiad.config.findings import Findings
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.parsed_config import map_path

LIMIT = "response_cache_max_bytes"
"""`parameters { key: "response_cache_max_bytes" value { string_value: "1000000" } }`"""
_MAX_BYTES = 1 << 50


def read_cache_limit_bytes(config: ModelConfig) -> int:
    """Return what a valid configuration allows a version's answers to take; 0 for all that there is."""
    return int(config.parameters[LIMIT].string_value) if LIMIT in config.parameters else 0


def check_response_cache(findings: Findings) -> None:
    """Check what models can be cached, and the parameter."""
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
        findings.error(
            f"parameter '{LIMIT}' is no number of bytes",
            map_path("parameters", LIMIT),
            text=text,
            expected=f"a whole number from 1 to {_MAX_BYTES}",
        )
    elif not findings.config.response_cache.enable:
        findings.warning(
            f"parameter '{LIMIT}' has no effect without 'response_cache'",
            map_path("parameters", LIMIT),
            text=text,
            expected="response_cache { enable: true }",
        )
