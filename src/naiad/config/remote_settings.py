"""Models of other servers: the parameters of `backend: "remote"`, and whether two configurations fit each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
from naiad.config.naiad_parameters import GOAL, SWITCH
from naiad.config.tensors.features import keep_features
from naiad.config.tensors.padding import CUT_PREFIX, PAD_BATCH, PAD_PREFIX
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import invalid_argument

REMOTE = "remote"
"""The `backend` of such a model; the engine itself executes it."""
SERVERS = "server"
"""Addresses, separated by commas: `grpc://HOST:PORT`."""
MODEL = "model"
"""Its name there; by default the same as here."""
VERSION = "model_version"
"""Its version there; by default the newest."""
MAX_IN_FLIGHT = "max_in_flight"
"""Requests at the same time; more are rejected."""
TIMEOUT = "timeout_s"
"""For a request without an earlier deadline, in seconds."""
CA_FILE, CERTIFICATE_FILE, KEY_FILE, TOKEN_FILE = "ca_file", "certificate_file", "key_file", "token_file"
"""Files of the owner, with absolute names: no client without permission for model files may set them."""
_DEFAULT_MAX_IN_FLIGHT = 1024
_DEFAULT_TIMEOUT_S = 60.0
_MOST_SERVERS = 64
_SCHEMES = ("grpc://", "grpcs://", "grpc+unix://")

_Tensor: TypeAlias = ModelInput | ModelOutput


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """Files for connections to the other servers; "" for none."""

    ca_file: str = ""
    """Certificates of authorities that are trusted, instead of the system's; PEM."""
    certificate_file: str = ""
    key_file: str = ""
    """What this server shows of itself; PEM."""
    token_file: str = ""
    """A line that is sent as `authorization: Bearer TOKEN`."""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Where a model is, and its limits."""

    servers: Sequence[str]
    model: str
    version: str = ""
    max_in_flight: int = _DEFAULT_MAX_IN_FLIGHT
    timeout_s: float = _DEFAULT_TIMEOUT_S
    access: RemoteAccess = RemoteAccess()


def is_remote(config: ModelConfig) -> bool:
    """Return whether a model is on another server."""
    return config.backend == REMOTE


def has_several_servers(config: ModelConfig) -> bool:
    """Return whether a model is on several other servers, of which one has the state of a sequence."""
    return is_remote(config) and len(read_remote(config).servers) > 1


def read_remote(config: ModelConfig) -> RemoteSettings:
    """Return the settings of a valid configuration."""
    texts = {name: config.parameters[name].string_value for name in _ALL if name in config.parameters}
    return RemoteSettings(
        _addresses(texts.get(SERVERS, "")),
        texts.get(MODEL) or config.name,
        texts.get(VERSION, ""),
        int(texts.get(MAX_IN_FLIGHT) or _DEFAULT_MAX_IN_FLIGHT),
        float(texts.get(TIMEOUT) or _DEFAULT_TIMEOUT_S),
        RemoteAccess(**{name: texts[name] for name in _FILES if name in texts}),
    )


_FILES = (CA_FILE, CERTIFICATE_FILE, KEY_FILE, TOKEN_FILE)
_ALL = (SERVERS, MODEL, VERSION, MAX_IN_FLIGHT, TIMEOUT, *_FILES)


def _addresses(text: str) -> list[str]:
    return list(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))


def check_remote(findings: Findings) -> None:
    """Check the parameters, and that nothing is configured that the other server does."""
    config = findings.config
    if not is_remote(config):
        return
    text = config.parameters[SERVERS].string_value if SERVERS in config.parameters else ""
    addresses = _addresses(text)
    expected = "addresses, separated by commas: grpc://HOST:PORT"
    if not addresses or not all(each.startswith(_SCHEMES) for each in addresses):
        findings.parameter_error(SERVERS, "has no address of gRPC", text=text, expected=expected)
    elif len(addresses) > _MOST_SERVERS:
        findings.parameter_error(SERVERS, f"has {len(addresses)} addresses", expected=f"at most {_MOST_SERVERS}")
    _check_files(findings, addresses)
    for name, kind, least, most in _RANGES:
        if name in config.parameters and not _is_between(config.parameters[name].string_value, kind, least, most):
            value = config.parameters[name].string_value
            findings.parameter_error(name, "is out of range", text=value, expected=f"a number from {least} to {most}")
    _check_elsewhere(findings)


def _check_elsewhere(findings: Findings) -> None:
    """Check that nothing is configured that the other server does."""
    expected = "it in the configuration of that server"
    for name, value in findings.config.parameters.items():
        if name in (PAD_BATCH, SWITCH, GOAL) or name.startswith((PAD_PREFIX, CUT_PREFIX)):
            text = value.string_value
            findings.parameter_error(
                name, "has no meaning for a model of another server", text=text, expected=expected
            )
    for field in ("dynamic_batching", "sequence_batching", "model_warmup", "optimization", "instance_group"):
        if findings.is_written(field) or findings.is_written(f"{field}[0]"):
            findings.error(
                f"'{field}' has no meaning for a model of another server",
                field,
                expected=expected,
            )


def _check_files(findings: Findings, addresses: Sequence[str]) -> None:
    """Check the names of files, and that each address protects what is in them."""
    texts = {
        name: findings.config.parameters[name].string_value for name in _FILES if name in findings.config.parameters
    }
    for name, text in texts.items():
        if not text.startswith("/"):
            findings.parameter_error(name, "is no absolute name", text=text, expected="/DIRECTORY/FILE")
        safe = ("grpcs://", "grpc+unix://") if name == TOKEN_FILE else ("grpcs://",)
        if not all(each.startswith(safe) for each in addresses):
            findings.parameter_error(name, "needs addresses with TLS", text=text, expected="grpcs://HOST:PORT")
    if (CERTIFICATE_FILE in texts) != (KEY_FILE in texts):
        found = CERTIFICATE_FILE if CERTIFICATE_FILE in texts else KEY_FILE
        findings.parameter_error(
            found, "is alone", text=texts[found], expected=f"{CERTIFICATE_FILE} and {KEY_FILE}, or none"
        )


_RANGES: Sequence[tuple[str, Callable[[str], float], float, float]] = (
    (MAX_IN_FLIGHT, int, 1, 1_000_000),
    (TIMEOUT, float, 0.001, 86_400),
)


def _is_between(text: str, kind: Callable[[str], float], least: float, most: float) -> bool:
    try:
        value = kind(text)
    except ValueError:
        return False
    return least <= value <= most


def completed_by(config: ModelConfig, there: ModelConfig) -> ModelConfig:
    """Return a configuration with tensors, batch size and decoupling of the other server, if it has no tensors."""
    completed = ModelConfig()
    completed.CopyFrom(config)
    if not config.input and not config.output:
        completed.max_batch_size = there.max_batch_size
        if there.model_transaction_policy.decoupled:
            completed.model_transaction_policy.decoupled = True
        for tensor in there.input:
            completed.input.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, optional=tensor.optional
            )
        for output in there.output:
            completed.output.add(name=output.name, data_type=output.data_type, dims=output.dims)
        keep_features(completed, there)
    return completed


def difference(config: ModelConfig, there: ModelConfig) -> str:
    """Return why the model on the other server cannot take requests for this one, with both; "" if it can.

    Free dimensions of the other server's inputs fit any, and so do free dimensions of outputs here.
    """
    if there.model_transaction_policy.decoupled != config.model_transaction_policy.decoupled:
        places = ("there", "here") if there.model_transaction_policy.decoupled else ("here", "there")
        return f"model_transaction_policy is decoupled {places[0]} and not {places[1]}"
    if bool(config.max_batch_size) != bool(there.max_batch_size) or config.max_batch_size > there.max_batch_size:
        return f"max_batch_size is {config.max_batch_size} here and {there.max_batch_size} there"
    inputs: Mapping[str, _Tensor] = {each.name: each for each in there.input}
    outputs: Mapping[str, _Tensor] = {each.name: each for each in there.output}
    for tensor in config.input:
        if reason := _tensor_difference("input", tensor, inputs, is_input=True):
            return reason
    for output in config.output:
        if reason := _tensor_difference("output", output, outputs, is_input=False):
            return reason
    names = {each.name for each in config.input}
    for tensor in there.input:
        if not tensor.optional and tensor.name not in names:
            return f"input '{tensor.name}' ({_text(tensor)}) is required there and missing here"
    return ""


def _tensor_difference(kind: str, here: _Tensor, there: Mapping[str, _Tensor], *, is_input: bool) -> str:
    found = there.get(here.name)
    if found is None:
        return f"{kind} '{here.name}' is missing there; it has {', '.join(map(repr, there)) or 'none'}"
    wide, narrow = (found, here) if is_input else (here, found)
    fits = len(wide.dims) == len(narrow.dims) and all(
        each in (-1, size) for each, size in zip(wide.dims, narrow.dims, strict=True)
    )
    if here.data_type == found.data_type and fits:
        return ""
    return f"{kind} '{here.name}' is {_text(here)} here and {_text(found)} there"


def _text(tensor: _Tensor) -> str:
    known = BY_CONFIG_NUMBER.get(tensor.data_type)
    return f"{f'datatype {tensor.data_type}' if known is None else known.value} {list(tensor.dims)}"


def check_written(config: ModelConfig) -> None:
    """Raise InferError(INVALID_ARG) for a configuration without tensors, while no server has said which there are."""
    if not config.input or not config.output:
        raise invalid_argument(
            f"model '{config.name}' has no 'input' and 'output' in its configuration, and no server answers that "
            "knows them; write them to load the model while its servers are away"
        )
