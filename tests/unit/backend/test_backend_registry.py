"""Backends by name."""

import re
import sys

import pytest

from naiad.backend.api import Backend, Model, ModelContext
from naiad.backend.identity import IdentityBackend
from naiad.backend.isolation.backend import IsolatedBackend
from naiad.backend.python.backend import PythonBasedBackend
from naiad.backend.registry import BackendRegistry
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support.backend_parts import make_context


class ThirdPartyBackend(Backend):
    name = "third"

    def load(self, context: ModelContext) -> Model:
        raise NotImplementedError


class PyTorchLike(ThirdPartyBackend):
    name = "pytorch"


class NotABackend:
    pass


def announce(name: str, value: str) -> dict[str, str]:
    return {name: value}


def failure(found: BackendRegistry, name: str) -> InferError:
    with pytest.raises(InferError) as caught:
        found.get(name)
    return caught.value


def test_built_in_backends_need_no_metadata():
    found = BackendRegistry({})
    assert {"identity", "onnxruntime", "python", "repeat"} <= set(found.names())
    backend = found.get("identity")
    assert type(backend) is IdentityBackend
    assert found.get("identity") is backend
    assert found.modules() == {"identity": "naiad.backend.identity"}


def test_pytorch_supports_the_python_runtime_itself(tmp_path):
    """Triton's backend has a `model.py` of its own for models with `runtime: "model.py"`."""
    found = BackendRegistry({"pytorch": f"{__name__}:PyTorchLike"})
    assert isinstance(found.get("pytorch", "model.py"), PyTorchLike)
    replaced = BackendRegistry({}, directory_with(tmp_path, "pytorch"))
    assert type(replaced.get("pytorch", "model.py")) is PythonBasedBackend


def test_own_vllm_backend_yields_to_a_directory(tmp_path):
    """Triton's vLLM backend is a directory of Python files, and stays what executes models where it is."""
    config = ModelConfig(name="m", backend="vllm")
    assert type(BackendRegistry({}).get_for(config, "m")) is IsolatedBackend
    replaced = BackendRegistry({}, directory_with(tmp_path, "vllm"))
    assert replaced.runtime_of("vllm") == "model.py"
    assert type(replaced.get_for(config, "m")) is PythonBasedBackend
    # As everywhere, an installed package wins over both.
    announced = BackendRegistry(announce("vllm", f"{__name__}:ThirdPartyBackend"), tmp_path)
    assert announced.runtime_of("vllm") == ""


def test_installed_packages_announce_backends():
    found = BackendRegistry(announce("third", f"{__name__}:ThirdPartyBackend"))
    assert "third" in found.names()
    assert isinstance(found.get("third"), ThirdPartyBackend)


def test_installed_package_may_replace_builtin_backend():
    found = BackendRegistry(announce("python", "naiad.backend.identity:IdentityBackend"))
    assert "calls itself 'identity'" in failure(found, "python").message


def test_an_unknown_name_gets_the_nearest_one():
    found = BackendRegistry({})
    error = failure(found, "onxruntime")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(
        f"unknown backend 'onxruntime', did you mean 'onnxruntime'? available backends: {', '.join(found.names())}."
    )
    assert "did you mean" not in failure(BackendRegistry({}), "tensorrt").message


def test_missing_framework_error_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "naiad.backend.onnx.backend", raising=False)
    monkeypatch.delitem(sys.modules, "naiad.backend.onnx.session_options", raising=False)
    monkeypatch.delitem(sys.modules, "naiad.backend.onnx.library", raising=False)
    error = failure(BackendRegistry({}), "onnxruntime")
    assert error.message == (
        "backend 'onnxruntime' needs the package 'onnxruntime', which is not installed: pip install 'naiad[onnx]'"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_package_at_all:Backend", "importing no_such_package_at_all:Backend failed: No module named"),
        ("naiad.backend.identity:NoSuchClass", "has no attribute 'NoSuchClass'"),
        ("naiad.backend.identity:pair_tensors", "is not a subclass of naiad.backend.api.Backend"),
        ("naiad.backend.api:InstanceSpec", "is not a subclass of naiad.backend.api.Backend"),
    ],
)
def test_a_package_that_does_not_work_is_named(value, text):
    error = failure(BackendRegistry(announce("broken", value)), "broken")
    assert error.code is ErrorCode.INTERNAL
    assert "'broken'" in error.message
    assert text in error.message


def test_import_that_ends_the_process_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "leaves_at_import.py").write_text("raise SystemExit('this machine has no AVX')")
    (tmp_path / "fails_at_import.py").write_text("raise RuntimeError('no device')")
    monkeypatch.syspath_prepend(tmp_path)
    for module, text in (("leaves", "SystemExit: this machine has no AVX"), ("fails", "RuntimeError: no device")):
        point = f"{module}_at_import:Backend"
        error = failure(BackendRegistry(announce("broken", point)), "broken")
        assert error.message == f"backend 'broken' cannot be used: importing {point} failed: {text}"


def directory_with(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").touch()
    return tmp_path


def test_directory_with_model_file_is_backend(tmp_path):
    (tmp_path / "empty").mkdir()
    found = BackendRegistry({}, directory_with(tmp_path, "linear"))
    assert "linear" in found.names()
    assert "empty" not in found.names()
    backend = found.get("linear")
    assert type(backend) is PythonBasedBackend
    assert found.get("linear", "model.py") is backend
    assert (found.runtime_of("linear"), found.runtime_of("identity"), found.runtime_of("empty")) == (
        "model.py",
        "",
        "",
    )
    assert found.modules() == {"linear": str(tmp_path / "linear" / "model.py")}


def test_a_package_wins_unless_runtime_says_otherwise(tmp_path):
    found = BackendRegistry({}, directory_with(tmp_path, "identity"))
    assert type(found.get("identity")) is IdentityBackend
    assert type(found.get("identity", "libtriton_identity.so")) is IdentityBackend
    assert type(found.get("identity", "model.py")) is PythonBasedBackend


@pytest.mark.parametrize("name", ["nothing", "../models", ".", ""])
def test_runtime_names_a_backend_that_is_not_there(tmp_path, name):
    found = BackendRegistry({}, directory_with(tmp_path, "linear"))
    with pytest.raises(InferError) as caught:
        found.get(name, "model.py", "m")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith(
        "unable to find Python backend based backend library 'model.py' for model 'm', searched: "
    )


def test_another_runtime_is_refused():
    with pytest.raises(InferError, match=r"unable to find backend library 'libother\.so' for model 'm'"):
        BackendRegistry({}).get("identity", "libother.so", "m")


def test_the_environment_beside_the_backend_is_used(tmp_path):
    backend = PythonBasedBackend(directory_with(tmp_path, "linear") / "linear")
    archive = tmp_path / "linear" / "pb_exec_env_model.py.tar.gz"
    archive.write_bytes(b"no archive")
    with pytest.raises(InferError, match=f"'EXECUTION_ENV_PATH' is '{re.escape(str(archive))}'"):
        backend.load(make_context(ModelConfig(name="m")))
    own = ModelConfig(name="m")
    own.parameters["EXECUTION_ENV_PATH"].string_value = "/own"
    with pytest.raises(InferError, match="'EXECUTION_ENV_PATH' is '/own'"):
        backend.load(make_context(own))


def test_given_object_replaces_other_backends():
    given = IdentityBackend()
    registry = BackendRegistry({}, backends=[given])
    assert registry.get("identity") is given
    assert "identity" in registry.names()
