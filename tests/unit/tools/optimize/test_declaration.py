"""What the configuration of a candidate says because its file does not."""

import hashlib

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.sources.source_declaration import declaration

FP32, FP64 = DataType.FP32, DataType.FP64


def declared(folder, form, inputs, outputs=(), has_batch=True):
    conversion = Conversion(Candidate("c", form, Precision.FP32, "pytorch"), Status.CONVERTED, folder)
    source = Source("s", form, folder, inputs, outputs, has_batch)
    found = parse_pbtxt(declaration(conversion, source), "config.pbtxt")
    assert not found.problems
    return found.config


@pytest.mark.parametrize("form", [Format.TORCH, Format.TORCHSCRIPT, Format.AOT_INDUCTOR])
def test_pytorch_gets_the_tensors_of_the_source(tmp_path, form):
    tensors = (TensorSpec("x", FP32, (-1, 3)),), (TensorSpec("y", FP64, (-1,)),)
    config = declared(tmp_path, form, *tensors)
    assert config.max_batch_size == 8
    assert [(each.name, list(each.dims)) for each in config.input] == [("x", [3])]
    assert config.output[0].data_type == FP64.config_number
    assert (list(config.output[0].dims), list(config.output[0].reshape.shape)) == ([1], [])
    assert config.output[0].HasField("reshape")


@pytest.mark.parametrize(("shape", "has_batch"), [((1, 3), True), ((-1, 3), False)])
def test_fixed_rows_are_dimensions(tmp_path, shape, has_batch):
    config = declared(tmp_path, Format.TORCHSCRIPT, (TensorSpec("x", FP32, shape),), has_batch=has_batch)
    assert config.max_batch_size == 0
    assert tuple(config.input[0].dims) == shape


def test_pickle_is_allowed_by_its_digest(tmp_path):
    (tmp_path / "model.joblib").write_bytes(b"pickle")
    config = declared(tmp_path, Format.SKLEARN, (TensorSpec("x", FP32, (-1, 3)),))
    assert config.parameters["sha256"].string_value == hashlib.sha256(b"pickle").hexdigest()


def test_forests_get_inputs_of_doubles_only(tmp_path):
    assert not declared(tmp_path, Format.XGBOOST, (TensorSpec("input__0", FP32, (-1, 3)),)).input
    config = declared(tmp_path, Format.TREELITE, (TensorSpec("x", FP64, (-1, 3)),))
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
        ("input__0", FP64.config_number, [3])
    ]


def test_onnx_says_all_itself(tmp_path):
    assert not declared(tmp_path, Format.ONNX, (TensorSpec("x", FP32, (-1, 3)),)).ListFields()
