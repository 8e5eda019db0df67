"""The two halves of the wire fit: requests arrive as they were sent, responses as the model made them."""

import json
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.workers.conversation.server_codec import BatchEncoder, BatchResponseDecoder, join_ids
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.worker.api.failure import ErrorCode as WorkerErrorCode
from naiad.worker.api.request import InferenceRequest
from naiad.worker.channel.frame import EXECUTE, EXECUTED, ChannelError, Frame, decode_frame, encode_frame
from naiad.worker.execution.codec import RequestDecoder, ResponseEncoder


def make_request(arrays: Mapping[str, Array], header: RequestHeader | None = None, **fields: object) -> InferRequest:
    specs = [
        TensorSpec(name, DataType.BYTES if a.dtype == object else kind_of(a), a.shape) for name, a in arrays.items()
    ]
    header = header or RequestHeader(model_name="m", inputs=specs, **fields)
    return InferRequest(header, [to_buffer(a) for a in arrays.values()], lambda *_: None, id="é-1")


def kind_of(array: Array) -> DataType:
    return next(d for d in DataType if d.numpy == array.dtype)


class AnythingGoes(TensorRules):
    """These tests are about the wire; what fits the configuration is tested elsewhere."""

    def __init__(self) -> None:
        super().__init__(ModelConfig(name="m"))

    def problem_of(self, specs: Sequence[TensorSpec], *, is_decoupled: bool = False) -> str:
        return ""

    def client_specs(self, specs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        return specs

    def is_complete(self, specs: Sequence[TensorSpec]) -> bool:
        return True


def decoder() -> BatchResponseDecoder:
    return BatchResponseDecoder("m", "1", AnythingGoes())


def some_requests(count: int) -> list[InferRequest]:
    return [make_request({"IN": np.zeros(1, np.float32)}) for _ in range(count)]


class Wire:
    """A server's and a worker's half, with frames carried by hand."""

    def __init__(self, outputs: Sequence[str] = ("OUT", "OTHER")) -> None:
        self.batches = BatchEncoder(AnythingGoes())
        self.request_decoder = RequestDecoder(frozenset(outputs))
        self.replies = ResponseEncoder()
        self.decoder = decoder()
        self.asked: list[int] = []

    def forth(self, requests: Sequence[InferRequest]) -> list[InferenceRequest]:
        words, extra, parts, size = self.batches.encode(requests)
        data = encode_frame(EXECUTE, words, join_ids(requests), extra, parts, size, 0, 0)
        return list(self.request_decoder.requests(decode_frame(data, bytearray), self._cancellation))

    def back(self, requests: Sequence[InferenceRequest], responses: Sequence[pb_utils.InferenceResponse]) -> Frame:
        reply = self.replies.encode(requests, responses)
        data = encode_frame(EXECUTED, reply.words, "", reply.extra(), reply.parts, reply.payload_bytes, 0, 0)
        return decode_frame(data, memoryview)

    def trip(self, tensors: Sequence[Sequence[pb_utils.Tensor]]) -> list[InferResponse]:
        sent = some_requests(len(tensors))
        requests = self.forth(sent)
        frame = self.back(requests, [pb_utils.InferenceResponse(each) for each in tensors])
        return self.decoder.decode(frame, sent)

    def _cancellation(self, position: int) -> bool:
        self.asked.append(position)
        return True


def values(response: InferResponse) -> dict[str, list[object]]:
    return {
        spec.name: to_array(spec, data).tolist()
        for spec, data in zip(response.header.outputs, response.data, strict=True)
    }


# --- there --------------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 5), max_size=3)
numeric = st.sampled_from([d for d in DataType if d not in (DataType.BYTES, DataType.BF16)])


@given(st.lists(st.lists(st.tuples(numeric | st.just(DataType.BYTES), shapes), min_size=1, max_size=3), max_size=4))
def test_inputs_arrive_as_they_were_sent(batch):
    sent = []
    for tensors in batch:
        arrays = {}
        for index, (datatype, shape) in enumerate(tensors):
            count = int(np.prod(shape))
            if datatype is DataType.BYTES:
                flat = np.empty(count, object)
                flat[:] = [b"x" * (n * 7) for n in range(count)]
            else:
                flat = (np.arange(count) % 2).astype(datatype.numpy)
            arrays[f"IN{index}"] = flat.reshape(shape)
        sent.append(arrays)
    wire = Wire()
    for _ in range(2):
        arrived = wire.forth([make_request(arrays) for arrays in sent])
        assert len(arrived) == len(sent)
        for request, arrays in zip(arrived, sent, strict=True):
            assert [tensor.name() for tensor in request.inputs()] == list(arrays)
            for tensor, array in zip(request.inputs(), arrays.values(), strict=True):
                assert tensor.as_numpy().dtype == array.dtype
                assert tensor.as_numpy().shape == array.shape
                assert tensor.as_numpy().tolist() == array.tolist()


def test_what_else_a_request_has_arrives():
    request = make_request(
        {"IN": np.zeros(1, np.float32)},
        outputs=[RequestedOutput("OTHER")],
        parameters={"a": "b", "n": 3, "t": True, "f": 1.5},
        timeout_us=77,
        sequence_id="seq",
        sequence_start=True,
        sequence_end=True,
    )
    wire = Wire()
    (arrived,) = wire.forth([request])
    assert arrived.request_id() == "é-1"
    assert arrived.correlation_id() == "seq"
    assert arrived.flags() == 3
    assert arrived.timeout() == 77
    assert arrived.parameters() == '{"a":"b","n":3,"t":true,"f":1.5}'
    assert arrived.requested_output_names() == {"OTHER"}
    assert arrived.is_cancelled()
    assert arrived.get_response_sender().is_cancelled()
    assert wire.asked == [0, 0]


def test_without_requested_outputs_all_are_wanted():
    (arrived,) = Wire().forth(some_requests(1))
    assert arrived.requested_output_names() == {"OUT", "OTHER"}
    assert (arrived.parameters(), arrived.correlation_id(), arrived.flags()) == ("{}", 0, 0)


def test_a_header_travels_once():
    header = make_request({"IN": np.zeros(4, np.float32)}).header
    encoder = BatchEncoder(AnythingGoes())
    requests = [make_request({"IN": np.zeros(4, np.float32)}, header=header) for _ in range(3)]
    words, extra, _, _ = encoder.encode(requests)
    assert words == [1, 1, 1]
    assert extra is not None
    assert len(extra["headers"]) == 1
    assert encoder.encode(requests)[:2] == ([1, 1, 1], None)
    encoder.restart()
    _, extra, _, _ = encoder.encode(requests)
    assert extra is not None
    assert extra["reset"]


def test_headers_without_end_do_not_fill_memory():
    wire = Wire()
    for _ in range(3000):
        assert wire.forth(some_requests(1))[0].inputs()[0].as_numpy().shape == (1,)
    assert len(wire.batches._headers.known) < 1100
    assert len(wire.request_decoder._headers.by_number) < 1100


def test_one_batch_may_have_any_number_of_headers(monkeypatch):
    monkeypatch.setattr("naiad.worker.channel.layout.MOST_HEADERS", 4)
    wire = Wire()
    for _ in range(3):
        sent = [make_request({"IN": np.zeros(size, np.float32)}) for size in range(1, 20)]
        arrived = wire.forth(sent)
        assert [request.inputs()[0].as_numpy().size for request in arrived] == list(range(1, 20))
        tensors = [pb_utils.Tensor("OUT", np.zeros(size, np.float32)) for size in range(1, 20)]
        frame = wire.back(arrived, [pb_utils.InferenceResponse([each]) for each in tensors])
        assert [each.header.outputs[0].shape for each in wire.decoder.decode(frame, sent)] == [
            (size,) for size in range(1, 20)
        ]


def test_bf16_input_keeps_its_bits():
    array = np.array([1.0, -3.5], ml_dtypes.bfloat16)
    (arrived,) = Wire().forth([make_request({"IN": array})])
    assert arrived.inputs()[0].triton_dtype() == 14
    assert arrived.inputs()[0]._array.view(ml_dtypes.bfloat16).tolist() == [1.0, -3.5]


def test_nul_in_id_does_not_shift_others():
    requests = some_requests(3)
    requests[1].id = "a\0b"
    requests[2].id = ""
    assert [arrived.request_id() for arrived in Wire().forth(requests)] == ["é-1", "a\ufffdb", ""]


def test_a_payload_of_another_size_is_refused():
    wire = Wire()
    words, extra, _, _ = wire.batches.encode([make_request({"IN": np.zeros(4, np.float32)})])
    data = encode_frame(EXECUTE, words, "", extra, [bytes(32)], 32, 0, 0)
    with pytest.raises(ChannelError, match="32 bytes where 16 were announced"):
        wire.request_decoder.requests(decode_frame(data, bytearray), wire._cancellation)


# --- and back -----------------------------------------------------------------------------------------------------


def test_outputs_arrive_as_the_model_made_them():
    first = [pb_utils.Tensor("OUT", np.arange(3, dtype=np.int8)), pb_utils.Tensor("OTHER", np.array([[1.5]]))]
    second = [pb_utils.Tensor("OUT", np.array(["é", b"\xff", 3], object)), pb_utils.Tensor("OTHER", np.zeros((0, 2)))]
    wire = Wire()
    for _ in range(2):
        one, two = wire.trip([first, second])
        assert [spec.datatype for spec in one.header.outputs] == [DataType.INT8, DataType.FP64]
        assert values(one) == {"OUT": [0, 1, 2], "OTHER": [[1.5]]}
        assert values(two) == {"OUT": ["é".encode(), b"\xff", b"3"], "OTHER": []}
        assert two.header.outputs[1].shape == (0, 2)


def test_equal_responses_share_a_header():
    wire = Wire()
    one, two = wire.trip([[pb_utils.Tensor("OUT", np.zeros(16, np.float32))]] * 2)
    (three,) = wire.trip([[pb_utils.Tensor("OUT", np.ones(16, np.float32))]])
    assert one.header is two.header is three.header


def test_outputs_that_were_not_asked_for_are_dropped():
    wire = Wire()
    request = make_request({"IN": np.zeros(1, np.float32)}, outputs=[RequestedOutput("OUT")])
    zeros = np.zeros(1, np.float32)
    tensors = [pb_utils.Tensor(name, zeros) for name in ("OTHER", "OUT", "NOT_IN_THE_CONFIGURATION")]
    frame = wire.back(wire.forth([request]), [pb_utils.InferenceResponse(tensors)])
    assert values(wire.decoder.decode(frame, some_requests(1))[0]) == {"OUT": [0.0]}


def test_inputs_may_be_answered_as_they_are():
    wire = Wire(["IN", "TEXT"])
    arrays = {"IN": np.arange(2, dtype=np.uint16), "TEXT": np.array([b"a", b"bc"], object)}
    requests = wire.forth([make_request(arrays)])
    frame = wire.back(requests, [pb_utils.InferenceResponse(requests[0].inputs())])
    assert values(wire.decoder.decode(frame, some_requests(1))[0]) == {"IN": [0, 1], "TEXT": [b"a", b"bc"]}


def test_bf16_output():
    (response,) = Wire().trip([[pb_utils.Tensor("OUT", np.array([1.5], ml_dtypes.bfloat16))]])
    assert response.header.outputs[0].datatype is DataType.BF16
    assert values(response) == {"OUT": [1.5]}


@pytest.mark.parametrize("code", [ErrorCode(code) for code in WorkerErrorCode])
def test_errors_and_parameters_find_their_requests(code):
    wire = Wire()
    requests = wire.forth(some_requests(3))
    good = [pb_utils.Tensor("OUT", np.zeros(1, np.float32))]
    error = pb_utils.TritonError("no", pb_utils.TritonError(message="", code=WorkerErrorCode(code.value)).code())
    frame = wire.back(
        requests,
        [
            pb_utils.InferenceResponse(good),
            pb_utils.InferenceResponse(good, error=error),
            pb_utils.InferenceResponse(good, parameters={"p": 1}),
        ],
    )
    first, second, third = wire.decoder.decode(frame, some_requests(3))
    assert first.error is None
    assert third.error is None
    assert second.error is not None
    assert (second.error.code, second.error.message) == (code, "no")
    assert second.header.outputs == ()
    assert dict(third.parameters) == {"p": 1}
    assert not first.parameters


def test_unsent_response_frame_withdraws_its_headers():
    wire = Wire()
    requests = wire.forth(some_requests(1))
    made = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
    wire.replies.encode(requests, [made])
    wire.replies.restart()
    assert values(wire.decoder.decode(wire.back(requests, [made]), some_requests(1))[0]) == {"OUT": [0.0]}


def frame_of(words: Sequence[int], extra: object, payload: bytes = b"") -> Frame:
    text = json.dumps(extra)
    return decode_frame(
        encode_frame(EXECUTED, words, "", json.loads(text), [payload], len(payload), 0, 0), memoryview
    )


DEFINED = {"headers": [[1, [["OUT", "INT32", [4]]]]]}


@pytest.mark.parametrize(
    ("words", "extra", "payload", "said"),
    [
        ([2], DEFINED, bytes(16), "unreadable table"),
        ([1], DEFINED, bytes(12), "not 1 in 12"),
        ([1], DEFINED, bytes(32), "not 1 in 32"),
        ([1, 1], DEFINED, bytes(32), "unreadable table|2 responses"),
        ([], DEFINED, b"", "0 responses"),
        ([0], {}, b"", "a failed response without its error"),
        ([0], {"errors": [[3, 1, "x"]]}, b"", "unreadable errors"),
        ([0], {"errors": [[0, 99, "x"]]}, b"", "unreadable errors"),
        ([1], {"headers": [[1, [["OUT", "INT33", [4]]]]]}, bytes(16), "unreadable headers"),
        ([1], {"headers": [[1, [["OUT", "INT32", ["x"]]]]]}, bytes(16), "unreadable headers"),
        ([1], {"headers": [[1, [["OUT", "BYTES", [1]]]]]}, b"", "unreadable table"),
        ([1], {"headers": 3}, b"", "unreadable headers"),
    ],
)
def test_nonsense_of_a_worker_is_refused(words, extra, payload, said):
    with pytest.raises(ChannelError, match=said):
        decoder().decode(frame_of(words, extra, payload), some_requests(1))
