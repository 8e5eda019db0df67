"""Flags that describe bare model files: tensors, methods, trusted types, for one file or all."""

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.options.sources.command_line import OptionError, parse_options


def configured(*flags, model="m"):
    config = ModelConfig(name=model)
    parse_options(["m.pt", *flags], {}).bare_models.configure(config)
    return config


def test_tensors_with_a_batch_make_a_batching_model():
    config = configured("--input=x:FP32:-1,30", "--input=t:STRING:-1,1", "--output", "y:INT64:-1")
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
        ("x", 11, [30]),
        ("t", 13, [1]),
    ]
    assert (list(config.output[0].dims), list(config.output[0].reshape.shape)) == ([1], [])
    assert config.output[0].HasField("reshape")
    assert config.max_batch_size == 32
    assert config.HasField("dynamic_batching")


def test_tensors_without_a_batch_do_not_batch():
    config = configured("--input=x:FP32:3,-1", "--output=y:FP32:2")
    assert list(config.input[0].dims) == [3, -1]
    assert config.max_batch_size == 0


def test_flag_with_a_name_is_for_that_model():
    flags = ("--input=other:x:FP32:-1,3", "--input=m:z:FP32:-1,4", "--method=other:predict", "--method=m:transform")
    config = configured(*flags)
    assert [each.name for each in config.input] == ["z"]
    assert config.parameters["method"].string_value == "transform"
    assert configured(*flags, model="other").parameters["method"].string_value == "predict"


def test_trusted_types_are_listed():
    config = configured("--trusted-types=a.B,c.D", "--trusted-types=m:e.F")
    assert config.parameters["trusted_types"].string_value == "a.B,c.D,e.F"


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--input=x", "expected [MODEL:]NAME:DATATYPE:DIMS"),
        ("--input=x:FLOAT:1", "no datatype FLOAT"),
        ("--output=x:FP32:0", "expected dimensions from 1 on"),
        ("--output=x:FP32:1,-2", "expected dimensions from 1 on"),
        ("--output=x:FP32:1-2", "expected dimensions from 1 on"),
        ("--method=guess", "expected one or more of predict"),
        ("--trusted-types=m:", "expected [MODEL:]VALUE"),
    ],
)
def test_wrong_flag_is_refused(flag, text):
    with pytest.raises(OptionError) as failure:
        parse_options(["m.pt", flag], {})
    assert text in str(failure.value)


def test_tensors_agree_about_the_batch():
    with pytest.raises(InferError, match="some tensors begin with -1"):
        configured("--input=x:FP32:-1,3", "--output=y:FP32:3")


def test_flag_for_no_model_is_refused():
    options = parse_options(["m.pt", "--method=n:predict"], {}).bare_models
    options.check_names(["n"])
    with pytest.raises(InferError, match="'n' is no model file on the command line; those are: m"):
        options.check_names(["m"])
    with pytest.raises(InferError, match="is for model files on the command line"):
        parse_options(["models", "--method=predict"], {}).bare_models.check_names([])
