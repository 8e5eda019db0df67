"""Microseconds to decode a ModelInferRequest and to encode a ModelInferResponse (add/sub: two FP32[1,16] each way).

python -m bench.micro_infer_grpc
"""

from collections.abc import Callable

from bench.in_memory import cpu_us
from naiad.core.datatype import DataType
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.protocol.grpc.infer import InferRequestDecoder, encode_response
from naiad.protocol.header_memory import SIGHTINGS
from naiad.protocol.service_pb2 import ModelInferRequest, ModelInferResponse

_CALLS = 20_000


def request(request_id: str = "", **parameters: int) -> bytes:
    message = ModelInferRequest(model_name="add_sub", id=request_id)
    for name, value in parameters.items():
        message.parameters[name].int64_param = value
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    for name in ("OUTPUT0", "OUTPUT1"):
        message.outputs.add(name=name)
    return message.SerializeToString()


def cached(message: bytes) -> InferRequestDecoder:
    """Return a decoder that has met the header of a request as often as one that is used all the time."""
    decoder = InferRequestDecoder()
    # The last but one proposes the header, and the last notices that the engine has admitted it.
    for _ in range(SIGHTINGS + 1):
        decoder.decode(message)[0].admission = decoder
    if decoder.decode(message)[0] is not decoder.decode(message)[0]:
        raise RuntimeError("the header is not cached")
    return decoder


def measure(label: str, call: Callable[[int], object]) -> None:
    def many() -> None:
        for i in range(_CALLS):
            call(i)

    print(f"{label:<58} {cpu_us(many, _CALLS):7.2f} us")


def main() -> None:
    same = request()
    decoder = cached(same)
    measure("(empty call)", lambda i: None)
    measure("decode, no id", lambda i: decoder.decode(same))
    view = memoryview(bytearray(same))
    measure("decode, no id, from a memoryview", lambda i: decoder.decode(view))
    identified = [request(str(i)) for i in range(_CALLS)]
    measure("decode, an id of its own each", lambda i: decoder.decode(identified[i]))
    in_sequence = [request(sequence_id=i + 1) for i in range(_CALLS)]
    measure("decode, a sequence id of its own each", lambda i: decoder.decode(in_sequence[i]))
    measure("protobuf parse alone", lambda i: ModelInferRequest.FromString(same))

    specs = [TensorSpec(name, DataType.FP32, (1, 16)) for name in ("OUTPUT0", "OUTPUT1")]
    header = ResponseHeader("add_sub", "1", specs)
    data = memoryview(bytes(4096))
    response = InferResponse(header, [data[:64], data[64:128]])
    measure("encode, no id", lambda i: encode_response("", response))
    measure("encode, id", lambda i: encode_response("1234567", response))
    large = InferResponse(header, [memoryview(bytes(1 << 26)), memoryview(bytes(1 << 26))])
    measure("encode, 2 x 64 MiB", lambda i: encode_response("", large))
    parsed = ModelInferResponse.FromString(b"".join(encode_response("", response)))
    measure("protobuf serialize alone", lambda i: parsed.SerializeToString())


if __name__ == "__main__":
    main()
