"""Configurations held against the signature of a model of any framework."""

from collections.abc import Sequence

import pytest

from naiad.backend.signature import (
    ModelSignature,
    SignatureCheck,
    TensorSignature,
    complete,
    default_max_batch_size,
    is_complete,
)
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError

Dims = tuple[int | str | None, ...] | None


def signature(x: Dims, y: Dims, datatype: DataType | None = DataType.FP32) -> ModelSignature:
    return ModelSignature(
        "Frame",
        inputs={"X": TensorSignature("X", datatype, x, "frame.Sequence")},
        outputs={"Y": TensorSignature("Y", DataType.FP32, y)},
    )


def config(dims: Sequence[int], max_batch_size: int = 0, datatype: str = "TYPE_FP32", name: str = "X") -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=max_batch_size)
    made.input.add(name=name, data_type=datatype, dims=dims)
    made.output.add(name="Y", data_type="TYPE_FP32", dims=dims)
    return made


def refusal(made: ModelConfig, model: ModelSignature) -> InferError:
    with pytest.raises(InferError) as caught:
        SignatureCheck(made, model).check()
    return caught.value


@pytest.mark.parametrize(
    ("made", "model"),
    [
        (config([2, 3]), signature((2, 3), (2, 3))),
        (config([-1, 3]), signature(("rows", 3), (None, 3))),
        (config([3], 8), signature((None, 3), (None, 3))),
        (config([1]), signature((), ())),
        (config([7, 5]), signature(None, None)),
        (config([7, 5], 4), signature(None, None)),
    ],
)
def test_agreeing_configurations_pass(made, model):
    SignatureCheck(made, model).check()


def test_messages_begin_as_tritons_and_name_the_fix():
    model = signature((None, 3), (None, 3))
    assert refusal(config([3], 8, name="Z"), model).message == (
        "unexpected inference input 'Z', allowed inputs are: X; correct the configuration of model 'm'"
    )
    assert refusal(config([3], 8, datatype="TYPE_INT8"), model).message == (
        "unable to load model 'm', unexpected datatype TYPE_INT8 for input 'X', expecting TYPE_FP32; "
        "write data_type: TYPE_FP32"
    )
    assert "the model expects 2 dimensions (shape [-1,3])" in refusal(config([4], 8), model).message


def test_scalar_outputs_are_checked_where_ranks_are_known():
    made = config([1])
    made.output[0].dims[:] = [2]
    assert "scalar tensor 'Y'" in refusal(made, signature((1,), ())).message
    uncertain = ModelSignature("Frame", signature((1,), ()).inputs, signature((1,), ()).outputs, may_lack_ranks=True)
    SignatureCheck(made, uncertain).check()


def test_types_without_datatype_are_named():
    error = refusal(config([3]), signature((3,), (3,), None))
    assert error.code is ErrorCode.UNSUPPORTED
    assert "input 'X' is a frame.Sequence in the model" in error.message
    with pytest.raises(InferError, match=r"input 'X' of the Frame model is a frame.Sequence"):
        complete(ModelConfig(name="m"), signature((3,), (3,), None), 4)


def test_a_free_first_dimension_becomes_the_batch_dimension():
    made = complete(ModelConfig(name="m"), signature(("n", 3), (None, 3)), 16)
    assert made.max_batch_size == 16
    assert made.HasField("dynamic_batching")
    assert list(made.input[0].dims) == list(made.output[0].dims) == [3]
    assert is_complete(made)


def test_configured_batching_must_fit_the_model():
    with pytest.raises(InferError, match="model does not support batching while non-zero max_batch_size"):
        complete(ModelConfig(name="m", max_batch_size=4), signature((2, 3), (2, 3)), 16)


def test_unknown_ranks_are_left_to_the_configuration():
    with pytest.raises(InferError, match=r"the Frame model does not give the rank of input 'X'; write its 'dims'"):
        complete(ModelConfig(name="m"), signature(None, (3,)), 16)
    made = complete(config([3], 4), signature(None, None), 16)
    assert made == config([3], 4)


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("12", 12)])
def test_default_batch_size_comes_from_the_flag(text, size):
    assert default_max_batch_size({"default-max-batch-size": text}) == size
    assert default_max_batch_size({}) == 4


def test_invalid_default_batch_size_is_error():
    with pytest.raises(InferError, match="default-max-batch-size is '-1'"):
        default_max_batch_size({"default-max-batch-size": "-1"})
