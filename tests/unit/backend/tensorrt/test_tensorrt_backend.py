"""Engines from file to response over a fake of TensorRT and one of CUDA, whose memory is real."""

import sys

import numpy as np
import pytest

from naiad.backend.api import InstanceSpec
from naiad.backend.cuda import cuda
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support import fake_tensorrt
from support.backend_parts import (
    execute,
    infer,
    load_model,
    make_context,
    make_request,
    output_arrays,
)
from support.tensorrt_engines import allocation_count, build_cudart, engine, tensor, write_engine


@pytest.fixture(scope="module")
def cudart(tmp_path_factory):
    return build_cudart(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def backend(cudart, monkeypatch):
    """A backend on a machine with two GPUs."""
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setattr(cuda, "_NAMES", (str(cudart),))
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")
    from naiad.backend.tensorrt.backend import TensorRtBackend

    count = allocation_count(cudart)
    yield TensorRtBackend()
    assert allocation_count(cudart) == count
    for name in [name for name in sys.modules if name.startswith("naiad.backend.tensorrt.")]:
        del sys.modules[name]


def config_of(*profiles, gpus=(0,), **fields):
    config = ModelConfig(name="m", backend="tensorrt", **fields)
    config.instance_group.add(name="m_0", kind="KIND_GPU", count=1, gpus=gpus, profile=profiles)
    return config


def load(backend, directory, content, config=None, **settings):
    write_engine(directory, content)
    context = make_context(config or config_of(), directory, backend_config=settings)
    return load_model(backend, context)


@pytest.fixture
def new_instance():
    """Create instances that are closed at the end."""
    made = []

    def create(model, device_id=0, profiles=()):
        spec = InstanceSpec(f"m_0_0_gpu{device_id}", 0, "KIND_GPU", device_id, "", profiles)
        made.append(model.create_instance(spec))
        return made[-1]

    yield create
    for instance in made:
        instance.close()


@pytest.fixture
def refusal(backend, tmp_path):
    def refuse(content, config=None, **settings):
        with pytest.raises(InferError) as caught:
            load(backend, tmp_path, content, config, **settings)
        return caught.value

    return refuse


def rows(count, dtype=np.float32):
    return np.arange(4 * count, dtype=dtype).reshape(count, 4)


def test_configuration_follows_engine(backend, tmp_path):
    _, config = load(backend, tmp_path, engine((1, 8)))
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching")
    assert [(t.name, t.data_type, list(t.dims)) for t in (*config.input, *config.output)] == [
        ("IN", 11, [4]),
        ("OUT", 11, [4]),
    ]


def test_batches_are_computed_on_each_gpu(backend, tmp_path, new_instance):
    model, _ = load(backend, tmp_path, engine((1, 8)), config_of(gpus=[0, 1]))
    for device_id in (0, 1):
        instance = new_instance(model, device_id)
        requests = [make_request({"IN": rows(count)}, rows=count) for count in (1, 3)]
        for request, response in zip(requests, execute(instance, requests), strict=True):
            assert (output_arrays(response)["OUT"] == 2 * rows(request.batch_size)).all()
        assert (infer(instance, {"IN": rows(8)})["OUT"] == 2 * rows(8)).all()


def test_results_stay_after_next_run(backend, tmp_path, new_instance):
    instance = new_instance(load(backend, tmp_path, engine())[0])
    first = infer(instance, {"IN": rows(2)})["OUT"]
    infer(instance, {"IN": rows(2) + 7})
    assert (first == 2 * rows(2)).all()


def test_profiles_alternate_with_shapes(backend, tmp_path, new_instance):
    model, config = load(backend, tmp_path, engine((1, 2), (1, 8), (4, 16)), config_of("0", "2"))
    assert config.max_batch_size == 16
    instance = new_instance(model, profiles=("0", "2"))
    for count in (1, 16, 2, 4):
        assert (infer(instance, {"IN": rows(count)})["OUT"] == 2 * rows(count)).all()
    with pytest.raises(InferError) as caught:
        infer(instance, {"IN": rows(3)})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert "input 'IN' of shape [3,4] fits no optimization profile" in caught.value.message
    assert "profile 0 takes [1,4] to [2,4], profile 2 takes [4,4] to [16,4]" in caught.value.message
    assert 'add profile: [ "1" ] to the instance group' in caught.value.message


def test_batch_outside_profiles_runs_one_by_one(backend, tmp_path, new_instance):
    model, _ = load(backend, tmp_path, engine((1, 2)))
    instance = new_instance(model)
    requests = [make_request({"IN": rows(count)}, rows=count) for count in (2, 1)]
    answers = [output_arrays(response)["OUT"] for response in execute(instance, requests)]
    assert [answer.shape for answer in answers] == [(2, 4), (1, 4)]


@pytest.mark.parametrize("policy", ["BLOCKING", "DEVICE_BLOCKING"])
def test_shape_tensors_are_read_on_host(backend, tmp_path, new_instance, policy):
    tensors = [
        tensor("IN", "INPUT", 2, 4),
        tensor("SIZE", "INPUT", 2, dtype="INT32", location="HOST"),
        tensor("SCALE", "INPUT", dtype="HALF"),
        tensor("OUT", "OUTPUT", 2, 4, like="IN"),
        tensor("COPY", "OUTPUT", like="SCALE", dtype="HALF"),
    ]
    model, config = load(backend, tmp_path, {"tensors": tensors}, **{"execution-policy": policy})
    assert config.max_batch_size == 0
    inputs = {"IN": rows(2), "SIZE": np.array([5, 6], np.int32), "SCALE": np.array([3], np.float16)}
    found = infer(new_instance(model), inputs)
    assert (found["OUT"] == rows(2) + 5).all()
    assert found["COPY"] == [8]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; copy it again"),
        (b"ptrt", "magicTag == rt::kPLAN_MAGIC_TAG failed.; it is no engine, is truncated, or is of another major"),
        (engine(version="10.4.0"), r"got 10.4.0, please rebuild.; build it again with TensorRT 10.13.0 on this"),
        (engine(has_host_code=True), "start the server with --backend-config=tensorrt,version-compatible=true"),
        (engine(has_implicit_batch=True), "has an implicit batch dimension, which TensorRT 10 has removed"),
        (
            {"tensors": [tensor("IN", "INPUT", 4, format="CHW4")]},
            "tensor 'IN' in the format CHW4; build it with linear",
        ),
        ({"tensors": [tensor("IN", "INPUT", 4, dtype="FP8")]}, "input 'IN' of the TensorRT model is a FP8"),
    ],
)
def test_files_that_cannot_be_served(refusal, tmp_path, content, words):
    message = refusal(content).message
    assert words in message
    assert str(tmp_path / "1" / "model.plan") in message or "FP8" in message


def test_trusted_code_is_allowed_by_server_only(backend, refusal, tmp_path):
    parameters = {"version-compatible": {"string_value": "true"}}
    assert "version-compatible=true" in refusal(engine(has_host_code=True), config_of(parameters=parameters)).message
    load(backend, tmp_path, engine(has_host_code=True), **{"version-compatible": "true"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of(max_batch_size=9), "specified max-batch 9 but TensorRT engine only supports max-batch 8; reduce"),
        (config_of("1"), "instance group 'm_0' has profile '1', but the engine has 1; write numbers from 0 to 0"),
        (config_of("-1"), "instance group 'm_0' has profile '-1'"),
        (config_of(gpus=[2]), "GPU 2 cannot be used, CUDA finds 2"),
        (
            config_of(parameters={"execution_context_allocation_strategy": {"string_value": "USER"}}),
            "expected one of STATIC, ON_PROFILE_CHANGE",
        ),
        (
            config_of(input=[{"name": "IN", "data_type": "TYPE_FP32", "dims": [5]}]),
            "axis 1 is 4 in the model and 5 in the configuration",
        ),
    ],
)
def test_configurations_that_contradict_engine(refusal, config, words):
    assert words in refusal(engine((1, 8)), config).message


def test_dims_outside_profiles_are_refused(refusal):
    tensors = [tensor("IN", "INPUT", -1, -1), tensor("OUT", "OUTPUT", -1, -1, like="IN")]
    content = {"tensors": tensors, "profiles": [{"IN": [[1, 16], [1, 16], [8, 64]]}]}
    io = {"data_type": "TYPE_FP32", "dims": [128]}
    message = refusal(content, config_of(input=[{"name": "IN", **io}])).message
    assert "input 'IN' of shape [-1,128] fits no optimization profile: profile 0 takes [1,16] to [8,64]" in message
    assert "build the engine with a profile for it" in message


def test_settings_are_checked(refusal):
    assert "expected one of BLOCKING, DEVICE_BLOCKING" in refusal(engine(), **{"execution-policy": "ASYNC"}).message
    message = refusal(engine(), plugins="/no/plugin.so").message
    assert "library '/no/plugin.so' cannot be loaded" in message


def test_cpu_groups_are_refused(refusal):
    config = config_of()
    config.instance_group[0].kind = 2
    config.instance_group[0].ClearField("gpus")
    error = refusal(engine(), config)
    assert error.code is ErrorCode.UNSUPPORTED
    assert (
        "instance group 'm_0' of model 'm' has kind KIND_CPU, but TensorRT engines run on GPUs only" in error.message
    )
    assert "CUDA finds 2; write kind: KIND_GPU" in error.message


def test_machine_without_gpu_is_named(backend, refusal, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "0")
    error = refusal(engine())
    assert error.code is ErrorCode.UNSUPPORTED
    assert "run on NVIDIA's GPUs only, and there is none here: there is no GPU; serve the ONNX model" in error.message
    assert backend.gpu_unsupported_reason() == "there is no GPU"


def test_memory_that_is_missing_is_named(backend, tmp_path, new_instance):
    huge = engine((1, 1 << 30))
    with pytest.raises(InferError, match=r"on GPU 1 cannot be created: cudaHostAlloc .* out of memory; use fewer"):
        new_instance(load(backend, tmp_path, huge)[0], 1)
    model, _ = load(backend, tmp_path, engine(is_too_large=True))
    with pytest.raises(InferError, match="ON_PROFILE_CHANGE"):
        new_instance(model)
    strategy = {"execution_context_allocation_strategy": {"string_value": "on_profile_change"}}
    model, _ = load(backend, tmp_path, engine(is_too_large=True), config_of(parameters=strategy))
    assert (infer(new_instance(model), {"IN": rows(1)})["OUT"] == 2 * rows(1)).all()


def test_failures_of_execution_have_reasons(backend, tmp_path, new_instance):
    instance = new_instance(load(backend, tmp_path, engine(fails=True))[0])
    with pytest.raises(InferError, match=r"refuses the execution in instance 'm_0_0_gpu0' .*: Cask convolution"):
        infer(instance, {"IN": rows(1)})


def test_shapes_that_depend_on_data_are_refused(backend, tmp_path, new_instance):
    content = engine()
    content["tensors"][1]["depends_on_data"] = True
    instance = new_instance(load(backend, tmp_path, content)[0])
    with pytest.raises(InferError, match="the shape of output 'OUT' depends on the values of the inputs"):
        infer(instance, {"IN": rows(1)})


def test_old_release_is_refused(backend, monkeypatch):
    from naiad.backend.tensorrt import library

    monkeypatch.setattr(library, "VERSION", "8.6.1")
    with pytest.raises(InferError, match=r"needs TensorRT 10 or newer, but 8\.6\.1 is installed: pip install -U"):
        type(backend)()
