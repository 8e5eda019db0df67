"""A text classifier of PyTorch, a small transformer with random weights, in the formats that naiad serves."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime.quantization as quantization
import openvino
import torch

from naiad.core.tensor import Array
from naiad.tools.analyze.variants.dimensions import THREADS

TOKENS, VOCABULARY = 32, 8000
_WIDTH, _HEADS, _LAYERS, _CLASSES = 256, 4, 4, 8
CONFIG = """backend: "{backend}" max_batch_size: {largest}
input [ {{ name: "ids" data_type: TYPE_INT64 dims: [ {tokens} ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "{threads}" value {{ string_value: "1" }} }}
"""
FORMATS = {
    "torchscript": ("pytorch", "model.pt", "OUTPUT__0"),
    "onnx": ("onnxruntime", "model.onnx", "scores"),
    "openvino": ("openvino", "model.xml", "scores"),
    "onnx_int8": ("onnxruntime", "model.onnx", "scores"),
}
"""Name of the model to backend, file and output."""
_LARGEST_BATCH = 32


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.joined = torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.merged = torch.nn.Linear(_WIDTH, _WIDTH)
        self.wide = torch.nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow = torch.nn.Linear(4 * _WIDTH, _WIDTH)
        self.before, self.after = torch.nn.LayerNorm(_WIDTH), torch.nn.LayerNorm(_WIDTH)

    def forward(self, values: Any) -> Any:
        parts = self.joined(self.before(values)).reshape(-1, TOKENS, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / (_WIDTH // _HEADS) ** 0.5, dim=-1)
        values = values + self.merged((weights @ value).transpose(1, 2).reshape(-1, TOKENS, _WIDTH))
        return values + self.narrow(torch.nn.functional.gelu(self.wide(self.after(values))))


class TextClassifier(torch.nn.Module):  # type: ignore[misc]
    """Token ids [rows, TOKENS] to scores [rows, 8]."""

    def __init__(self) -> None:
        """Draw the weights, the same each time."""
        torch.manual_seed(0)
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, _WIDTH)
        self.layers = torch.nn.Sequential(*(_Layer() for _ in range(_LAYERS)))
        self.scores = torch.nn.Linear(_WIDTH, _CLASSES)

    def forward(self, ids: Any) -> Any:
        """Return the scores."""
        return self.scores(self.layers(self.embedding(ids)).mean(1))


def token_ids(rows: int) -> Array:
    """Return random tokens, the same each time."""
    return np.random.default_rng(0).integers(0, VOCABULARY, (rows, TOKENS))


def write_formats(repository: Path) -> float:
    """Write the classifier in all formats; return the largest relative difference of a score in int8."""
    module, ids = TextClassifier().eval(), torch.tensor(token_ids(8))
    paths = {}
    for name, (backend, file, output) in FORMATS.items():
        paths[name] = repository / name / "1" / file
        paths[name].parent.mkdir(parents=True)
        threads = THREADS[backend]
        config = CONFIG.format(
            backend=backend, largest=_LARGEST_BATCH, tokens=TOKENS, output=output, classes=_CLASSES, threads=threads
        )
        (repository / name / "config.pbtxt").write_text(config)
    with torch.no_grad():
        torch.jit.trace(module, ids).save(str(paths["torchscript"]))
        torch.onnx.export(
            module, (ids,), paths["onnx"], input_names=["ids"], output_names=["scores"], opset_version=17,
            dynamic_axes={"ids": {0: "rows"}, "scores": {0: "rows"}}, dynamo=False,
        )  # fmt: skip
        expected = module(ids).numpy()
    openvino.save_model(openvino.convert_model(paths["onnx"]), paths["openvino"], compress_to_fp16=False)
    quantization.quantize_dynamic(paths["onnx"], paths["onnx_int8"])
    (scores,) = quantization.calibrate.onnxruntime.InferenceSession(paths["onnx_int8"]).run(
        None, {"ids": ids.numpy()}
    )
    return float(np.abs(scores - expected).max() / np.abs(expected).max())
