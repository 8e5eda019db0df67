"""For all combinations of lengths, each client gets the same response as for its request alone."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import read_padding
from naiad.core.datatype import DataType
from naiad.core.errors import internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.engine.admission import AdmissionRules
from naiad.engine.transforms.padding import PaddedRequests
from naiad.scheduler.factory import create_scheduler
from support.long_run import examples

NUMBERS = [DataType.BOOL, DataType.UINT8, DataType.INT64, DataType.FP16, DataType.FP32, DataType.BF16]

_lengths = st.one_of(
    st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(
        lambda sizes: "buckets=" + ",".join(map(str, sorted(sizes)))
    ),
    st.tuples(st.integers(1, 6), st.integers(1, 12)).map(lambda pair: f"multiple_of={pair[0]} max={pair[1]}"),
)
_waste = st.sampled_from(["", " max_waste=0.5", " max_waste=0"])


def elements(datatype: DataType, count: int, seed: int) -> Array:
    """Values that identify requests."""
    generator = np.random.default_rng(seed)
    if datatype is DataType.BYTES:
        texts = [bytes(generator.integers(0, 256, generator.integers(0, 4), np.uint8)) for _ in range(count)]
        made = np.empty(count, np.object_)
        made[:] = texts
        return made
    return generator.integers(0, 2 if datatype is DataType.BOOL else 100, count).astype(datatype.numpy)


def respond(request: InferRequest) -> InferResponse:
    """What the model makes of one request: its elements, and how many of the client's there are in each row."""
    spec = request.header.inputs[0]
    mask_spec = request.header.inputs[1]
    mask = to_array(mask_spec, request.data[1])
    counts = mask.reshape(mask.shape[0], -1).sum(axis=1, dtype=np.int64).reshape(-1, 1)
    outputs = [TensorSpec("OUT", spec.datatype, spec.shape), TensorSpec("COUNT", DataType.INT64, counts.shape)]
    return InferResponse(ResponseHeader("m", "1", outputs), [request.data[0], to_buffer(counts)])


@settings(max_examples=examples(120), deadline=None)
@given(
    dims=st.lists(st.sampled_from([-1, -1, 1, 2]), min_size=1, max_size=3).filter(lambda dims: -1 in dims),
    datatype=st.sampled_from([*NUMBERS, DataType.BYTES]),
    rule=st.tuples(_lengths, _waste).map("".join),
    shapes=st.lists(st.tuples(st.integers(1, 3), *[st.integers(0, 14)] * 3), min_size=1, max_size=12),
    broken=st.sets(st.integers(0, 11), max_size=2),
    cancelled=st.sets(st.integers(0, 11), max_size=2),
)
def test_every_answer_is_that_of_its_own_request(
    dims: list[int],
    datatype: DataType,
    rule: str,
    shapes: Sequence[tuple[int, ...]],
    broken: set[int],
    cancelled: set[int],
) -> None:
    config = ModelConfig(name="m", max_batch_size=6, dynamic_batching={})
    config.input.add(name="IN", data_type=datatype.config_number, dims=dims)
    config.output.add(name="OUT", data_type=datatype.config_number, dims=dims)
    config.output.add(name="COUNT", data_type=DataType.INT64.config_number, dims=[1])
    config.parameters["pad_input.IN"].string_value = f"{rule} mask=MASK:TYPE_INT64"
    config.parameters["cut_output.OUT"].string_value = "IN"
    padding = read_padding(config)
    assert padding is not None
    rules, padded, scheduler = AdmissionRules(config), PaddedRequests(config, padding), create_scheduler(config)
    sent: dict[str, Array] = {}
    requests: list[InferRequest] = []
    for number, (rows, *sizes) in enumerate(shapes):
        shape = (rows, *[size if dim < 0 else dim for dim, size in zip(dims, sizes, strict=False)])
        array = elements(datatype, math.prod(shape), number).reshape(shape)
        header = RequestHeader(model_name="m", inputs=[TensorSpec("IN", datatype, shape)])
        request = InferRequest(header, [to_buffer(array)], lambda request, response: None, id=str(number))
        admission = rules.admit(request)
        request.shape_key, request.batch_size = admission.shape_key, admission.batch_size
        scheduler.enqueue(request, 0)
        requests.append(request)
        sent[request.id] = array
    gone = {requests[number].id for number in cancelled if number < len(requests)}
    for request in requests:
        if request.id in gone:
            assert scheduler.cancel(request)
    answered: list[str] = []
    while (batch := scheduler.take(0)) is not None:
        assert batch.size <= 6
        padded.prepare(batch)
        # What makes a batch: every tensor in it has one shape but for the rows.
        assert len({tuple(spec.shape[1:] for spec in request.header.inputs) for request in batch.requests}) == 1
        responses = [
            InferResponse(ResponseHeader("m", "1", ()), error=internal(request.id))
            if int(request.id) in broken
            else respond(request)
            for request in batch.requests
        ]
        for request, response in zip(batch.requests, padded.settle(batch, responses), strict=True):
            answered.append(request.id)
            if int(request.id) in broken:
                assert response.error is not None
                assert response.error.message == request.id
                continue
            own = sent[request.id]
            out, count = response.header.outputs
            assert out.shape == own.shape
            assert bytes(response.data[0]) == bytes(to_buffer(own))
            per_row = [size for dim, size in zip(dims, own.shape[1:], strict=True) if dim < 0]
            assert to_array(count, response.data[1]).ravel().tolist() == [math.prod(per_row)] * own.shape[0]
    assert sorted(answered) == sorted(request.id for request in requests if request.id not in gone)
