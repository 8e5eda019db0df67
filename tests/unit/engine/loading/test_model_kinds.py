"""What is kept of a configuration: the second model of a kind gets what it would have got alone."""

import logging
from pathlib import Path

import pytest

from naiad.backend.registry import BackendRegistry
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.engine.loading import model_kinds as kinds_module
from naiad.engine.loading.budget import LoadBudget
from naiad.engine.loading.load_configuration import read_config
from naiad.engine.loading.model_kinds import ModelKinds
from naiad.options.load_limits import LoadLimitOptions
from naiad.repository.stores.store import LocalStore

TENSORS = """
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
IDENTITY = f'backend: "identity" max_batch_size: 8 {TENSORS}'
LIMITS = LoadLimitOptions(max_instances=4).resolved(memory_bytes=1 << 34, cores=4)


def make(directory: Path | None = None) -> ModelKinds:
    registry = BackendRegistry({}, directory)
    return ModelKinds(registry, LoadBudget(LIMITS), lambda config: {}, auto_complete=True)


def write(root: Path, name: str, config: str | None, *files: str) -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    for file in files:
        (root / name / "1" / file).touch()
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)


def prepared(configurations: ModelKinds, root: Path, name: str) -> tuple[ModelConfig, InferError | None]:
    entry = LocalStore(root).open_model(name)
    return configurations.prepare(read_config(entry, required=False), entry, [*entry.version_dirs])


def finished(configurations: ModelKinds, root: Path, name: str, *, rows: int = 0, count: int = 2) -> ModelConfig:
    config, reason = prepared(configurations, root, name)
    assert reason is None
    completed = ModelConfig()
    completed.CopyFrom(config)
    completed.max_batch_size = rows or config.max_batch_size
    return configurations.finish(config, completed, None, instance_count=count, gpu_count=0, version_count=1)


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (IDENTITY, ()),
        (f"{IDENTITY} instance_group [ {{ kind: KIND_CPU }}, {{ count: 2 }} ]", ()),
        (f'{IDENTITY} instance_group [ {{ name: "own" }} ] dynamic_batching {{ }}', ()),
        (f'name: "NAME" {IDENTITY}', ()),
        (f'{IDENTITY} parameters {{ key: "k" value {{ string_value: "v" }} }}', ()),
        (None, ("model.onnx",)),
        (None, ("model.py",)),
    ],
)
def test_models_of_a_kind_differ_in_the_name(tmp_path: Path, config: str | None, files: tuple[str, ...]) -> None:
    for name in ("first", "second"):
        write(tmp_path, name, config and config.replace("NAME", name), *files)
    shared = make()
    if config is None:
        for name in ("first", "second"):
            assert prepared(shared, tmp_path, name) == prepared(make(), tmp_path, name)
        return
    for name in ("first", "second", "first"):
        found = finished(shared, tmp_path, name)
        assert found == finished(make(), tmp_path, name)
        assert found.name == name


def test_second_model_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = make()
    for name in ("first", "second"):
        write(tmp_path, name, IDENTITY)
    finished(shared, tmp_path, "first")
    monkeypatch.delattr(kinds_module, "prepare_config")
    monkeypatch.delattr(kinds_module, "finish_config")
    assert finished(shared, tmp_path, "second").name == "second"


def test_copies_do_not_share_what_a_load_changes(tmp_path: Path) -> None:
    write(tmp_path, "m", IDENTITY)
    shared = make()
    finished(shared, tmp_path, "m").input[0].name = "changed"
    prepared(shared, tmp_path, "m")[0].max_batch_size = 99
    assert finished(shared, tmp_path, "m") == finished(make(), tmp_path, "m")


def test_what_a_configuration_depends_on_makes_another_kind(tmp_path: Path) -> None:
    write(tmp_path, "plain", None, "model.onnx")
    write(tmp_path, "script", None, "model.py")
    write(tmp_path, "custom.identity", None)
    write(tmp_path, "custom.python", None)
    shared = make()
    backends = [prepared(shared, tmp_path, name)[0].backend for name in sorted(p.name for p in tmp_path.iterdir())]
    assert backends == ["identity", "python", "onnxruntime", "python"]
    write(tmp_path, "m", IDENTITY)
    assert finished(shared, tmp_path, "m", rows=4).max_batch_size == 4
    assert finished(shared, tmp_path, "m", rows=16).max_batch_size == 16
    assert finished(shared, tmp_path, "m", count=3).instance_group[0].count == 3
    write(tmp_path, "m", IDENTITY.replace("8", "32"))
    assert finished(shared, tmp_path, "m").max_batch_size == 32


def test_each_model_hears_of_its_own_mistakes(tmp_path: Path) -> None:
    write(tmp_path, "good", IDENTITY)
    write(tmp_path, "other_name", f'name: "good" {IDENTITY}')
    shared = make()
    prepared(shared, tmp_path, "good")
    with pytest.raises(InferError, match="unexpected directory name 'other_name'"):
        prepared(shared, tmp_path, "other_name")
    for name in ("bad", "worse"):
        write(tmp_path, name, f"{IDENTITY}\nmax_batch_size: -1".replace("max_batch_size: 8", ""))
        with pytest.raises(InferError, match=rf" for {name};.*{name}/config.pbtxt:\d+:17\)"):
            prepared(shared, tmp_path, name)
    for name in ("late", "later"):
        write(tmp_path, name, 'backend: "nowhere"')
        reason = prepared(shared, tmp_path, name)[1]
        assert reason is not None
        assert f"{name}/config.pbtxt" in reason.message


def test_each_model_hears_of_its_own_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shared = make()
    for name in ("one", "two"):
        write(tmp_path, name, f'backend: "identity" {TENSORS} dynamic_batching {{ }}')
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            prepared(shared, tmp_path, name)
        assert [f"model '{name}'" in record.getMessage() for record in caplog.records] == [True]


def test_budget_holds_for_each_model_of_a_kind(tmp_path: Path) -> None:
    shared = make()
    for name in ("one", "two"):
        write(tmp_path, name, f"{IDENTITY} instance_group [ {{ count: 3 }} ]")
        prepared(shared, tmp_path, name)
        write(tmp_path, name, f"{IDENTITY} instance_group [ {{ count: 5 }} ]")
        with pytest.raises(InferError, match=rf"model '{name}': instance_group\[0\].count asks for 5 instances"):
            prepared(shared, tmp_path, name)
    write(tmp_path, "two", f"{IDENTITY} instance_group [ {{ count: 3 }} ]")
    (tmp_path / "two" / "2").mkdir()
    with pytest.raises(InferError, match="asks for 6 instances"):
        prepared(shared, tmp_path, "two")


def test_new_backend_directory_counts_at_once(tmp_path: Path) -> None:
    backends, models = tmp_path / "backends", tmp_path / "models"
    backends.mkdir()
    write(models, "m", f'backend: "mine" {TENSORS}')
    shared = make(backends)
    assert prepared(shared, models, "m")[1] is not None
    (backends / "mine").mkdir()
    (backends / "mine" / "model.py").touch()
    for _ in range(2):
        config, reason = prepared(shared, models, "m")
        assert (config.runtime, reason) == ("model.py", None)
    (backends / "mine" / "model.py").unlink()
    assert prepared(shared, models, "m")[1] is not None


def test_number_of_kinds_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds_module, "_MOST_KINDS", 3)
    shared = make()
    for rows in range(1, 8):
        write(tmp_path, "m", IDENTITY.replace("8", str(rows)))
        assert finished(shared, tmp_path, "m").max_batch_size == rows
    assert len(shared._kinds) == 3
