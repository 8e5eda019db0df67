"""The parameter `pictures`: its words, and the inputs that can take a picture."""

import pytest

from naiad.config.model_config_pb2 import DataType as Kind
from naiad.config.model_config_pb2 import ModelConfig, ModelInput
from naiad.config.tensors.pictures import Pictures, parse_pictures, picture_shape
from naiad.config.validate.model import validate
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec


def test_words_are_read():
    text = "x, resize=crop,size=32x48,scale=255,mean=0.5/1/2,std=1/1/2,folder=/data"
    expected = Pictures("x", "crop", (32, 48), 255.0, (0.5, 1.0, 2.0), (1.0, 1.0, 2.0), "/data")
    assert parse_pictures(text) == expected
    assert parse_pictures("x") == Pictures("x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with no input"),
        ("resize=crop", "begins with no input"),
        ("x,crop", "'crop' is unknown"),
        ("x,sise=1x1", "'sise=1x1' is unknown"),
        ("x,scale=1,scale=1", "'scale=1' is unknown or twice"),
        ("x,resize=fit", "resize is 'fit'"),
        ("x,size=32", "size is '32'"),
        ("x,size=0x32", "size is '0x32'"),
        ("x,size=99999x1", "size is '99999x1'"),
        ("x,scale=2", "scale is '2'"),
        ("x,mean=a/b", "mean is 'a/b'"),
        ("x,std=1/0/1", "std has a 0"),
        ("x,folder=data", "expected an absolute path"),
        ("x,folder=", "expected an absolute path"),
    ],
)
def test_wrong_words_are_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_pictures(text)


@pytest.mark.parametrize(
    ("shape", "kind", "layout"),
    [
        ((-1, 3, 8, 6), DataType.FP32, "NCHW"),
        ((-1, 8, 6, 1), DataType.UINT8, "NHWC"),
        ((1, 4, -1, -1), DataType.FP16, "NCHW"),
        ((8, 6, 3), DataType.FP64, "NHWC"),
    ],
)
def test_layout_follows_from_the_channels(shape, kind, layout):
    found = picture_shape(Pictures("x"), TensorSpec("x", kind, shape))
    assert (found.layout, found.has_rows) == (layout, len(shape) == 4)
    assert {found.height, found.width} <= {8, 6, -1}


@pytest.mark.parametrize(
    ("shape", "kind", "text", "reason"),
    [
        ((-1, 3, 8, 6), DataType.INT64, "x", "INT64; pictures need"),
        ((-1, 5, 8, 6), DataType.FP32, "x", "needs 3 dimensions"),
        ((-1, 3, 8, 3), DataType.FP32, "x", "if both could be"),
        ((2, 3, 8, 6), DataType.FP32, "x", "needs 3 dimensions"),
        ((-1, 48), DataType.FP32, "x", "needs 3 dimensions"),
        ((-1, 3, 8, 6), DataType.FP32, "x,size=8x8", "size is 8x8, and input 'x' has 8x6"),
        ((-1, 3, -1, -1), DataType.FP32, "x,resize=crop", "resize=crop needs size"),
        ((-1, 3, 8, 6), DataType.FP32, "x,mean=1", "mean has 1 numbers, and input 'x' has 3 channels"),
        ((-1, 1, 8, 6), DataType.UINT8, "x,std=2", "std is for floating-point inputs"),
    ],
)
def test_inputs_that_take_no_pictures_are_refused(shape, kind, text, reason):
    with pytest.raises(ValueError, match=reason):
        picture_shape(parse_pictures(text), TensorSpec("x", kind, shape))


def test_format_decides_between_two_layouts():
    declared = ModelInput(name="x", format=ModelInput.FORMAT_NHWC)
    spec = TensorSpec("x", DataType.FP32, (-1, 3, 8, 3))
    assert picture_shape(Pictures("x"), spec, declared).layout == "NHWC"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("x", ""), ("y", "the model has no input 'y'; it has 'x'"), ("x,resize=no", "resize is 'no'"),
     ("x,size=9x9", "size is 9x9")],
)  # fmt: skip
def test_configurations_are_checked(text, reason):
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=4)
    config.input.add(name="x", data_type=Kind.TYPE_FP32, dims=[3, 8, 6])
    config.output.add(name="y", data_type=Kind.TYPE_FP32, dims=[3])
    config.parameters["pictures"].string_value = text
    problems = [problem.message for problem in validate(config)]
    assert len(problems) == bool(reason), problems
    assert reason in "".join(problems)
