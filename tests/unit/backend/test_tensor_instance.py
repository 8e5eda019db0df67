"""Gathering and scattering, with a framework that is a Python function."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from naiad.backend.assembler import COPY_LIMIT_BYTES, LARGE_INPUT_BYTES, MAX_PLANS
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import Array, TensorSpec
from support.backend_parts import execute, infer, make_context, make_header, make_request, output_arrays, strings

Run = Callable[[dict[str, Array], Sequence[str]], Sequence[Array]]


def config(max_batch_size: int = 8) -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=max_batch_size)
    for name in ("A", "B"):
        made.input.add(name=name, data_type="TYPE_FP32", dims=[2])
    for name in ("SUM", "DIFF"):
        made.output.add(name=name, data_type="TYPE_FP32", dims=[2])
    return made


def one_to_one(datatype: str = "TYPE_FP32", dims: Sequence[int] = (2,), max_batch_size: int = 8) -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=max_batch_size)
    made.input.add(name="X", data_type=datatype, dims=dims)
    made.output.add(name="Y", data_type=datatype, dims=dims)
    return made


class FunctionInstance(TensorInstance):
    """Calls a function and keeps what it was called with."""

    def __init__(self, made: ModelConfig, run: Run) -> None:
        super().__init__(make_context(made))
        self._function = run
        self.calls: list[tuple[dict[str, Array], Sequence[str]]] = []

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        self.calls.append((dict(inputs), list(output_names)))
        return self._function(inputs, output_names)


def add_sub(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
    made = {"SUM": inputs["A"] + inputs["B"], "DIFF": inputs["A"] - inputs["B"]}
    return [made[name] for name in names]


def echo(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
    return [inputs["X"]]


def pair(first: float, rows: int = 1) -> dict[str, Array]:
    a = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + np.float32(first)
    return {"A": a, "B": a * 10}


def check(response_arrays: dict[str, Array], inputs: dict[str, Array]) -> None:
    np.testing.assert_array_equal(response_arrays["SUM"], inputs["A"] + inputs["B"])
    np.testing.assert_array_equal(response_arrays["DIFF"], inputs["A"] - inputs["B"])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_request_gets_its_own_rows(count, rows):
    instance = FunctionInstance(config(), add_sub)
    arrays = [pair(100 * number, rows) for number in range(count)]
    header = make_header(arrays[0])
    for _ in range(2):
        responses = execute(instance, [make_request(a, header=header, rows=rows) for a in arrays])
        for response, inputs in zip(responses, arrays, strict=True):
            check(output_arrays(response), inputs)
    assert len(instance.calls) == 2
    assert instance.calls[0][0]["A"].shape == (count * rows, 2)


def test_equal_responses_share_their_header():
    instance = FunctionInstance(config(), add_sub)
    header = make_header(pair(0))
    first = execute(instance, [make_request(pair(n), header=header) for n in range(3)])
    second = execute(instance, [make_request(pair(7), header=header)])
    assert len({id(response.header) for response in (*first, *second)}) == 1
    made = first[0].header
    assert (made.model_name, made.model_version) == ("m", "1")
    assert made.outputs == (TensorSpec("SUM", DataType.FP32, (1, 2)), TensorSpec("DIFF", DataType.FP32, (1, 2)))


def test_mixed_headers_are_mapped_by_name():
    instance = FunctionInstance(config(), add_sub)
    plain, wide = pair(1), pair(50, rows=3)
    turned = dict(reversed(pair(2).items()))
    only_diff = pair(3)
    requests = [
        make_request(plain),
        make_request(turned),
        make_request(wide, rows=3),
        make_request(only_diff, ["DIFF"]),
    ]
    for batch in (requests, requests[::-1]):
        by_request = dict(zip(map(id, batch), execute(instance, batch), strict=True))
        for request, inputs in zip(requests[:3], (plain, turned, wide), strict=True):
            check(output_arrays(by_request[id(request)]), inputs)
        last = output_arrays(by_request[id(requests[3])])
        np.testing.assert_array_equal(last["DIFF"], only_diff["A"] - only_diff["B"])
        assert list(last) == ["DIFF"]
    assert len(instance.calls) == 2


def test_equal_distinct_headers_batch_together():
    instance = FunctionInstance(config(), add_sub)
    arrays = [pair(1), pair(2)]
    for _ in range(2):
        for response, inputs in zip(execute(instance, [make_request(a) for a in arrays]), arrays, strict=True):
            check(output_arrays(response), inputs)


def test_requested_outputs_keep_configured_order():
    instance = FunctionInstance(config(), add_sub)
    assert list(infer(instance, pair(1), ["DIFF"])) == ["DIFF"]
    assert instance.calls[-1][1] == ["DIFF"]
    assert list(infer(instance, pair(1), ["DIFF", "SUM"])) == ["SUM", "DIFF"]


def test_absent_optional_inputs_are_left_out():
    made = config()
    made.input[1].optional = True

    def run(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        return [inputs["A"], inputs.get("B", -inputs["A"])]

    instance = FunctionInstance(made, run)
    alone = {"A": np.ones((1, 2), np.float32)}
    np.testing.assert_array_equal(infer(instance, alone)["DIFF"], [[-1, -1]])
    assert list(instance.calls[-1][0]) == ["A"]
    np.testing.assert_array_equal(infer(instance, pair(3))["DIFF"], pair(3)["B"])


@pytest.mark.parametrize("datatype", [d for d in DataType if d is not DataType.BYTES], ids=lambda d: d.value)
@pytest.mark.parametrize("count", [1, 4])
def test_every_datatype_goes_through_unchanged(datatype, count):
    instance = FunctionInstance(one_to_one(datatype.config_name, dims=[3]), echo)
    array = np.array([[0, 1, 100]]).astype(datatype.numpy)
    header = make_header({"X": array})
    for response in execute(instance, [make_request({"X": array}, header=header) for _ in range(count)]):
        returned = output_arrays(response)["Y"]
        assert returned.dtype == datatype.numpy
        np.testing.assert_array_equal(returned, array)
    assert instance.calls[0][0]["X"].dtype == datatype.numpy


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("same_header", [True, False])
def test_strings_of_any_length_and_content(count, same_header):
    instance = FunctionInstance(one_to_one("TYPE_STRING"), echo)
    arrays = [strings(b"a" * number, b"\x00\xff" * number).reshape(1, 2) for number in range(count)]
    header = make_header({"X": arrays[0]}) if same_header else None
    responses = execute(instance, [make_request({"X": array}, header=header) for array in arrays])
    for response, array in zip(responses, arrays, strict=True):
        assert output_arrays(response)["Y"].tolist() == array.tolist()


def test_text_is_returned_as_utf8():
    instance = FunctionInstance(
        one_to_one("TYPE_STRING", [1]), lambda inputs, names: [np.array([["grün"]], dtype=object)]
    )
    assert infer(instance, {"X": strings(b"x").reshape(1, 1)})["Y"].tolist() == [["grün".encode()]]


@pytest.mark.parametrize("offset", range(8))
def test_data_at_any_offset_reaches_the_framework_aligned(offset):
    instance = FunctionInstance(one_to_one("TYPE_FP64"), echo)
    array = np.array([[1.5, -2.5]])
    body = memoryview(bytes(offset) + array.tobytes())
    request = make_request({"X": array})
    request.data = (body[offset:],)
    assert output_arrays(execute(instance, [request])[0])["Y"].tolist() == array.tolist()
    assert instance.calls[0][0]["X"].flags.aligned


def test_an_aligned_single_request_is_not_copied():
    instance = FunctionInstance(one_to_one(dims=[-1]), echo)
    array = np.zeros((1, 100_000), np.float32)
    (response,) = execute(instance, [make_request({"X": array})])
    assert np.shares_memory(instance.calls[0][0]["X"], array)
    assert np.shares_memory(output_arrays(response)["Y"], array)


@pytest.mark.parametrize("width", [COPY_LIMIT_BYTES // 4 - 1, COPY_LIMIT_BYTES // 4, COPY_LIMIT_BYTES // 4 + 1])
@pytest.mark.parametrize("count", [1, 2])
def test_large_and_small_outputs_are_cut(width, count):
    instance = FunctionInstance(one_to_one(dims=[-1]), echo)
    arrays = [np.full((1, width), number, np.float32) for number in range(count)]
    header = make_header({"X": arrays[0]})
    responses = execute(instance, [make_request({"X": a}, header=header) for a in arrays])
    for response, array in zip(responses, arrays, strict=True):
        assert memoryview(response.data[0]).format == "B"
        np.testing.assert_array_equal(output_arrays(response)["Y"], array)


@pytest.mark.parametrize("shape", [(0, 2), (1, 0), (0, 0)])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("same_header", [True, False])
def test_tensors_without_elements(shape, count, same_header):
    instance = FunctionInstance(one_to_one(dims=[-1]), echo)
    array = np.zeros(shape, np.float32)
    header = make_header({"X": array}) if same_header else None
    requests = [make_request({"X": array}, header=header, rows=shape[0]) for _ in range(count)]
    for response in execute(instance, requests):
        assert output_arrays(response)["Y"].shape == shape


def test_strided_and_big_endian_outputs_are_normalised():
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    for returned in (values, np.asfortranarray(values.astype("<f4")), values.astype("<f4")[::-1][::-1]):
        instance = FunctionInstance(one_to_one(dims=[3]), lambda inputs, names, returned=returned: [returned])
        arrays = {"X": np.zeros((2, 3), np.float32)}
        assert infer(instance, arrays)["Y"].tolist() == values.tolist()


def test_model_without_batching_sees_request_shape():
    instance = FunctionInstance(one_to_one(dims=[-1, 2], max_batch_size=0), echo)
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert infer(instance, {"X": array})["Y"].tolist() == array.tolist()
    with pytest.raises(InferError, match="does not batch but was given 2 requests"):
        execute(instance, [make_request({"X": array}), make_request({"X": array})])


def test_output_shapes_follow_what_the_model_returns():
    def grow(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        return [np.repeat(inputs["X"], int(inputs["X"][0, 0]), axis=1)]

    instance = FunctionInstance(one_to_one(dims=[-1]), grow)
    header = make_header({"X": np.ones((1, 2), np.float32)})
    for factor in (1, 3, 1, 2):
        array = np.full((1, 2), factor, np.float32)
        (response,) = execute(instance, [make_request({"X": array}, header=header)])
        assert response.header.outputs[0].shape == (1, 2 * factor)
        assert output_arrays(response)["Y"].tolist() == [[factor] * 2 * factor]


def test_reshape_goes_both_ways():
    made = ModelConfig(name="m", max_batch_size=4)
    tensor = made.input.add(name="X", data_type="TYPE_FP32", dims=[-1, 4, -1])
    tensor.reshape.shape.extend([-1, 2, 2, -1])
    tensor = made.output.add(name="Y", data_type="TYPE_FP32", dims=[4, -1, -1])
    tensor.reshape.shape.extend([2, -1, 2, -1])
    instance = FunctionInstance(made, lambda inputs, names: [np.moveaxis(inputs["X"], 1, 2)])
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    (response,) = execute(instance, [make_request({"X": array}, rows=2)])
    assert instance.calls[0][0]["X"].shape == (2, 3, 2, 2, 5)
    assert response.header.outputs[0].shape == (2, 4, 3, 5)


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_reshape_to_a_scalar(max_batch_size):
    made = one_to_one(dims=[1], max_batch_size=max_batch_size)
    made.input[0].reshape.SetInParent()
    made.output[0].reshape.SetInParent()
    instance = FunctionInstance(made, echo)
    array = np.ones((3, 1) if max_batch_size else (1,), np.float32)
    assert infer(instance, {"X": array})["Y"].shape == array.shape
    assert instance.calls[0][0]["X"].shape == array.shape[:-1]


# --- refusals -------------------------------------------------------------------------------------------------------


def failure(instance: TensorInstance, requests: Sequence[InferRequest]) -> InferError:
    with pytest.raises(InferError) as caught:
        execute(instance, requests)
    return caught.value


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("same_header", [True, False])
def test_fixed_model_batch_size_is_detected(count, same_header):
    instance = FunctionInstance(one_to_one(), lambda inputs, names: [inputs["X"].reshape(1, -1).repeat(2, 0)])
    array = np.ones((1, 2), np.float32)
    header = make_header({"X": array}) if same_header else None
    error = failure(instance, [make_request({"X": array}, header=header) for _ in range(count)])
    assert error.code is ErrorCode.INTERNAL
    assert f"output 'Y' with shape [2,{2 * count}] for a batch of {count}" in error.message
    assert "max_batch_size: 0" in error.message


def test_an_output_without_batch_dimension_is_noticed():
    instance = FunctionInstance(one_to_one(), lambda inputs, names: [np.array(1, np.float32)])
    assert "with shape [] for a batch of 1" in failure(instance, [make_request({"X": np.ones((1, 2), "f4")})]).message


@pytest.mark.parametrize(("dtype", "name"), [(np.float64, "FP64"), (np.complex64, "complex64"), (object, "BYTES")])
def test_wrong_datatype_is_detected_after_right_ones(dtype, name):
    dtypes = iter([np.float32, dtype])
    instance = FunctionInstance(one_to_one(), lambda inputs, names: [inputs["X"].astype(next(dtypes))])
    header = make_header({"X": np.ones((1, 2), np.float32)})
    request = make_request({"X": np.ones((1, 2), np.float32)}, header=header)
    execute(instance, [request])
    error = failure(instance, [request])
    text = f"model 'm' returned output 'Y' with datatype {name}, but the model configuration says TYPE_FP32"
    hint = ": send real and imaginary part: array.real, array.imag" if dtype is np.complex64 else ""
    assert error.message == text + hint


@pytest.mark.parametrize("returned", [[], [np.ones((1, 2), np.float32)] * 2, [[[1.0, 2.0]]], [None]])
def test_anything_but_one_array_per_output_is_noticed(returned):
    instance = FunctionInstance(one_to_one(), lambda inputs, names: returned)
    error = failure(instance, [make_request({"X": np.ones((1, 2), np.float32)})])
    assert "did not return one array for each of the outputs asked for" in error.message


def test_output_contradicting_reshape_is_detected():
    made = one_to_one(dims=[4])
    made.output[0].reshape.shape.extend([2, 2])
    instance = FunctionInstance(made, echo)
    assert (
        "'reshape' in the model configuration has 2"
        in failure(instance, [make_request({"X": np.ones((1, 4), np.float32)})]).message
    )


@pytest.mark.parametrize("same_header", [True, False])
def test_only_the_requests_whose_inputs_are_refused_fail(same_header):
    def picky(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        if (inputs["X"] < 0).any():
            raise invalid_argument("negative")
        return [inputs["X"]]

    instance = FunctionInstance(one_to_one(), picky)
    header = make_header({"X": np.ones((1, 2), np.float32)}) if same_header else None
    arrays = [np.full((1, 2), value, np.float32) for value in (1, -1, 2)]
    first, second, third = execute(instance, [make_request({"X": a}, header=header) for a in arrays])
    assert output_arrays(first)["Y"].tolist() == [[1, 1]]
    assert second.error is not None
    assert second.error.message == "negative"
    assert output_arrays(third)["Y"].tolist() == [[2, 2]]


def test_other_failures_fail_whole_batch():
    def broken(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        raise internal("broken")

    instance = FunctionInstance(one_to_one(), broken)
    header = make_header({"X": np.ones((1, 2), np.float32)})
    request = make_request({"X": np.ones((1, 2), np.float32)}, header=header)
    assert failure(instance, [request, request]).message == "broken"
    assert len(instance.calls) == 1


def test_what_is_remembered_is_bounded():
    instance = FunctionInstance(config(), add_sub)
    for _ in range(MAX_PLANS + 10):
        check(infer(instance, pair(1)), pair(1))
    assert len(instance._plans) <= MAX_PLANS
    assert len(instance._assembler._layouts) <= MAX_PLANS


# --- fixed buffers --------------------------------------------------------------------------------------------------


class Buffers:
    """Adds and subtracts between buffers, or does what a test scripts."""

    def __init__(self, rows: int, script: Callable[[], None] | None) -> None:
        self.arrays = [np.zeros((rows, 2), np.float32) for _ in range(2)]
        self.inputs = [memoryview(a.view(np.uint8).reshape(-1).data) for a in self.arrays]
        self.outputs = [np.zeros((rows, 2), np.float32) for _ in range(2)]
        self._script = script

    def run(self) -> None:
        if self._script is not None:
            self._script()
        np.add(self.arrays[0], self.arrays[1], out=self.outputs[0])
        np.subtract(self.arrays[0], self.arrays[1], out=self.outputs[1])


class StagingInstance(FunctionInstance):
    """Stages what asks for all outputs."""

    def __init__(self, script: Callable[[], None] | None = None, run: Run = add_sub) -> None:
        super().__init__(config(), run)
        self._script = script
        self.staged: list[tuple[Sequence[TensorSpec], Sequence[str]]] = []

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> Buffers | None:
        self.staged.append((inputs, output_names))
        return Buffers(inputs[0].shape[0], self._script) if len(output_names) == 2 else None


@pytest.mark.parametrize("count", [1, 4])
def test_fixed_buffers_give_the_same_answers(count):
    instance = StagingInstance()
    header = make_header(pair(0))
    kept = []
    for number in range(3):
        arrays = [pair(number * 10 + request) for request in range(count)]
        kept += zip(execute(instance, [make_request(a, header=header) for a in arrays]), arrays, strict=True)
    # Answers are still right after the buffers were used again.
    for response, inputs in kept:
        check(output_arrays(response), inputs)
    assert not instance.calls
    assert len(instance.staged) == 1
    assert instance.staged[0][0][0] == TensorSpec("A", DataType.FP32, (count, 2))


def test_without_buffers_for_these_outputs_arrays_are_used():
    instance = StagingInstance()
    assert list(infer(instance, pair(1), ["SUM"])) == ["SUM"]
    assert len(instance.calls) == 1


def test_mismatched_buffers_are_abandoned():
    def refuse() -> None:
        raise RuntimeError("computed output shape")

    instance = StagingInstance(refuse)
    headers = [make_header(pair(0)), make_header(pair(0))]
    for header in (*headers, *headers):
        check(output_arrays(execute(instance, [make_request(pair(5), header=header)])[0]), pair(5))
    assert len(instance.calls) == 4
    assert len(instance.staged) == 1


def test_batch_failing_both_ways_keeps_buffers():
    outcomes = iter([RuntimeError("bad index"), None])

    def sometimes() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    def broken(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        raise internal("bad index")

    instance = StagingInstance(sometimes, broken)
    header: RequestHeader = make_header(pair(0))
    request = make_request(pair(5), header=header)
    assert failure(instance, [request]).message == "bad index"
    check(output_arrays(execute(instance, [request])[0]), pair(5))
    assert len(instance.calls) == 1


@pytest.mark.parametrize(("offset", "is_released"), [(0, False), (1, True)])
def test_a_large_message_that_was_copied_is_released(offset, is_released):
    instance = FunctionInstance(one_to_one(dims=[-1]), echo)
    array = np.ones((1, LARGE_INPUT_BYTES // 4), np.float32)
    request = make_request({"X": array})
    block = np.zeros(array.nbytes + 1, np.uint8)
    block[offset : offset + array.nbytes] = array.view(np.uint8).reshape(-1)
    request.data = (memoryview(block.data)[offset : offset + array.nbytes],)
    np.testing.assert_array_equal(output_arrays(execute(instance, [request])[0])["Y"], array)
    assert (len(request.data) == 0) == is_released


@pytest.mark.parametrize("shapes", [[(1, 2)], [(1, 2), (1, 2)], [(2, 2), (1, 2)]])
def test_half_of_a_surrogate_pair_names_the_output(shapes: list[tuple[int, int]]) -> None:
    def half(inputs: dict[str, Array], names: Sequence[str]) -> Sequence[Array]:
        texts = np.full(inputs["X"].shape, "a", object)
        texts[-1, -1] = "b\ud800"
        return [texts]

    made = one_to_one("TYPE_STRING")
    requests = [make_request({"X": np.full(shape, b"x", object)}, rows=shape[0]) for shape in shapes]
    with pytest.raises(InferError, match=r"output 'Y' of model 'm' has half of a surrogate pair \(U\+D800, at char"):
        FunctionInstance(made, half).execute(Batch(requests, sum(shape[0] for shape in shapes)))
