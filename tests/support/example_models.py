"""The models that Triton's client examples ask for, in the shapes that their documentation gives."""

from pathlib import Path

from onnx import TensorProto, helper

from naiad.core.datatype import DataType
from support import onnx_models
from support.ensemble_models import tensor as ensemble_tensor
from support.ensemble_models import write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model
from support.onnx_models import value

IMAGE_MODEL = "densenet_onnx"
IMAGE_LABELS = 1000

_SEQUENCE_TENSORS = """
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_FLAG = '{ name: "%s" control [ { kind: CONTROL_SEQUENCE_%s int32_false_true: [ 0, 1 ] } ] }'
_IDENTIFIER = '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }'
_STRING_IDENTIFIER = '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }'
_RUNNING_SUM = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()

        identifier = read("CORRID")
        total = read("INPUT") + (0 if read("START") else self.sums[identifier])
        self.sums[identifier] = total
        if read("END"):
            total += int(identifier)
            del self.sums[identifier]
        output = pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))
        return pb_utils.InferenceResponse([output])
"""
_MEAN_COLOUR = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy().ravel()
        # The head of a PPM is three lines; three bytes a pixel follow.
        pixels = [np.frombuffer(file.split(b"\\n", 3)[3], np.uint8).reshape(-1, 3) for file in files]
        colours = np.array([each.mean(axis=0) / 255 for each in pixels], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("COLOUR", colours)])
"""


def write_examples(repository: Path) -> None:
    """Write `simple` and its kin, `repeat_int32`, `custom_identity_int32`, and the models of images."""
    _write_simple(repository)
    _write_cast_simple(repository, "simple_int8", DataType.INT8, "INT8")
    _write_cast_simple(repository, "simple_string", DataType.BYTES, "STRING")
    write_identity(repository, "simple_identity", datatype="STRING")
    write_identity(repository, "custom_identity_int32", datatype="INT32")
    write_model(repository, "repeat_int32", 'backend: "repeat"\n')
    _write_image_model(repository)
    _write_image_ensemble(repository)


def _write_simple(repository: Path) -> None:
    config = add_sub_config("onnxruntime", datatype="INT32")
    write_model(repository, "simple", config, {"1/model.onnx": onnx_models.add_sub(datatype=DataType.INT32)})


def _write_cast_simple(repository: Path, name: str, datatype: DataType, config_name: str) -> None:
    """Sum and difference of 16 integers that travel as another datatype."""
    nodes = [
        helper.make_node("Cast", ["INPUT0"], ["a"], to=TensorProto.INT32),
        helper.make_node("Cast", ["INPUT1"], ["b"], to=TensorProto.INT32),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["difference"]),
    ]
    element_type = onnx_models.ELEMENT_TYPES[datatype]
    for source, output in (("sum", "OUTPUT0"), ("difference", "OUTPUT1")):
        nodes.append(helper.make_node("Cast", [source], [output], to=element_type))
    inputs, outputs = (
        [value(name, ("N", 16), datatype) for name in names]
        for names in (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"))
    )
    config = add_sub_config("onnxruntime", datatype=config_name)
    write_model(repository, name, config, {"1/model.onnx": onnx_models.model(nodes, inputs, outputs)})


def _write_image_model(repository: Path) -> None:
    """A classifier with the shapes of DenseNet: class k scores k times the mean brightness of the image."""
    scale = helper.make_tensor(
        "scale", TensorProto.FLOAT, [1, IMAGE_LABELS, 1, 1], [float(k) for k in range(IMAGE_LABELS)]
    )
    model = onnx_models.model(
        [
            helper.make_node("ReduceMean", ["data_0"], ["mean"], axes=[1, 2, 3], keepdims=1),
            helper.make_node("Mul", ["mean", "scale"], ["fc6_1"]),
        ],
        [value("data_0", (1, 3, 224, 224))],
        [value("fc6_1", (1, IMAGE_LABELS, 1, 1))],
        [scale],
    )
    config = f"""
      platform: "onnxruntime_onnx"
      input [ {{
        name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ]
        reshape {{ shape: [ 1, 3, 224, 224 ] }}
      }} ]
      output [ {{
        name: "fc6_1" data_type: TYPE_FP32 dims: [ {IMAGE_LABELS} ] reshape {{ shape: [ 1, {IMAGE_LABELS}, 1, 1 ] }}
        label_filename: "labels.txt"
      }} ]
    """
    labels = "".join(f"LABEL {k}\n" for k in range(IMAGE_LABELS))
    write_model(repository, IMAGE_MODEL, config, {"1/model.onnx": model, "labels.txt": labels})


def _write_image_ensemble(repository: Path) -> None:
    """The file of an image (PPM) to one of three classes, its strongest colour, by way of two models."""
    tensor = 'name: "%s" data_type: TYPE_%s dims: [ %d ]'
    config = f"""
      backend: "python" max_batch_size: 8
      input [ {{ {tensor % ("FILE", "STRING", 1)} }} ] output [ {{ {tensor % ("COLOUR", "FP32", 3)} }} ]
    """
    write_model(repository, "image_preprocess", config, {"1/model.py": _MEAN_COLOUR})
    classes = f'{tensor % ("CLASSES", "FP32", 3)} label_filename: "labels.txt"'
    config = f"""
      backend: "onnxruntime" max_batch_size: 8
      input [ {{ {tensor % ("COLOUR", "FP32", 3)} }} ] output [ {{ {classes} }} ]
    """
    model = onnx_models.model(
        [helper.make_node("Softmax", ["COLOUR"], ["CLASSES"])],
        [value("COLOUR", ("N", 3))],
        [value("CLASSES", ("N", 3))],
    )
    labels = "red\ngreen\nblue\n"
    write_model(repository, "image_colours", config, {"1/model.onnx": model, "labels.txt": labels})
    steps = [
        ("image_preprocess", {"FILE": "INPUT"}, {"COLOUR": "colour"}),
        ("image_colours", {"COLOUR": "colour"}, {"CLASSES": "CLASSES"}),
    ]
    inputs, outputs = [ensemble_tensor("INPUT", "STRING", "1")], [f"{{ {classes} }}"]
    path = write_ensemble(repository, "preprocess_inception_ensemble", inputs, outputs, steps)
    (path / "labels.txt").write_text(labels)


_PATIENT = "max_sequence_idle_microseconds: 60000000"
"""By default a sequence ends when a client on a busy machine sends nothing for a second."""


def write_sequence_examples(repository: Path) -> None:
    """Write `simple_sequence`, `simple_dyna_sequence` and `simple_string_dyna_sequence`.

    The first two answer INPUT, plus 1 at the start of a sequence; the second adds the sequence's number at its end.
    The third adds up the INPUTs of a sequence, whose id is a string, and at its end the number that the id spells.
    """
    _write_simple_sequence(repository)
    _write_dyna_sequence(repository)
    controls = ", ".join([*(_FLAG % (name, name) for name in ("START", "END", "READY")), _STRING_IDENTIFIER])
    config = f"""
      backend: "python" max_batch_size: 8 {_SEQUENCE_TENSORS}
      sequence_batching {{ {_PATIENT} oldest {{ max_candidate_sequences: 1024 }} control_input [ {controls} ] }}
    """
    write_model(repository, "simple_string_dyna_sequence", config, {"1/model.py": _RUNNING_SUM})


def _write_simple_sequence(repository: Path) -> None:
    controls = ", ".join([_FLAG % ("START", "START"), _FLAG % ("READY", "READY")])
    config = f"""
      backend: "onnxruntime" max_batch_size: 8 {_SEQUENCE_TENSORS}
      sequence_batching {{ {_PATIENT} control_input [ {controls} ] }}
    """
    start, ready = (value(name, ("N", 1), DataType.INT32) for name in ("START", "READY"))
    given, answer = (value(name, ("N", 1), DataType.INT32) for name in ("INPUT", "OUTPUT"))
    add_start = helper.make_node("Add", ["INPUT", "START"], ["started"])
    model = onnx_models.model(
        [add_start, helper.make_node("Mul", ["started", "READY"], ["OUTPUT"])], [given, start, ready], [answer]
    )
    write_model(repository, "simple_sequence", config, {"1/model.onnx": model})


def _write_dyna_sequence(repository: Path) -> None:
    start, ready, end = (value(name, ("N", 1), DataType.INT32) for name in ("START", "READY", "END"))
    given, answer = (value(name, ("N", 1), DataType.INT32) for name in ("INPUT", "OUTPUT"))
    add_start = helper.make_node("Add", ["INPUT", "START"], ["started"])
    controls = ", ".join([*(_FLAG % (name, name) for name in ("START", "END", "READY")), _IDENTIFIER])
    config = f"""
      backend: "onnxruntime" max_batch_size: 8 {_SEQUENCE_TENSORS}
      sequence_batching {{
        {_PATIENT}
        oldest {{ max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }}
        control_input [ {controls} ]
      }}
    """
    model = onnx_models.model(
        [
            add_start,
            helper.make_node("Cast", ["CORRID"], ["identifier"], to=TensorProto.INT32),
            helper.make_node("Mul", ["identifier", "END"], ["ended"]),
            helper.make_node("Add", ["started", "ended"], ["all"]),
            helper.make_node("Mul", ["all", "READY"], ["OUTPUT"]),
        ],
        [given, start, ready, end, value("CORRID", ("N", 1), DataType.UINT64)],
        [answer],
    )
    write_model(repository, "simple_dyna_sequence", config, {"1/model.onnx": model})
