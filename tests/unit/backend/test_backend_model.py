"""`naiad.testing.BackendModel`: a model of a backend in a plain test."""

import numpy as np
import pytest

from naiad.backend.identity import IdentityBackend
from naiad.backend.onnx.backend import OnnxRuntimeBackend
from naiad.backend.repeat import RepeatBackend
from naiad.core.errors import InferError
from naiad.testing import BackendModel, ModelError
from support import onnx_models
from support.model_repository import write_identity, write_model


def test_the_configuration_is_completed_from_the_model(tmp_path):
    path = write_model(tmp_path, "add", "", {"1/model.onnx": onnx_models.add_sub()})
    with BackendModel(OnnxRuntimeBackend(), path, backend_config={"default-max-batch-size": "9"}) as model:
        assert (model.config.backend, model.config.max_batch_size) == ("onnxruntime", 9)
        a, b = np.ones((2, 16), np.float32), np.full((2, 16), 3, np.float32)
        np.testing.assert_array_equal(model.infer({"INPUT0": a, "INPUT1": b})["OUTPUT0"], a + b)
        assert list(model.infer({"INPUT0": a, "INPUT1": b}, outputs=["OUTPUT1"])) == ["OUTPUT1"]


def test_strings_are_sent_as_bytes(tmp_path):
    with BackendModel(IdentityBackend(), write_identity(tmp_path, datatype="STRING")) as model:
        for kind in (np.str_, object, np.dtypes.StringDType()):
            assert model.infer({"INPUT0": np.array([["a", "ü"]], kind)})["OUTPUT0"].tolist() == [[b"a", "ü".encode()]]
        with pytest.raises(InferError, match=r"dtype datetime64\[D\].*astype"):
            model.infer({"INPUT0": np.array([["2030-01-01"]], "datetime64[D]")})


def test_the_newest_version_is_loaded(tmp_path):
    path = write_model(tmp_path, "m", "", {"2/model.onnx": onnx_models.add_sub(), "10/model.onnx": b"broken"})
    with pytest.raises(InferError, match=r"m.*10.*model\.onnx"):
        BackendModel(OnnxRuntimeBackend(), path)
    BackendModel(OnnxRuntimeBackend(), path, version=2).close()


def test_errors_of_the_model_are_raised(tmp_path):
    path = write_model(tmp_path, "add", "", {"1/model.onnx": onnx_models.add_sub()})
    wrong = {"INPUT0": np.ones((1, 16), np.float32), "INPUT1": np.ones((1, 3), np.float32)}
    with BackendModel(OnnxRuntimeBackend(), path) as model:
        with pytest.raises(ModelError):
            model.infer(wrong)
        assert isinstance(model.infer_batch([wrong])[0], ModelError)


def test_mistakes_of_the_configuration_are_raised(tmp_path):
    path = write_identity(tmp_path)
    with pytest.raises(InferError, match="instance_grup"):
        BackendModel(IdentityBackend(), path, config='backend: "identity" instance_grup { }')
    with pytest.raises(InferError, match="is decoupled"):
        BackendModel(RepeatBackend(), path, config='backend: "repeat"')
    with pytest.raises(InferError, match="has no version directory"):
        BackendModel(IdentityBackend(), tmp_path)
