"""Responses to `ModelStreamInferResponse` bytes: a unary call's answer within a message that can be an error too."""

from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.protocol.infer_grpc import encode_response
from naiad.protocol.protobuf_fields import encode_framing
from naiad.protocol.service_pb2 import ModelInferResponse, ModelStreamInferResponse

FINAL_RESPONSE = "triton_final_response"

_RESPONSE_TAG = 0x12
_FRAMINGS = {size: encode_framing(_RESPONSE_TAG, size) for size in range(1024)}


def _marker(*, final: bool) -> bytes:
    message = ModelInferResponse()
    message.parameters[FINAL_RESPONSE].bool_param = final
    return message.SerializeToString()


_FINAL = _marker(final=True)
_NOT_FINAL = _marker(final=False)


def encode_stream_response(request_id: str, response: InferResponse) -> list[Buffer]:
    """Return a response as the parts of a message. Raises InferError as `encode_response` does."""
    # hot: bench/micro_infer_grpc.py
    parts = encode_response(request_id, response, _FINAL if response.final else _NOT_FINAL)
    size = 0
    for part in parts:
        size += len(part)
    return [_FRAMINGS.get(size) or encode_framing(_RESPONSE_TAG, size), *parts]


def encode_completion(request_id: str, model_name: str, model_version: str) -> bytes:
    """Return the message that says that a request is complete and that no outputs come with it.

    Triton: the version is the one that the client asked for, "" when it named none.
    """
    message = ModelStreamInferResponse()
    _identify(message.infer_response, request_id, model_name, model_version, final=True)
    return message.SerializeToString()


def encode_refusal(request_id: str, text: str) -> bytes:
    """Return the message for a request that was refused before inference; of the response it has only the id."""
    message = ModelStreamInferResponse(error_message=text)
    message.infer_response.id = request_id
    return message.SerializeToString()


def encode_failure(request_id: str, model_name: str, model_version: str, text: str, *, final: bool) -> bytes:
    """Return the message for a request that failed in inference; the version is the one that was asked for."""
    message = ModelStreamInferResponse(error_message=text)
    _identify(message.infer_response, request_id, model_name, model_version, final=final)
    return message.SerializeToString()


def _identify(
    response: ModelInferResponse, request_id: str, model_name: str, model_version: str, *, final: bool
) -> None:
    response.id = request_id
    response.model_name = model_name
    response.model_version = model_version
    response.parameters[FINAL_RESPONSE].bool_param = final
