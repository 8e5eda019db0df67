"""Classification with stock tritonclients, which ask for it with `class_count`."""

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.model_repository import write_model
from support.server_process import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_TENSOR = '%s [ { name: "%s" data_type: TYPE_%s dims: [ -1 ] %s } ]\n'
LABELS = 'label_filename: "labels.txt"'
PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", -tensor)]) for tensor in tensors]
"""


def config(backend, datatype="FP32", extra="", *, batching=True):
    head = f'backend: "{backend}"\nmax_batch_size: {8 if batching else 0}\n'
    return head + _TENSOR % ("input", "INPUT0", datatype, "") + _TENSOR % ("output", "OUTPUT0", datatype, extra)


@pytest.fixture(scope="module")
def class_server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    labels = {"labels.txt": "zero\n\ntwo words\n"}
    write_model(root, "labelled", config("identity", extra=LABELS), labels)
    model = onnx_models.identity(dims=("N", "M"))
    write_model(root, "onnx", config("onnxruntime", extra=LABELS), {"1/model.onnx": model, **labels})
    write_model(root, "negative", config("python", extra=LABELS), {"1/model.py": PYTHON, **labels})
    write_model(root, "integers", config("identity", "INT32", batching=False))
    write_model(root, "half", config("identity", "FP16"))
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


@pytest.fixture(params=["http", "http-json", "grpc"])
def ask(request, class_server):
    """A function `(model, array, count, datatype="FP32")` that returns the classes."""
    is_http = request.param != "grpc"
    module = httpclient if is_http else grpcclient
    client = module.InferenceServerClient(class_server.http_url if is_http else class_server.grpc_url)

    def infer(model, array, count, datatype="FP32"):
        tensor = module.InferInput("INPUT0", list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        named = {"binary_data": request.param == "http"} if is_http else {}
        output = module.InferRequestedOutput("OUTPUT0", class_count=count, **named)
        result = client.infer(model, [tensor], outputs=[output])
        found = result.get_output("OUTPUT0")
        assert (found["datatype"] if is_http else found.datatype) == "BYTES"
        classes = result.as_numpy("OUTPUT0")
        return np.array([getattr(text, "decode", lambda text=text: text)() for text in classes.ravel()]).reshape(
            classes.shape
        )

    yield infer
    client.close()


VALUES = np.array([[1.5, 3.25, 2], [0, -1, 7]], np.float32)


@pytest.mark.parametrize("model", ["labelled", "onnx"])
def test_classes_of_a_batch(ask, model):
    assert ask(model, VALUES, 2).tolist() == [
        ["3.250000:1", "2.000000:2:two words"],
        ["7.000000:2:two words", "0.000000:0:zero"],
    ]


def test_python_model(ask):
    assert ask("negative", VALUES, 1).tolist() == [["-1.500000:0:zero"], ["1.000000:1"]]


def test_more_classes_than_there_are(ask):
    assert ask("labelled", VALUES, 99).shape == (2, 3)


def test_model_that_does_not_batch(ask):
    values = np.array([3, -1, 5, 5, 0], np.int32)
    assert ask("integers", values, 3, "INT32").tolist() == ["5:2", "5:3", "3:0"]


def test_datatype_without_classes(ask):
    with pytest.raises(InferenceServerException) as caught:
        ask("half", VALUES.astype(np.float16), 1, "FP16")
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    expected = "class result not available for output due to unsupported type 'FP16'"
    assert caught.value.message() == expected
