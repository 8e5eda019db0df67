import os
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.errors import ErrorCode, InferError
from naiad.engine.loading.load_configuration import finish_config, prepare_config, read_config
from naiad.repository.control.load_order import config_of_files
from naiad.repository.model_check import check_path
from naiad.repository.open_repository import open_path
from naiad.repository.stores.store import LocalStore, ModelEntry

BACKENDS = ("identity", "onnxruntime", "python")
TENSORS = """
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def make_entry(root: Path, config: str | None) -> ModelEntry:
    (root / "m" / "1").mkdir(parents=True)
    if config is not None:
        (root / "m" / "config.pbtxt").write_text(config)
    return LocalStore(root).open_model("m")


def test_configuration_is_read_from_its_file(tmp_path: Path) -> None:
    parsed = read_config(make_entry(tmp_path, 'backend: "identity" max_batch_size: 4'), required=True)
    assert (parsed.config.backend, parsed.config.max_batch_size) == ("identity", 4)


def test_all_mistakes_of_a_file_have_places(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, 'backend: "identity"\nmax_batch_sise: 4\ninput [ { nam: "x" } ]\n')
    with pytest.raises(InferError) as caught:
        read_config(entry, required=False)
    assert caught.value.code is ErrorCode.INVALID_ARG
    path = tmp_path / "m" / "config.pbtxt"
    assert f"{path}:2:1:" in caught.value.message
    assert f"{path}:3:" in caught.value.message
    assert "max_batch_size" in caught.value.message


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "")
    (tmp_path / "m" / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(InferError, match="not UTF-8"):
        read_config(entry, required=False)


@pytest.mark.timeout(20)
def test_pipe_is_not_read_as_a_configuration(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "")
    path = tmp_path / "m" / "config.pbtxt"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InferError, match="cannot be read: not a regular file"):
        read_config(entry, required=False)
    assert config_of_files(entry) == ModelConfig()
    (report,) = check_path(tmp_path, known_backends=())
    assert "cannot be read: not a regular file" in report.problems[0].message


def test_missing_file_needs_auto_complete(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, None)
    assert read_config(entry, required=False).config == ModelConfig()
    with pytest.raises(InferError, match="--disable-auto-complete-config"):
        read_config(entry, required=True)


def test_bare_file_brings_what_is_known_of_it(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").write_bytes(b"")
    entry = open_path(tmp_path / "resnet.onnx").open_model("resnet")
    config = prepare_config(read_config(entry, required=False), entry, ["resnet.onnx"], BACKENDS).config
    assert (config.name, config.backend, config.default_model_filename) == ("resnet", "onnxruntime", "resnet.onnx")


def test_file_names_determine_the_backend(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, None)
    config = prepare_config(read_config(entry, required=False), entry, ["model.py"], BACKENDS).config
    assert (config.name, config.backend) == ("m", "python")


def test_unknown_backend_is_refused_where_it_stands(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, '\nbackend: "pythn"\n')
    unsupported_reason = prepare_config(read_config(entry, required=False), entry, [], BACKENDS).unsupported_reason
    assert unsupported_reason is not None
    assert unsupported_reason.message.startswith(
        "unable to find backend library for backend 'pythn', try specifying runtime"
    )
    assert "config.pbtxt:2:" in unsupported_reason.message
    assert "'python'" in unsupported_reason.message


def test_finish_keeps_completed_fields_and_adds_instances(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, 'backend: "identity"')
    parsed = read_config(entry, required=False)
    config = prepare_config(parsed, entry, [], BACKENDS).config
    completed = ModelConfig()
    completed.CopyFrom(config)
    completed.max_batch_size = 8
    completed.dynamic_batching.SetInParent()
    completed.input.add(name="A", data_type=11, dims=[4])
    completed.output.add(name="B", data_type=11, dims=[4])
    completed.default_model_filename = "a backend must not change this"
    final = finish_config(config, completed, parsed, default_instance_count=2)
    assert final.max_batch_size == 8
    assert list(final.dynamic_batching.preferred_batch_size) == [8]
    assert [tensor.name for tensor in final.input] == ["A"]
    assert final.default_model_filename == ""
    (group,) = final.instance_group
    assert (group.count, group.kind) == (2, ModelInstanceGroup.KIND_CPU)


def test_finish_refuses_a_model_that_stays_incomplete(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, 'backend: "identity" input [ { name: "A" } ]')
    parsed = read_config(entry, required=False)
    config = prepare_config(parsed, entry, [], BACKENDS).config
    with pytest.raises(InferError) as caught:
        finish_config(config, config, parsed, default_instance_count=1)
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    ("config", "is_for_the_load"),
    [
        ('backend: "identity" input [ { name: "A" data_type: TYPE_FP32 dims: [ 0 ] } ]', True),
        ('backend: "identity" output [ { data_type: TYPE_FP32 dims: [ 1 ] } ]', True),
        ('backend: "nowhere"', True),
        ('backend: "identity" max_batch_size: -1', False),
        ('backend: "identity" max_batch_size: -1 input [ { name: "A" dims: [ 0 ] } ]', False),
    ],
)
def test_mistakes_that_triton_finds_when_it_loads(tmp_path: Path, config: str, is_for_the_load: bool) -> None:
    entry = make_entry(tmp_path, config)
    parsed = read_config(entry, required=False)
    try:
        error = prepare_config(parsed, entry, [], BACKENDS).unsupported_reason
        is_found_by_loading = True
    except InferError as raised:
        error, is_found_by_loading = raised, False
    assert error is not None
    assert error.code is ErrorCode.INVALID_ARG
    assert is_found_by_loading is is_for_the_load
    if "nowhere" not in config:
        with pytest.raises(InferError):
            prepare_config(parsed, entry, [], BACKENDS, auto_complete=False)


def test_unreadable_file_is_said_in_tritons_words(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "junk {{")
    with pytest.raises(InferError) as caught:
        read_config(entry, required=False)
    assert caught.value.message.startswith(f"failed to read text proto from {entry.config_path}\n")
    assert "config.pbtxt:1:1: unknown field 'junk'" in caught.value.message
