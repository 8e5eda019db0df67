"""ZipMap nodes of classifiers are replaced, and other models stay as they are."""

import numpy as np
import onnx
import onnxruntime
import pytest

from naiad.backend.onnx.protobuf_fields import CutOffError, bytes_field, read_fields, varint_field
from naiad.backend.onnx.zip_map import replace_zip_maps
from support import onnx_models
from support.backend_parts import infer, load_onnx, new_instance

ROWS = np.array([[1, 5, 2], [9, 0, 1]], np.float32)


@pytest.mark.parametrize("labels", [("cat", "dog", "eel"), (7, -1, 300)])
@pytest.mark.parametrize("opset", [onnx_models.OPSET, None])
def test_dictionaries_become_a_matrix(labels, opset):
    original = onnx_models.classifier(labels, opset=opset)
    plain = replace_zip_maps(original)
    onnx.checker.check_model(plain.data)
    assert plain.labels == {"output_probability": [str(label) for label in labels]}
    before = onnxruntime.InferenceSession(original).run(None, {"X": ROWS})
    after = onnxruntime.InferenceSession(plain.data).run(None, {"X": ROWS})
    assert after[0].tolist() == before[0].tolist() == [labels[1], labels[0]]
    assert after[1].dtype == np.float32
    assert after[1].tolist() == [[row[label] for label in labels] for row in before[1]]


def test_model_without_zip_map_keeps_its_fields():
    original = onnx_models.add_sub()
    plain = replace_zip_maps(original)
    assert plain.labels == {}
    assert onnx.load_from_string(plain.data) == onnx.load_from_string(original)


def test_backend_serves_probabilities_with_labels(tmp_path):
    model, config = load_onnx(tmp_path, onnx_models.classifier())
    assert model.labels == {"output_probability": ["cat", "dog", "eel"]}
    outputs = {output.name: (output.data_type, list(output.dims)) for output in config.output}
    assert outputs == {"output_label": (13, [1]), "output_probability": (11, [3])}
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")


def test_configuration_may_name_the_matrix(tmp_path):
    model, _ = load_onnx(
        tmp_path,
        onnx_models.classifier(),
        max_batch_size=8,
        input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [3]}],
        output=[{"name": "output_probability", "data_type": "TYPE_FP32", "dims": [3]}],
    )
    assert infer(new_instance(model), {"X": ROWS})["output_probability"].shape == (2, 3)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x0d\x01", b"\x80" * 9])
def test_message_that_is_cut_off(data):
    with pytest.raises(CutOffError):
        list(read_fields(data))


@pytest.mark.parametrize("data", [b"\x03ab", b"\x00\x01", b"\xff" * 20])
def test_data_that_is_no_message(data):
    with pytest.raises(ValueError, match=r"unknown|number") as caught:
        list(read_fields(data))
    assert type(caught.value) is ValueError


def test_written_fields_are_read_back():
    data = varint_field(300, 1 << 40) + bytes_field(2, b"x" * 200)
    first, second = read_fields(data)
    assert (first.number, second.number) == (300, 2)
    assert data[second.value_start : second.end] == b"x" * 200
