"""Instances of bound models: batches in, responses out, without a server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.backend.api import Instance, InstanceSpec, ModelContext
from naiad.bind.backend import BindBackend, BoundModel
from naiad.bind.callable_context import TritonContext
from naiad.bind.decorators import batch
from naiad.bind.exceptions import PyTritonUnrecoverableError
from naiad.bind.model_config import ModelConfig, Tensor
from naiad.bind.model_config.generator import to_message
from naiad.bind.model_store import complete_config
from naiad.config.autofill import autofill, normalize
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, ignore_response
from naiad.core.tensor import TensorSpec, encode_bytes_elements, to_array

A = Tensor(name="A", shape=(-1,), dtype=np.float32)
TEXT = Tensor(name="T", shape=(1,), dtype=bytes, optional=True)
OUT = Tensor(name="OUT", shape=(-1,), dtype=np.float32)
OTHER = Tensor(name="OTHER", shape=(1,), dtype=np.int64)


def instance_of(infer: Any, *, strict: bool = False, config: ModelConfig | None = None, **changes: Any) -> Instance:
    complete = complete_config("m", 1, [A, TEXT], [OUT, OTHER], config or ModelConfig(), 1)
    backend = BindBackend(TritonContext(), changes.get("on_unrecoverable", lambda _: None))
    backend.add(BoundModel(complete, [infer], strict))
    message = normalize(autofill(to_message(complete), model_name="m"))
    context = ModelContext("m", 1, message, Path(), Path(), 1)
    return backend.load(context).create_instance(InstanceSpec("m_0_0", 0, "KIND_CPU"))


def request(values: Sequence[float], outputs: Sequence[str] = (), **fields: Any) -> InferRequest:
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec("A", DataType.FP32, (1, len(values)))],
        outputs=[RequestedOutput(name) for name in outputs],
        **fields,
    )
    return InferRequest(header, [np.array(values, np.float32).tobytes()], ignore_response)


def executed(instance: Instance, *requests: InferRequest) -> list[dict[str, np.ndarray]]:
    responses = instance.execute(Batch(requests, len(requests)))
    return [
        {spec.name: to_array(spec, data) for spec, data in zip(each.header.outputs, each.data, strict=True)}
        for each in responses
    ]


def test_each_request_gets_its_response():
    instance = instance_of(lambda requests: [{"OUT": each["A"] * 2} for each in requests])
    results = executed(instance, request([1, 2]), request([3]))
    assert [each["OUT"].tolist() for each in results] == [[[2, 4]], [[6]]]


def test_equal_responses_share_one_header():
    instance = instance_of(lambda requests: [{"OUT": each["A"]} for each in requests])
    first, second = instance.execute(Batch([request([1]), request([2])], 2))
    assert first.header is second.header


def test_only_requested_outputs_are_sent():
    instance = instance_of(
        lambda requests: [{"OUT": r["A"], "OTHER": np.array([[1]]), "more": r["A"]} for r in requests]
    )
    assert list(executed(instance, request([1], ["OTHER"]))[0]) == ["OTHER"]
    assert list(executed(instance, request([1]))[0]) == ["OUT", "OTHER"]


def test_requests_have_parameters_and_output_names():
    seen = []
    instance = instance_of(lambda requests: seen.extend(requests) or [{"OUT": each["A"]} for each in requests])
    executed(instance, request([1], ["OUT"], parameters={"key": 5}))
    executed(instance, request([1]))
    assert seen[0].parameters == {"key": 5}
    assert [each.requested_output_names for each in seen] == [["OUT"], ["OUT", "OTHER"]]


def test_inputs_are_in_configured_order():
    seen = []
    instance = instance_of(lambda requests: seen.extend(requests) or [{"OUT": each["A"]} for each in requests])
    specs = [TensorSpec("T", DataType.BYTES, (1, 1)), TensorSpec("A", DataType.FP32, (1, 1))]
    data = [encode_bytes_elements([b"x\0"]), np.zeros(1, np.float32).tobytes()]
    executed(instance, InferRequest(RequestHeader(model_name="m", inputs=specs), data, ignore_response))
    assert list(seen[0]) == ["A", "T"]
    assert seen[0]["T"].tolist() == [[b"x\0"]]


def test_inputs_are_writable_without_changing_the_message():
    def infer(requests):
        requests[0]["A"] += 1
        return [{"OUT": requests[0]["A"]}]

    sent = request([1])
    assert executed(instance_of(infer), sent)[0]["OUT"].tolist() == [[2]]
    assert np.frombuffer(sent.data[0], np.float32).tolist() == [1]


@pytest.mark.parametrize("size", [1, 10_000])
def test_function_may_reuse_its_output_arrays(size):
    kept = np.zeros((1, size), np.float32)

    def infer(requests):
        kept[:] = requests[0]["A"][0, 0]
        return [{"OUT": kept}]

    instance = instance_of(infer)
    first = instance.execute(Batch([request([1])], 1))
    instance.execute(Batch([request([2])], 1))
    assert to_array(first[0].header.outputs[0], first[0].data[0])[0, -1] == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"OUT": 1}, "returned dict, expected a list"),
        ([], "returned 0 responses for 1 requests"),
        ([1], "a response of type int"),
        ([{"OUT": [1]}], "output 'OUT' of model 'm' is of type list"),
        ([{"OUT": np.zeros(1, np.complex64)}], "dtype complex64"),
        ([{"OUT": np.array([[1, 2]], object)}], "objects of type int, expected bytes or str"),
        ([{"OUT": np.array([["a", "\ud800"]])}], r"output 'OUT' of model 'm' has half of a surrogate pair \(U\+D800"),
    ],
)
def test_wrong_results_name_the_problem(result, message):
    with pytest.raises(InferError, match=message):
        executed(instance_of(lambda _: result), request([1]))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"OUT": np.zeros((1, 1), np.float64)}, r"dtype float64 \(FP64\), expected FP32"),
        ({"OTHER": np.zeros((1, 2), np.int64)}, r"shape \(2,\) without the batch dimension, expected \(1,\)"),
        ({"more": np.zeros((1, 1))}, "not in the configuration, which has OUT, OTHER"),
    ],
)
def test_strict_models_check_outputs(outputs, message):
    with pytest.raises(InferError, match=message):
        executed(instance_of(lambda _: [outputs], strict=True), request([1]))


def test_lenient_models_send_other_datatypes():
    instance = instance_of(lambda _: [{"OUT": np.zeros((1, 1), np.float64)}])
    assert instance.execute(Batch([request([1])], 1))[0].header.outputs[0].datatype is DataType.FP64


def test_text_outputs_are_encoded():
    for kind in (np.str_, object, np.dtypes.StringDType()):
        instance = instance_of(lambda _, kind=kind: [{"OUT": np.array([["é"]], kind)}])
        assert executed(instance, request([1]))[0]["OUT"].tolist() == [["é".encode()]]


def test_errors_have_type_text_and_place():
    def infer(_):
        raise KeyError("missing")

    with pytest.raises(InferError, match="executing model 'm' failed: KeyError: 'missing'") as caught:
        executed(instance_of(infer), request([1]))
    assert "test_bind_instance.py:" in caught.value.detail.splitlines()[0]


def test_unrecoverable_error_is_reported():
    reasons = []

    def infer(_):
        raise PyTritonUnrecoverableError("broken")

    with pytest.raises(InferError):
        executed(instance_of(infer, on_unrecoverable=reasons.append), request([1]))
    assert "broken" in reasons[0]


def test_coroutines_are_executed():
    async def infer(requests):
        return [{"OUT": each["A"]} for each in requests]

    instance = instance_of(infer)
    try:
        assert executed(instance, request([4]))[0]["OUT"].tolist() == [[4]]
    finally:
        instance.close()


@pytest.mark.parametrize("count", [0, 2])
def test_generators_without_decoupled_yield_once(count):
    def infer(requests):
        for _ in range(count):
            yield [{"OUT": each["A"]} for each in requests]

    with pytest.raises(InferError, match=f"yielded {count} times, expected once"):
        executed(instance_of(infer), request([1]))


def test_unbound_version_names_bound_ones():
    backend = BindBackend(TritonContext(), lambda _: None)
    with pytest.raises(InferError, match="no function is bound to it; bound are: none"):
        backend.load(
            ModelContext("m", 1, to_message(complete_config("m", 1, [A], [OUT], ModelConfig(), 1)), Path(), Path(), 1)
        )


def test_more_instances_than_functions_are_refused():
    complete = complete_config("m", 1, [A], [OUT], ModelConfig(), 1)
    backend = BindBackend(TritonContext(), lambda _: None)
    backend.add(BoundModel(complete, [len]))
    model = backend.load(ModelContext("m", 1, normalize(to_message(complete)), Path(), Path(), 1))
    with pytest.raises(InferError, match="one for each bound function"):
        model.create_instance(InstanceSpec("m_0_1", 1, "KIND_CPU"))


def test_dates_are_refused_with_their_conversion():
    instance = instance_of(lambda _: [{"OUT": np.array([["2030-01-01"]], "datetime64[s]")}])
    with pytest.raises(InferError, match=r"dtype datetime64\[s\].*astype\('int64'\)"):
        executed(instance, request([1]))


@pytest.mark.parametrize("wrap", [lambda infer: infer, lambda infer: batch(lambda **inputs: infer(inputs)[0])])
def test_outputs_with_masked_elements_are_refused(wrap):
    masked = np.ma.masked_array([[1.5]], [[True]])
    with pytest.raises(InferError, match=r"output 'OUT' .*has masked elements.*array.filled\(value\)"):
        executed(instance_of(wrap(lambda _: [{"OUT": masked}])), request([1]))
    whole = instance_of(wrap(lambda _: [{"OUT": np.ma.masked_array([[1.5]])}]))
    assert executed(whole, request([1]))[0]["OUT"].tolist() == [[1.5]]


def test_batches_of_series_are_refused_with_the_way():
    class Series:
        def to_numpy(self):
            return np.zeros(1)

    with pytest.raises(InferError, match=r"of type Series, expected a numpy array: use its to_numpy\(\)"):
        executed(instance_of(batch(lambda **_: {"OUT": Series()})), request([1]))
