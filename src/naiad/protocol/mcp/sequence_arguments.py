"""Arguments of tools that say to which sequence a request belongs."""

from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.core.parameters import ParameterValue
from naiad.core.request import RequestHeader

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"
SEQUENCE_ARGUMENTS: dict[str, dict[str, Any]] = {
    _ID: {"type": ["integer", "string"], "description": "The sequence to which the request belongs."},
    _START: {"type": "boolean", "description": "Whether the sequence begins with this request."},
    _END: {"type": "boolean", "description": "Whether the sequence ends with this request."},
}
"""Their schemas."""
_MAX_ID = (1 << 64) - 1


def takes_sequences(config: ModelConfig) -> bool:
    """Return whether requests name a sequence; each request of an iterative model is one of its own."""
    return config.HasField("sequence_batching") and not config.sequence_batching.iterative_sequence


def in_sequence(header: RequestHeader) -> RequestHeader:
    """Return a decoded header with its sequence, whose members are parameters. Raises InferError(INVALID_ARG)."""
    parameters = dict(header.parameters)
    sequence_id, start, end = (
        parameters.pop(name, other) for name, other in ((_ID, 0), (_START, False), (_END, False))
    )
    if isinstance(sequence_id, bool) or not isinstance(sequence_id, (int, str)):
        raise _wrong(_ID, sequence_id, "a whole number or a text")
    if isinstance(sequence_id, int) and not 0 <= sequence_id <= _MAX_ID:
        raise _wrong(_ID, sequence_id, f"a number from 1 to {_MAX_ID}")
    for name, flag in ((_START, start), (_END, end)):
        if not isinstance(flag, bool):
            raise _wrong(name, flag, "true or false")
    return RequestHeader(
        model_name=header.model_name,
        model_version=header.model_version,
        inputs=header.inputs,
        parameters=parameters,
        sequence_id=sequence_id,
        sequence_start=start is True,
        sequence_end=end is True,
        nan_is_null=header.nan_is_null,
        json_form=header.json_form,
    )


def _wrong(name: str, value: ParameterValue, expected: str) -> InferError:
    return invalid_argument(f"'{name}' is {value!r:.100}; expected {expected}")
