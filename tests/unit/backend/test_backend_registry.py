"""Backends by name."""

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from naiad.backend import registry
from naiad.backend.api import Backend, Model, ModelContext
from naiad.backend.identity import IdentityBackend
from naiad.backend.registry import BUILT_IN, BackendRegistry
from naiad.core.errors import ErrorCode, InferError


class ThirdPartyBackend(Backend):
    name = "third"

    def load(self, context: ModelContext) -> Model:
        raise NotImplementedError


class NotABackend:
    pass


def announce(name: str, value: str) -> dict[str, EntryPoint]:
    return {name: EntryPoint(name, value, registry.ENTRY_POINT_GROUP)}


def failure(found: BackendRegistry, name: str) -> InferError:
    with pytest.raises(InferError) as caught:
        found.get(name)
    return caught.value


def test_built_in_backends_need_no_metadata():
    found = BackendRegistry({})
    assert found.names() == ["identity", "onnxruntime", "python", "repeat"]
    backend = found.get("identity")
    assert type(backend) is IdentityBackend
    assert found.get("identity") is backend
    assert found.modules() == {"identity": "naiad.backend.identity"}


def test_installed_packages_announce_backends():
    found = BackendRegistry(announce("third", f"{__name__}:ThirdPartyBackend"))
    assert "third" in found.names()
    assert isinstance(found.get("third"), ThirdPartyBackend)


def test_an_installed_package_may_replace_a_built_in_backend():
    found = BackendRegistry(announce("python", "naiad.backend.identity:IdentityBackend"))
    assert "calls itself 'identity'" in failure(found, "python").message


def test_an_unknown_name_gets_the_nearest_one():
    error = failure(BackendRegistry({}), "onxruntime")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(
        "unknown backend 'onxruntime', did you mean 'onnxruntime'? available backends: identity, onnxruntime, "
        "python, repeat."
    )
    assert "did you mean" not in failure(BackendRegistry({}), "tensorrt").message


def test_a_framework_that_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "naiad.backend.onnxruntime", raising=False)
    monkeypatch.delitem(sys.modules, "naiad.backend.onnx_options", raising=False)
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


def test_every_built_in_backend_is_announced_in_the_package_too():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["naiad.backends"] == dict(BUILT_IN)
