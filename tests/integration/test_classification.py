"""Classification with stock tritonclients, which request it with `class_count`."""

import numpy as np
import pytest

from support import onnx_models
from support.model_repository import write_model
from support.model_zoo import python_source
from support.server_process import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_TENSOR = '%s [ { name: "%s" data_type: TYPE_%s dims: [ -1 ] %s } ]\n'
LABELS = 'label_filename: "labels.txt"'


def config(backend, datatype="FP32", extra="", *, batching=True):
    head = f'backend: "{backend}"\nmax_batch_size: {8 if batching else 0}\n'
    return head + _TENSOR % ("input", "INPUT0", datatype, "") + _TENSOR % ("output", "OUTPUT0", datatype, extra)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    labels = {"labels.txt": "zero\n\ntwo words\n"}
    write_model(root, "labelled", config("identity", extra=LABELS), labels)
    model = onnx_models.identity(dims=("N", "M"))
    write_model(root, "onnx", config("onnxruntime", extra=LABELS), {"1/model.onnx": model, **labels})
    write_model(
        root,
        "negative",
        config("python", extra=LABELS),
        {"1/model.py": python_source({"OUTPUT0": "-INPUT0"}, inputs=["INPUT0"]), **labels},
    )
    write_model(root, "integers", config("identity", "INT32", batching=False))
    write_model(root, "half", config("identity", "FP16"))
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


def classes(transport, model, array, count, **more):
    output = transport.module.InferRequestedOutput("OUTPUT0", class_count=count, **more)
    result = transport.infer(model, {"INPUT0": array}, outputs=[output])
    assert result.spec("OUTPUT0")[0] == "BYTES"
    return np.char.decode(result["OUTPUT0"].astype("S"))


VALUES = np.array([[1.5, 3.25, 2], [0, -1, 7]], np.float32)


@pytest.mark.parametrize("model", ["labelled", "onnx"])
def test_classes_of_a_batch(transport, model):
    assert classes(transport, model, VALUES, 2).tolist() == [
        ["3.250000:1", "2.000000:2:two words"],
        ["7.000000:2:two words", "0.000000:0:zero"],
    ]


def test_python_model(transport):
    assert classes(transport, "negative", VALUES, 1).tolist() == [["-1.500000:0:zero"], ["1.000000:1"]]


def test_more_classes_than_there_are(transport):
    assert classes(transport, "labelled", VALUES, 99).shape == (2, 3)


def test_model_that_does_not_batch(transport):
    values = np.array([3, -1, 5, 5, 0], np.int32)
    assert classes(transport, "integers", values, 3).tolist() == ["5:2", "5:3", "3:0"]


def test_datatype_without_classes(transport):
    with transport.fails("INVALID_ARGUMENT") as caught:
        classes(transport, "half", VALUES.astype(np.float16), 1)
    assert caught.value.message() == "class result not available for output due to unsupported type 'FP16'"


@pytest.mark.parametrize("transport", ["http1", "http2"], indirect=True)
def test_classes_as_json(transport):
    found = classes(transport, "labelled", VALUES, 1, binary_data=False)
    assert found.tolist() == [["3.250000:1"], ["7.000000:2:two words"]]
