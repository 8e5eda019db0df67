"""Decorators of inference callables."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from naiad.bind.callable_context import RunningModel, TritonContext, running
from naiad.bind.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    get_model_config,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from naiad.bind.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonValidationError
from naiad.bind.model_config import DynamicBatcher
from naiad.bind.model_config.triton_model_config import TensorSpec, TritonModelConfig
from naiad.bind.request import Request


def model_config(**changes: Any) -> TritonModelConfig:
    inputs = [TensorSpec("a", (-1,), np.float32), TensorSpec("b", (1,), np.float32, optional=True)]
    return TritonModelConfig("m", inputs=inputs, outputs=[TensorSpec("out", (-1,), np.float32)], **changes)


@pytest.fixture
def executing() -> Iterator[Callable[[TritonModelConfig], None]]:
    """A function that makes a model the one that executes, until the test ends."""
    tokens = []

    def begin(config: TritonModelConfig) -> None:
        tokens.append(running.set(RunningModel(TritonContext(), config)))

    yield begin
    for token in reversed(tokens):
        running.reset(token)


def rows(*values: float) -> np.ndarray:
    return np.array([[value] for value in values], np.float32)


def test_batch_cuts_outputs_by_rows_of_requests():
    @batch
    def infer(a):
        assert a.shape == (3, 1)
        return {"out": a * 2}

    first, second = infer([Request({"a": rows(1, 2)}), Request({"a": rows(3)})])
    np.testing.assert_array_equal(first["out"], rows(2, 4))
    np.testing.assert_array_equal(second["out"], rows(6))


def test_batch_takes_lists_in_order_of_outputs(executing):
    executing(model_config())
    assert list(batch(lambda a: [a])([Request({"a": rows(1)})])[0]) == ["out"]


def test_batch_refuses_wrong_number_of_outputs(executing):
    executing(model_config())
    with pytest.raises(PyTritonValidationError, match="returned 2 outputs, expected 1: out"):
        batch(lambda a: [a, a])([Request({"a": rows(1)})])


def test_batch_refuses_outputs_with_other_rows():
    with pytest.raises(ValueError, match=r"out: \(1, 1\)\. Expected batch size: 2"):
        batch(lambda a: {"out": a[:1]})([Request({"a": rows(1, 2)})])


def test_batch_refuses_requests_with_different_inputs():
    with pytest.raises(PyTritonValidationError, match="different set of inputs keys"):
        batch(lambda **_: {})([{"a": rows(1)}, {"b": rows(1)}])


def test_batch_gives_functions_writable_inputs():
    received = np.frombuffer(rows(1).tobytes(), np.float32).reshape(1, 1)
    assert not received.flags.writeable

    @batch
    def infer(a):
        a += 1
        return {"out": a}

    np.testing.assert_array_equal(infer([Request({"a": received})])[0]["out"], rows(2))
    np.testing.assert_array_equal(received, rows(1))


def test_batch_changes_every_value_of_generator():
    @batch
    def infer(a):
        yield {"out": a}
        yield {"out": a + 1}

    values = list(infer([{"a": rows(1)}, {"a": rows(5)}]))
    assert [[float(part["out"][0, 0]) for part in value] for value in values] == [[1, 5], [2, 6]]


def test_batch_decorates_coroutine_functions_and_async_generators():
    @batch
    async def infer(a):
        return {"out": a}

    @batch
    async def stream(a):
        yield {"out": a}

    async def collect() -> list[Any]:
        return [await infer([{"a": rows(1)}]), *[each async for each in stream([{"a": rows(2)}])]]

    assert [float(value[0]["out"][0, 0]) for value in asyncio.run(collect())] == [1, 2]


def test_decorators_work_on_methods_and_callable_objects():
    class Model:
        @batch
        def infer(self, a):
            return {"out": a}

        @batch
        @first_value("b")
        def __call__(self, a, b):
            return {"out": a * b}

    token = running.set(RunningModel(TritonContext(), model_config()))
    try:
        assert Model().infer([{"a": rows(1)}])[0]["out"].shape == (1, 1)
        np.testing.assert_array_equal(Model()([{"a": rows(2), "b": rows(3)}])[0]["out"], rows(6))
    finally:
        running.reset(token)


def test_sample_passes_inputs_of_only_request(executing):
    executing(model_config(batching=False))
    assert sample(lambda a: [a])([Request({"a": rows(1)})])[0]["out"].shape == (1, 1)
    with pytest.raises(PyTritonValidationError, match="batch of 2 requests"):
        sample(lambda a: [a])([{"a": rows(1)}, {"a": rows(2)}])


def test_group_by_keys_keeps_order_of_requests():
    calls = []

    @group_by_keys
    @batch
    def infer(**inputs):
        calls.append(sorted(inputs))
        return {"out": sum(inputs.values())}

    requests = [{"a": rows(1)}, {"a": rows(2), "b": rows(10)}, {"a": rows(3)}]
    assert [float(each["out"][0, 0]) for each in infer(requests)] == [1, 12, 3]
    assert calls == [["a"], ["a", "b"]]


def test_group_by_keys_awaits_coroutines_of_groups():
    @group_by_keys
    @batch
    async def infer(**inputs):
        return {"out": sum(inputs.values())}

    responses = asyncio.run(infer([{"a": rows(1)}, {"b": rows(2)}]))
    assert [float(each["out"][0, 0]) for each in responses] == [1, 2]


def test_group_by_values_calls_once_for_each_value():
    calls = []

    @batch
    @group_by_values("b")
    def infer(a, b):
        assert len(np.unique(b)) == 1
        calls.append(len(a))
        return {"out": a * b}

    responses = infer([{"a": rows(1, 2), "b": rows(10, 20)}, {"a": rows(3), "b": rows(10)}])
    assert [each["out"].ravel().tolist() for each in responses] == [[10, 40], [30]]
    assert calls == [2, 1]


def test_group_by_values_keeps_long_strings():
    @batch
    @group_by_values("b")
    def infer(b):
        return {"out": np.array([[b"x" * int(value)] for value in b[:, 0]])}

    (response,) = infer([{"b": rows(1, 5)}])
    assert response["out"].ravel().tolist() == [b"x", b"xxxxx"]


def test_group_by_values_pads_outputs_of_groups():
    def infer(b):
        return {"out": np.ones((len(b), int(b[0, 0])), np.float32)}

    padded = batch(group_by_values("b", pad_fn=ConstantPadder(7))(infer))
    assert padded([{"b": rows(1, 2)}])[0]["out"].tolist() == [[1, 7], [1, 1]]
    with pytest.raises(ValueError, match="pad_fn=ConstantPadder"):
        batch(group_by_values("b")(infer))([{"b": rows(1, 2)}])


def test_group_by_values_above_batch_is_refused():
    with pytest.raises(PyTritonRuntimeError, match="must be used after the @batch"):
        group_by_values("b")(batch(lambda **_: {}))


def test_group_by_values_names_missing_input():
    with pytest.raises(PyTritonRuntimeError, match="no input b; they have a"):
        batch(group_by_values("b")(lambda **_: {}))([{"a": rows(1)}])


def test_constant_padder_refuses_different_dtypes():
    with pytest.raises(PyTritonRuntimeError, match="same dtype"):
        ConstantPadder()([{"x": np.zeros((1, 1), np.int32)}, {"x": np.zeros((1, 1), np.float32)}])


def test_constant_padder_fills_text_with_empty_strings():
    one, two = ConstantPadder()([{"x": np.array([[b"a"]])}, {"x": np.array([[b"b", b"cc"]])}])
    assert one["x"].tolist() == [[b"a", b""]]
    assert two["x"].tolist() == [[b"b", b"cc"]]


def test_fill_optionals_repeats_default_for_each_row(executing):
    executing(model_config())

    @fill_optionals(b=np.array([5], np.float32))
    @batch
    def infer(a, b):
        return {"out": a * b}

    requests = [Request({"a": rows(1, 2)}), Request({"a": rows(3), "b": rows(1)})]
    assert [each["out"].ravel().tolist() for each in infer(requests)] == [[5, 10], [3]]


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"c": np.zeros(1)}, "no input of the model"),
        ({"b": 1.0}, "expected a numpy array"),
        ({"b": np.zeros(1, np.int32)}, "dtype int32"),
        ({"b": np.zeros(2, np.float32)}, r"shape \(2,\), expected \(1,\)"),
    ],
)
def test_fill_optionals_refuses_unsuitable_defaults(executing, defaults, message):
    executing(model_config())
    with pytest.raises(PyTritonBadParameterError, match=message):
        fill_optionals(**defaults)(lambda requests: requests)([Request({"a": rows(1)})])


def test_first_value_squeezes_single_elements(executing):
    executing(model_config())
    seen = []
    batch(first_value("b")(lambda a, b: seen.append(b) or {"out": a}))([{"a": rows(1, 2), "b": rows(3, 3)}])
    assert seen == [3]
    assert isinstance(seen[0], np.float32)


def test_first_value_of_requests_keeps_other_inputs(executing):
    executing(model_config())
    result = first_value("b", squeeze_single_values=False)(lambda requests: requests)(
        [Request({"a": rows(1), "b": rows(3)})]
    )
    assert result[0]["b"].tolist() == [3]
    assert result[0]["a"].shape == (1, 1)


def test_first_value_refuses_different_values(executing):
    executing(model_config())
    infer = batch(first_value("b")(lambda a, b: {"out": a}))
    with pytest.raises(PyTritonRuntimeError, match="not equal"):
        infer([{"a": rows(1, 2), "b": rows(3, 4)}])
    assert batch(first_value("b", strict=False)(lambda a, b: {"out": a}))([{"a": rows(1, 2), "b": rows(3, 4)}])


def test_first_value_needs_batching_and_real_inputs(executing):
    executing(model_config(batching=False))
    with pytest.raises(PyTritonRuntimeError, match="support batching"):
        first_value("b")(lambda requests: requests)([])
    with pytest.raises(PyTritonBadParameterError, match="triton_context"):
        first_value("triton_context")


@pytest.mark.parametrize(("count", "padded"), [(1, 2), (2, 2), (3, 8), (8, 8)])
def test_pad_batch_repeats_last_row_up_to_size(executing, count, padded):
    executing(model_config(max_batch_size=8, batcher=DynamicBatcher(preferred_batch_size=[2])))
    seen = []
    infer = batch(pad_batch(lambda a: seen.append(a) or {"out": a}))
    (response,) = infer([{"a": rows(*range(count))}])
    assert seen[0].shape == (padded, 1)
    assert set(seen[0][count:, 0]) <= {count - 1}
    assert response["out"].ravel().tolist() == list(range(count))


def test_triton_context_has_configuration_of_callable():
    context = TritonContext()
    config = model_config()

    @batch
    @triton_context
    def infer(a, triton_context):
        assert triton_context.model_configs[infer] is config
        return {"out": a}

    context.model_configs[infer] = config
    token = running.set(RunningModel(context, config))
    try:
        assert infer([{"a": rows(1)}])
    finally:
        running.reset(token)


def test_model_config_outside_execution_is_an_error():
    with pytest.raises(PyTritonValidationError, match="not executed by a server"):
        get_model_config(lambda: None)


STRINGS = np.dtypes.StringDType()


def test_strings_of_numpy_2_are_merged():
    @batch
    @group_by_values("key", pad_fn=ConstantPadder())
    def infer(key, x):
        return {"out": np.full((len(x), int(x[0, 0])), str(key[0, 0]), STRINGS)}

    keys, sizes = np.array([["b"], ["a"], ["b"]], STRINGS), np.array([[2], [1], [2]], np.int64)
    results = infer([{"key": keys, "x": sizes}])
    assert results[0]["out"].tolist() == [["b", "b"], ["a", ""], ["b", "b"]]


def test_default_of_strings_of_numpy_2_is_encoded(executing):
    inputs = [TensorSpec("a", (-1,), np.float32), TensorSpec("b", (1,), np.bytes_, optional=True)]
    executing(TritonModelConfig("m", inputs=inputs, outputs=[TensorSpec("out", (1,), np.bytes_)]))

    @fill_optionals(b=np.array(["Öl"], STRINGS))
    @batch
    def infer(a, b):
        return {"out": b}

    assert infer([Request({"a": rows(1)})])[0]["out"].tolist() == [["Öl".encode()]]
