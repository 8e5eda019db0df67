"""The networks of the measurements, as sources of `model.py`, so that the server and a bare loop run the same code.

Weights are random with a fixed seed: both sides make the same ones, and no file of weights travels.
"""

import importlib.util
from pathlib import Path
from typing import Any

RESNET = """
import torch

torch.set_float32_matmul_precision("{matmul}")
torch.backends.cudnn.allow_tf32 = "{matmul}" == "high"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = network().to(torch.{dtype})

    def forward(self, image):
        found = self.net(image.to(torch.{dtype}))
        return getattr(found, "logits", found).float()


def network():
    if {tiny}:
        from transformers import ResNetConfig, ResNetForImageClassification

        sizes = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
        return ResNetForImageClassification(ResNetConfig(**sizes))
    import torchvision

    return torchvision.models.resnet50(weights=None)
"""

BERT = """
import torch
from transformers import BertConfig, BertModel

torch.set_float32_matmul_precision("{matmul}")
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=512)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bert = BertModel(BertConfig(**(TINY if {tiny} else {{}})), add_pooling_layer=False).to(torch.{dtype})

    def forward(self, input_ids):
        return self.bert(input_ids=input_ids.long()).last_hidden_state[:, 0].float()
"""

TORCH_PY = """
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        kind, number = args["model_instance_kind"], args["model_instance_device_id"]
        self.device = f"cuda:{number}" if kind == "GPU" else "cpu"
        torch.manual_seed(0)
        self.weights = torch.randn(64, 64).to(self.device)

    def execute(self, requests):
        responses = []
        for request in requests:
            x = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()).to(self.device)
            y = torch.relu(x @ self.weights)
            responses.append(pb_utils.InferenceResponse([RESULT]))
        return responses
"""
"""RESULT is how the tensor becomes an output."""

CUPY_PY = """
import cupy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        cupy.cuda.Device(int(args["model_instance_device_id"])).use()

    def execute(self, requests):
        responses = []
        for request in requests:
            x = cupy.asarray(pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", cupy.sqrt(x * x + 1))]))
        return responses
"""


def resnet(*, tiny: bool, dtype: str = "float32", matmul: str = "highest") -> str:
    """Return the source of a ResNet-50: `image` FP32 [3, 224, 224] to `OUTPUT__0`."""
    return RESNET.format(tiny=tiny, dtype=dtype, matmul=matmul)


def bert(*, tiny: bool, dtype: str = "float32", matmul: str = "highest") -> str:
    """Return the source of a BERT-base: `input_ids` INT64 [-1] to `OUTPUT__0`, the vector of the first token."""
    return BERT.format(tiny=tiny, dtype=dtype, matmul=matmul)


def module_of(source: str, folder: Path, name: str) -> Any:
    """Return the module that the source makes, ready to run."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"bench_gpu_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.Model().eval()
