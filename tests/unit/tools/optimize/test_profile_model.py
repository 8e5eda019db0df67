"""The process of a profile, in this one: which calls it makes of which models."""

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import TensorSpec
from naiad.testing.called_models import ModelError
from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.profile import tuning
from naiad.tools.optimize.profile.candidate_configuration import configuration, write_model
from naiad.tools.optimize.profile.measuring import profile_samples
from naiad.tools.optimize.profile.profile_child import ProfiledModel
from naiad.tools.optimize.profile.profile_messages import ProfileJob
from naiad.tools.optimize.results.candidate_measurement import Runtime
from support import onnx_models

ONNX = Candidate("candidate", Format.ONNX, Precision.FP32, "onnxruntime")
ROWS = [{"INPUT0": np.full(16, row, np.float32), "INPUT1": np.ones(16, np.float32)} for row in range(3)]


def job(tmp_path, content, *, rows=ROWS, names=("INPUT0", "INPUT1"), has_batch=True, parameters=None):
    files = tmp_path / "files"
    files.mkdir()
    (files / "model.onnx").write_bytes(content)
    conversion = Conversion(ONNX, Status.PASSED, files)
    inputs = tuple(TensorSpec(name, DataType.FP32, (-1, 16)) for name in names)
    runtime = Runtime("own", parameters or {})
    source = Source("model", Format.ONNX, files, inputs, has_batch=has_batch)
    texts = [configuration(ONNX, conversion, source, runtime, size) for size in ((32, 0) if has_batch else (0,))]
    return ProfileJob(write_model(tmp_path, conversion, texts[0]), "onnxruntime", texts, names, rows, has_batch)


def test_free_batches_up_to_the_limit(tmp_path):
    model = ProfiledModel(job(tmp_path, onnx_models.add_sub()))
    assert (model.loaded.max_batch, model.loaded.is_fixed) == (32, False)
    for batch in (1, 32):
        assert min(model.measure(batch, 0.0).durations_ns) > 0


@pytest.mark.parametrize("rows", [1, 4])
def test_fixed_batch_is_the_only_one(tmp_path, rows):
    model = ProfiledModel(job(tmp_path, onnx_models.add_sub((rows, 16))))
    assert (model.loaded.max_batch, model.loaded.is_fixed) == (rows, True)
    assert model.measure(rows, 0.0).durations_ns
    with pytest.raises(ModelError):
        model.measure(rows + 1, 0.0)


def test_model_without_batches_gets_samples_as_they_are(tmp_path):
    model = ProfiledModel(job(tmp_path, onnx_models.add_sub((16,)), has_batch=False))
    assert model.loaded.max_batch == 1
    assert model.measure(1, 0.0).durations_ns


def test_renamed_inputs_are_found_by_order(tmp_path):
    rows = [{"a": each["INPUT0"], "b": each["INPUT1"]} for each in ROWS]
    model = ProfiledModel(job(tmp_path, onnx_models.add_sub(), rows=rows, names=("a", "b")))
    assert model.measure(2, 0.0).durations_ns


def test_broken_file_is_an_error_of_the_load(tmp_path):
    with pytest.raises(InferError, match=r"model\.onnx cannot be loaded"):
        ProfiledModel(job(tmp_path, b"nothing"))


@pytest.mark.parametrize("values", [each for alternatives in tuning.options(ONNX) for each in alternatives], ids=str)
def test_options_of_tuning_are_accepted(tmp_path, values):
    assert ProfiledModel(job(tmp_path, onnx_models.add_sub(), parameters=values)).measure(2, 0.0).durations_ns


def test_samples_of_a_profile_have_one_shape():
    short, long = {"x": np.zeros(2)}, {"x": np.zeros(3)}
    assert [len(each["x"]) for each in profile_samples([short, long, short])] == [2, 2]


def test_no_samples_are_an_error():
    with pytest.raises(ValueError, match="no samples"):
        profile_samples([])
