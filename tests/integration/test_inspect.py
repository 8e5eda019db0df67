"""`naiad inspect` on formats whose description is readable without their frameworks."""

import collections
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

from naiad.backend.onnx.protobuf_fields import bytes_field, varint_field
from naiad.repository.stores.bare_files import BARE_MODELS
from support import onnx_models

SOURCE = Path(__file__).resolve().parents[2] / "src"
IR = """<?xml version="1.0"?>
<net name="digits" version="11"><layers>
<layer id="0" name="IMAGE" type="Parameter"><data shape="?,64" element_type="f32"/></layer>
<layer id="1" name="w" type="Const"><data element_type="f32" shape="64, 10"/></layer>
<layer id="2" name="m" type="MatMul"/><layer id="3" name="r" type="Result"/>
</layers><rt_info><Runtime_version value="2026.4.1"/></rt_info></net>
"""


def inspect(*paths: Path) -> tuple[int, list[dict]]:
    """Run the command with --json; return its status and findings."""
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "inspect", "--json", *map(str, paths)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def archive(path: Path, **members: object) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in members.items():
            opened.writestr(name.replace("__", "/").replace("_dot_", "."), json.dumps(content))
    return path


def saved_model(directory: Path) -> Path:
    directory.mkdir()
    shape = bytes_field(3, bytes_field(2, varint_field(1, 64)))
    info = bytes_field(2, bytes_field(1, b"x:0") + varint_field(2, 1) + shape)
    tensors = [bytes_field(number, bytes_field(1, name) + info) for number, name in ((1, b"x"), (2, b"y"))]
    signature = bytes_field(5, bytes_field(1, b"serving_default") + bytes_field(2, b"".join(tensors)))
    meta = bytes_field(1, bytes_field(4, b"serve") + bytes_field(5, b"2.21.0"))
    graph = bytes_field(2, bytes_field(1, bytes_field(2, b"MatMul")))
    (directory / "saved_model.pb").write_bytes(varint_field(1, 1) + bytes_field(2, meta + graph + signature))
    return directory


def test_onnx_file_is_described_as_it_is_served(tmp_path):
    (tmp_path / "net.onnx").write_bytes(onnx_models.identity())
    status, (found,) = inspect(tmp_path / "net.onnx")
    assert status == 0
    assert found["format"] == "ONNX model"
    assert found["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}]
    assert found["operators"] == {"Identity": 1}
    assert found["batching"] == f"yes, max_batch_size {BARE_MODELS.max_batch_size}"
    assert found["backend"] == "onnxruntime"


def test_directory_of_a_model_is_its_newest_file(tmp_path):
    for version in ("2", "10"):
        (tmp_path / "models/net" / version).mkdir(parents=True)
        (tmp_path / "models/net" / version / "model.onnx").write_bytes(onnx_models.identity())
    status, (found, repository) = inspect(tmp_path / "models/net", tmp_path / "models")
    assert status == 1
    assert found["path"].endswith("models/net/10/model.onnx")
    assert found["served"] == f"yes: naiad serve {tmp_path}/models/net"
    assert repository["problems"] == [f"it is no model; to check a repository: naiad check {tmp_path}/models"]


def test_truncated_onnx_file_is_a_problem(tmp_path):
    (tmp_path / "net.onnx").write_bytes(onnx_models.identity()[:-3])
    status, (found,) = inspect(tmp_path / "net.onnx")
    assert status == 1
    assert "is cut off" in found["problems"][0]


def test_files_without_their_frameworks_are_described(tmp_path):
    (tmp_path / "net.xml").write_text(IR)
    (tmp_path / "net.bin").write_bytes(bytes(2560))
    keras = archive(
        tmp_path / "net.keras",
        metadata_dot_json={"keras_version": "3.15.1"},
        config_dot_json={"class_name": "Sequential", "config": {"layers": [{"class_name": "Dense"}] * 2}},
        model_dot_weights_dot_h5=0,
    )
    forest = {"learner": {"learner_model_param": {"num_feature": "4"}, "objective": {"name": "reg:squarederror"}}}
    (tmp_path / "forest.json").write_text(json.dumps({**forest, "version": [3, 2, 0]}))
    saved = saved_model(tmp_path / "saved")
    _, found = inspect(tmp_path / "net.xml", keras, tmp_path / "forest.json", saved)
    openvino, layers, trees, tensorflow = found
    assert (openvino["producer"], openvino["parameter_count"]) == ("OpenVINO 2026.4.1", 640)
    assert openvino["inputs"] == [{"name": "IMAGE", "datatype": "FP32", "shape": [-1, 64]}]
    assert (layers["producer"], layers["operators"]) == ("Keras 3.15.1", {"Dense": 2})
    assert trees["details"]["objective"] == "reg:squarederror"
    assert (tensorflow["producer"], tensorflow["operators"]) == ("TensorFlow 2.21.0", {"MatMul": 1})
    assert tensorflow["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [64]}]
    assert [each["backend"] for each in found] == ["openvino", "tensorflow", "trees", "tensorflow"]


def test_weights_that_are_missing_are_a_problem(tmp_path):
    (tmp_path / "net.xml").write_text(IR)
    status, (found,) = inspect(tmp_path / "net.xml")
    assert status == 1
    assert "net.bin, the weights of the model, is not beside the file" in found["problems"][0]


class Attack:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_pickle_is_listed_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps([collections.OrderedDict(), np.float32, np.float64, Attack()]))
    status, (found,) = inspect(tmp_path / "model.pkl")
    assert status == 1
    assert not (tmp_path / "executed").exists()
    assert {"collections.OrderedDict", "numpy.float32", "numpy.float64", "posix.system"} == found["operators"].keys()
    assert "it names posix.system" in found["problems"][0]


def test_unknown_and_missing_files(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    status, (found,) = inspect(tmp_path / "notes.txt")
    assert (status, found["format"]) == (1, "unknown")
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "inspect", str(tmp_path / "none.onnx")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "no such file or directory" in done.stderr
