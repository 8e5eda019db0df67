"""What a client needs to know of the messages of a stream: which request, which response of it, and errors.

Protobuf libraries write fields in the order of their numbers, so id and parameters precede the outputs, which are
left alone: the time for a message does not depend on its size.
"""

from typing import NamedTuple

from google.protobuf.message import DecodeError

from naiad.core.errors import internal
from naiad.core.tensor import Buffer
from naiad.protocol.grpc.infer import FINAL_RESPONSE
from naiad.protocol.grpc.walk import fields
from naiad.protocol.service_pb2 import InferParameter

_ERROR_MESSAGE, _INFER_RESPONSE = 0x0A, 0x12
_ID, _PARAMETERS, _OUTPUTS = 0x1A, 0x22, 0x2A
_ENTRY_KEY, _ENTRY_VALUE = 0x0A, 0x12
_FINAL_KEY = FINAL_RESPONSE.encode()
_ENTRIES = {
    b"\x0a%c%b\x12\x02\x08%c" % (len(_FINAL_KEY), _FINAL_KEY, is_final): is_final for is_final in (False, True)
}
"""The parameter as the libraries write it."""


class StreamResponse(NamedTuple):
    """A message of a stream."""

    error: str
    """"" for a response."""
    request_id: str
    """"" if the server has returned none."""
    is_final: bool
    """No other response to the request follows; so for each response of a model that is not decoupled."""
    is_empty: bool
    """It has no outputs: it only says that the last response was the final one."""
    response: Buffer
    """The `ModelInferResponse`."""


def read_stream_response(message: Buffer) -> StreamResponse:
    """Return what a `ModelStreamInferResponse` is. Raises InferError(INTERNAL) for a malformed one."""
    error = request_id = ""
    is_final = is_empty = True
    response: Buffer = b""
    try:
        for key, _, start, stop in fields(message, 0, len(message)):
            if key == _ERROR_MESSAGE:
                error = bytes(message[start:stop]).decode("utf-8", "replace")
            elif key == _INFER_RESPONSE:
                response = message[start:stop]
        for key, _, start, stop in fields(response, 0, len(response)):
            if key >= _OUTPUTS:
                is_empty = False
                break
            if key == _ID:
                request_id = bytes(response[start:stop]).decode("utf-8", "replace")
            elif key == _PARAMETERS:
                is_final = _read_final(bytes(response[start:stop]), is_final)
    except (ValueError, IndexError, DecodeError):
        raise internal("the response is not a ModelStreamInferResponse message") from None
    return StreamResponse(error, request_id, is_final, is_empty and not error, response)


def _read_final(entry: bytes, default: bool) -> bool:
    """Return the value of an entry of the parameters if it is that of the final response."""
    known = _ENTRIES.get(entry)
    if known is not None or _FINAL_KEY not in entry:
        return default if known is None else known
    is_key = False
    for key, _, start, stop in fields(entry, 0, len(entry)):
        if key == _ENTRY_KEY:
            is_key = entry[start:stop] == _FINAL_KEY
        elif key == _ENTRY_VALUE and is_key:
            return InferParameter.FromString(entry[start:stop]).bool_param
    return default
