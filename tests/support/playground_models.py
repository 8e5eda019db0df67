"""Models that a person tries in the playground: a picture classifier, texts, streams, boxes, tables, sequences."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from naiad.core.datatype import DataType
from support import onnx_models
from support.model_repository import write_model

HOSTILE_NAME = '"><img src=x onerror=document.title=1>'
"""Of a tensor: markup that would run if the page did not write it as text."""
LABELS = (
    "valley",
    "<b>mountain</b>",
    "<img src=x onerror=document.title=1>",
    "lake: blue",
    "sea",
    *map(str, range(15)),
)
PYTHON = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def answer(**arrays):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


class TritonPythonModel:
"""


def write_playground_models(repository: Path) -> None:
    """Write all models into a repository."""
    _write_onnx(repository)
    for name, (config, methods) in _PYTHON_MODELS.items():
        write_model(
            repository, name, config, {"1/model.py": PYTHON + textwrap.indent(textwrap.dedent(methods), "    ")}
        )


def classifier() -> bytes:
    """Return a model `image` of [N, 3, 32, 32] to `scores` of [N, 20] from the mean colors of its quarters."""
    weights = np.random.default_rng(1).normal(size=(12, len(LABELS))).astype(np.float32)
    return onnx_models.model(
        [
            helper.make_node("AveragePool", ["image"], ["means"], kernel_shape=[16, 16], strides=[16, 16]),
            helper.make_node("Flatten", ["means"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"]),
        ],
        [onnx_models.value("image", ("N", 3, 32, 32))],
        [onnx_models.value("scores", ("N", len(LABELS)))],
        [numpy_helper.from_array(weights, "weights")],
    )


def _write_onnx(repository: Path) -> None:
    labels = (
        f'output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ {len(LABELS)} ] label_filename: "labels.txt" }} ]'
    )
    files: Mapping[str, str | bytes] = {"1/model.onnx": classifier(), "labels.txt": "\n".join(LABELS)}
    write_model(repository, "scenes", f'backend: "onnxruntime"\nmax_batch_size: 8\n{labels}\n', files)
    price = _matrix("X", "price", np.array([[1.0], [10.0], [100.0]], np.float32))
    features = _parameter("feature_names", '["rooms", "kind", "area"]')
    features += _parameter("feature_categories", '{"kind": ["flat", "house"]}')
    write_model(
        repository, "houses", f'backend: "onnxruntime"\nmax_batch_size: 16\n{features}', {"1/model.onnx": price}
    )
    total = onnx_models.add_sub(("N", 3), DataType.INT64)
    write_model(repository, "sums", 'backend: "onnxruntime"\nmax_batch_size: 4\n', {"1/model.onnx": total})
    half = onnx_models.identity(DataType.FP16, ("N", 4))
    write_model(repository, "halves", 'backend: "onnxruntime"\nmax_batch_size: 4\n', {"1/model.onnx": half})


def _matrix(given: str, answered: str, weights: np.ndarray) -> bytes:
    rows, columns = weights.shape
    return onnx_models.model(
        [helper.make_node("MatMul", [given, "weights"], [answered])],
        [onnx_models.value(given, ("N", rows))],
        [onnx_models.value(answered, ("N", columns))],
        [numpy_helper.from_array(weights, "weights")],
    )


def _parameter(key: str, text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f'parameters {{ key: "{key}" value {{ string_value: "{escaped}" }} }}\n'


def _tensors(kind: str, tensors: Sequence[tuple[str, str, str]]) -> str:
    parts = []
    for name, datatype, dims in tensors:
        escaped = name.replace('"', '\\"')
        parts.append(f'{{ name: "{escaped}" data_type: TYPE_{datatype} dims: [ {dims} ] }}')
    return f"{kind} [ {', '.join(parts)} ]\n"


def _python(inputs: Sequence[tuple[str, str, str]], outputs: Sequence[tuple[str, str, str]], more: str = "") -> str:
    return f'backend: "python"\n{more}\n' + _tensors("input", inputs) + _tensors("output", outputs)


_PYTHON_MODELS = {
    "words": (
        _python(
            [("text_input", "STRING", "1")],
            [("text_output", "STRING", "1")],
            "model_transaction_policy { decoupled: true }",
        ),
        """
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for word in value(request, "text_input").item().split():
                    if sender.is_cancelled():
                        break
                    sender.send(answer(text_output=np.array([word], np.object_)))
                    time.sleep(0.1)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
    ),
    "shout": (
        _python(
            [(HOSTILE_NAME, "STRING", "1")],
            [("ANSWER", "STRING", "1"), ("LENGTH", "INT64", "1")],
            'max_batch_size: 4\nmodel_warmup [ { name: "nothing" batch_size: 1 inputs { key: "'
            + HOSTILE_NAME.replace('"', '\\"')
            + '" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } } ]',
        ),
        f"""
        def execute(self, requests):
            responses = []
            for request in requests:
                text = value(request, {HOSTILE_NAME!r})
                if text.item() == b"fail":
                    error = pb_utils.TritonError("<script>document.title=1</script> is no text")
                    responses.append(pb_utils.InferenceResponse(error=error))
                    continue
                shouted = np.array([[text.item().upper() + b"<script>document.title=1</script>"]], np.object_)
                length = np.array([[len(text.item()) + 9007199254740993]], np.int64)
                responses.append(answer(ANSWER=shouted, LENGTH=length))
            return responses
        """,
    ),
    "detector": (
        _python(
            [("IMAGE", "UINT8", "-1, -1, 3")],
            [
                ("BOXES", "FP32", "-1, 4"),
                ("SCORES", "FP32", "-1"),
                ("NAMES", "STRING", "-1"),
                ("MASK", "FP32", "-1, -1"),
                ("NEGATIVE", "UINT8", "-1, -1, 3"),
            ],
        ),
        """
        def execute(self, requests):
            return [self.found(value(request, "IMAGE")) for request in requests]

        def found(self, image):
            height, width, _ = image.shape
            y, x = np.mgrid[:height, :width]
            mask = np.exp(-(((x - width * 0.74) / 40) ** 2 + ((y - height * 0.23) / 40) ** 2)).astype(np.float32)
            boxes = [[0.65, 0.1, 0.83, 0.36], [0.02, 0.45, 0.4, 0.7], [0, 0, 0.03, 0.04]]
            return answer(
                BOXES=np.array(boxes, np.float32) * np.array([width, height] * 2, np.float32),
                SCORES=np.array([0.97, 0.64, 0.1], np.float32),
                NAMES=np.array([b"sun", b"<i>hill</i>", b"nothing"], np.object_),
                MASK=mask,
                NEGATIVE=255 - image,
            )
        """,
    ),
    "sound": (
        _python([("AUDIO", "FP32", "-1")], [("SECONDS", "FP32", "1"), ("LOUDEST", "FP32", "1")]),
        """
        def execute(self, requests):
            heard = [value(request, "AUDIO") for request in requests]
            return [
                answer(
                    SECONDS=np.array([len(samples) / 16000], np.float32),
                    LOUDEST=np.abs(samples).max(initial=0, keepdims=True).astype(np.float32),
                )
                for samples in heard
            ]
        """,
    ),
    "zeros": (
        _python([("COUNT", "INT32", "1")], [("VALUES", "FP32", "-1")]),
        """
        def execute(self, requests):
            return [self.made(int(value(request, "COUNT").item())) for request in requests]

        def made(self, count):
            values = np.zeros(count, np.float32)
            values[-1] = 7
            return answer(VALUES=values)
        """,
    ),
    "counter": (
        _python(
            [("VALUE", "INT32", "1")],
            [("TOTAL", "INT32", "1")],
            # By default a sequence ends when a busy browser sends nothing for a second. The next page waits for that.
            "max_batch_size: 1\nsequence_batching { max_sequence_idle_microseconds: 20000000 "
            'control_input [ { name: "START" control [ '
            "{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ] }",
        ),
        """
        total = 0

        def execute(self, requests):
            responses = []
            for request in requests:
                if value(request, "START").item():
                    self.total = 0
                self.total += int(value(request, "VALUE").item())
                responses.append(answer(TOTAL=np.array([[self.total]], np.int32)))
            return responses
        """,
    ),
}
"""Configuration and methods by name."""
