"""Which execution providers, with which options, the accelerators of a configuration become."""

import onnxruntime
import pytest

from naiad.backend.onnx.accelerators import ACCELERATORS, choose_providers, gpu_unsupported_reason
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support import onnx_models
from support.backend_parts import load_onnx

CPU = ("CPUExecutionProvider", {})


@pytest.fixture
def everything(monkeypatch):
    """Let the installed onnxruntime have every provider."""
    names = [accelerator.provider for accelerator in ACCELERATORS.values()]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [*names, "CPUExecutionProvider"])


def _config(cpu=(), gpu=(), **parameters):
    config = ModelConfig(name="m")
    wanted = config.optimization.execution_accelerators
    for field, names in ((wanted.cpu_execution_accelerator, cpu), (wanted.gpu_execution_accelerator, gpu)):
        for name in names:
            field.add(name=name, parameters=parameters)
    return config


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("openvino", "OpenVINOExecutionProvider"),
        ("directml", "DmlExecutionProvider"),
        ("coreml", "CoreMLExecutionProvider"),
        ("migraphx", "MIGraphXExecutionProvider"),
        ("rocm", "ROCMExecutionProvider"),
        ("xnnpack", "XnnpackExecutionProvider"),
        ("dnnl", "DnnlExecutionProvider"),
        ("DmlExecutionProvider", "DmlExecutionProvider"),
    ],
)
def test_names_become_providers_with_options(name, provider):
    config = _config(cpu=[name], device_id="1")
    assert choose_providers(config, None) == [(provider, {"device_id": "1"}), CPU]


@pytest.mark.usefixtures("everything")
def test_cuda_follows_accelerators_of_gpu():
    config = _config(gpu=["tensorrt"], precision_mode="FP16", max_workspace_size_bytes="64")
    options = {"trt_fp16_enable": "1", "trt_max_workspace_size": "64", "device_id": "3"}
    cuda = ("CUDAExecutionProvider", {"device_id": "3"})
    assert choose_providers(config, 3) == [("TensorrtExecutionProvider", options), cuda, CPU]
    assert choose_providers(_config(gpu=["cuda"]), 3) == [cuda, CPU]
    assert choose_providers(config, None) == [CPU]


@pytest.mark.usefixtures("everything")
def test_cpu_accelerators_serve_gpu_instances_too():
    found = choose_providers(_config(cpu=["openvino"]), 0)
    assert [name for name, _ in found] == ["CUDAExecutionProvider", "OpenVINOExecutionProvider", CPU[0]]


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("fields", "gpu", "text"),
    [
        ({"cpu": ["cuda"]}, None, "instances of KIND_GPU: write it in gpu_execution_accelerator"),
        ({"gpu": ["openvino"]}, 0, "instances of any kind: write it in cpu_execution_accelerator"),
        ({"cpu": ["openvin"]}, None, "'openvin' is requested, expected one of cuda, tensorrt, openvino, directml"),
        (
            {"gpu": ["tensorrt"], "precision_mode": "FP8"},
            0,
            "precision mode 'FP8' is requested, expected one",
        ),
    ],
)
def test_wrong_accelerators_are_refused(fields, gpu, text):
    with pytest.raises(InferError, match=text):
        choose_providers(_config(**fields), gpu)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_error_names_package_of_missing_provider(monkeypatch, name):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    accelerator = ACCELERATORS[name]
    config = _config(gpu=[name]) if accelerator.is_gpu else _config(cpu=[name])
    with pytest.raises(InferError) as caught:
        choose_providers(config, 0 if accelerator.is_gpu else None)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert f"needs {accelerator.provider}" in caught.value.message
    assert f"install {accelerator.package} instead of onnxruntime" in caught.value.message


def test_reason_without_cuda_names_package(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert gpu_unsupported_reason().endswith("has no CUDAExecutionProvider: install onnxruntime-gpu instead")


@pytest.mark.usefixtures("everything")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_provider_that_does_not_start_fails(tmp_path):
    accelerators = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    fields = {"optimization": {"execution_accelerators": accelerators}}
    with pytest.raises(InferError, match="OpenVINOExecutionProvider could not be started; its libraries"):
        load_onnx(tmp_path, onnx_models.add_sub(), **fields)
