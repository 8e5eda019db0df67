import os
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.repository.stores.fingerprint import FileState, content_digest, file_state, fingerprint
from naiad.repository.stores.store import LocalStore, ModelEntry


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text("a")
    (tmp_path / "m" / "1" / "model.onnx").write_text("b")
    return tmp_path / "m"


def taken(model: Path) -> bytes:
    return fingerprint(LocalStore(model.parent).open_model("m"))


def test_fingerprint_is_stable_without_changes(model: Path) -> None:
    assert taken(model) == taken(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "config.pbtxt").write_text("longer"),
        lambda model: os.utime(model / "1" / "model.onnx", ns=(1, 1)),
        lambda model: (model / "2").mkdir(),
        lambda model: (model / "1" / "model.onnx").unlink(),
        lambda model: (model / "1" / "more").write_text(""),
        lambda model: (model / "1" / "model.onnx").rename(model / "1" / "model.other"),
    ],
)
def test_every_change_shows(model: Path, change) -> None:
    before = taken(model)
    change(model)
    assert taken(model) != before


@pytest.mark.parametrize("where", ["", "1", "1/package"])
def test_compiled_python_is_no_change(model: Path, where: str) -> None:
    (model / "1" / "package").mkdir()
    before = taken(model), TestParts.state(model), content_digest(LocalStore(model.parent).open_model("m"))
    (model / where / "__pycache__").mkdir()
    (model / where / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"compiled")
    assert (taken(model), TestParts.state(model), content_digest(LocalStore(model.parent).open_model("m"))) == before


def test_links_are_followed_and_circles_end(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "weights").write_text("1")
    (model / "2").symlink_to(target)
    (model / "loop").symlink_to(model)
    (model / "dangling").symlink_to(tmp_path / "nothing")
    (model / "itself").symlink_to("itself")
    before = taken(model)
    assert taken(model) == before
    (target / "weights").write_text("22")
    assert taken(model) != before


def test_link_to_files_of_equal_size_and_time(model: Path, tmp_path: Path) -> None:
    # Images that are built reproducibly have equal times everywhere.
    for release in ("first", "second"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "weights").write_text(release[0])
        os.utime(tmp_path / release / "weights", ns=(1, 1))
        os.utime(tmp_path / release, ns=(1, 1))
    (model / "2").symlink_to(tmp_path / "first")
    before = taken(model)
    (model / "2").unlink()
    (model / "2").symlink_to(tmp_path / "second")
    assert taken(model) != before


def test_of_a_bare_file_only_the_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("a")
    preset = ModelConfig(name="model", default_model_filename="model.onnx")
    entry = ModelEntry("model", tmp_path, {1: tmp_path}, None, preset)
    before = fingerprint(entry)
    (tmp_path / "another").write_text("x")
    assert fingerprint(entry) == before
    path.write_text("bb")
    assert fingerprint(entry) != before


class TestParts:
    @staticmethod
    def state(model: Path) -> FileState:
        return file_state(LocalStore(model.parent).open_model("m"))

    @pytest.mark.parametrize(
        ("name", "unchanged"),
        [
            ("config.pbtxt", {1, 2}),
            ("configs/fast.pbtxt", {1, 2}),
            ("1/model.onnx", {2}),
            ("2/deep/weights", {1}),
            ("labels.txt", set()),
            ("warmup/data", set()),
        ],
    )
    def test_a_file_belongs_to_its_part(self, model: Path, name: str, unchanged: set[int]) -> None:
        for directory in ("2/deep", "configs", "warmup"):
            (model / directory).mkdir(parents=True)
        before = self.state(model)
        assert self.state(model) == before
        (model / name).write_text("something else")
        after = self.state(model)
        assert after != before
        assert after.unchanged_versions(before) == unchanged

    def test_versions_that_are_links_to_the_same_files(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "files").mkdir()
        for version in ("2", "3"):
            (model / version).symlink_to(tmp_path / "files")
        before = self.state(model)
        (tmp_path / "files" / "weights").touch()
        assert self.state(model).unchanged_versions(before) == {1}

    def test_a_bare_file_is_its_version(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.write_text("a")
        preset = ModelConfig(name="model", default_model_filename="model.onnx")
        entry = ModelEntry("model", tmp_path, {1: tmp_path}, None, preset)
        before = file_state(entry)
        (tmp_path / "another").write_text("x")
        assert file_state(entry) == before
        path.write_text("bb")
        assert file_state(entry).unchanged_versions(before) == set()
