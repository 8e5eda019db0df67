"""The folder of prepared forms: what is damaged or old is removed, what is in use stays readable."""

import json
import os
from pathlib import Path

import pytest

from naiad.backend.onnx.prepared import prepared_folder
from naiad.backend.onnx.prepared.known_digests import KnownDigests
from naiad.backend.onnx.prepared.prepared_folder import PreparedFolder

KB = 1000


def make_folder(root: Path, most_bytes: int = 100 * KB) -> PreparedFolder:
    return PreparedFolder(root, most_bytes, KnownDigests())


def write(folder: PreparedFolder, key: str, size_bytes: int = 10 * KB, used_s: int = 0) -> bool:
    with folder.writing() as place:
        (place / "model.onnx").write_bytes(key.encode())
        (place / "weights.bin").write_bytes(b"w" * size_bytes)
        is_kept = folder.keep(key, place, {"of": key})
    assert not place.exists()
    if is_kept and used_s:
        os.utime(folder._root / key / "manifest.json", (used_s, used_s))
    return is_kept


def test_form_is_found_by_another_process(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "root").find("a") is None
    assert write(make_folder(tmp_path / "root"), "a")
    form = make_folder(tmp_path / "root").find("a")
    assert form is not None
    assert form.notes == {"of": "a"}
    assert (form.folder / "model.onnx").read_bytes() == b"a"


def test_file_with_another_digest_is_not_used(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    weights = tmp_path / "a" / "weights.bin"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    assert folder.find("a") is None
    assert not (tmp_path / "a").exists()
    assert write(folder, "a")
    assert folder.find("a") is not None


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{}",
        b'{"files": {}, "notes": 1}',
        b'{"files": [], "notes": 1}',
        b'{"files": {"model.onnx": 5}, "notes": 1}',
        b'{"files": {"other.onnx": "00"}, "notes": 1}',
        b'{"files": {"../b/model.onnx": "00"}, "notes": 1}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_damaged_manifest_is_no_form(tmp_path: Path, manifest: bytes) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    (tmp_path / "a" / "manifest.json").write_bytes(manifest)
    assert folder.find("a") is None
    assert not (tmp_path / "a").exists()


def test_manifest_without_notes_is_no_form(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    path = tmp_path / "a" / "manifest.json"
    path.write_text(json.dumps({"files": {}}))
    assert folder.find("a") is None


def test_least_recently_used_forms_make_room(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 35 * KB)
    for number, key in enumerate("abc"):
        write(folder, key, used_s=1000 + number)
    assert folder.find("a") is not None  # now it was used last
    write(folder, "d")
    assert folder.find("b") is None
    assert all(folder.find(key) for key in "acd")


def test_form_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 20 * KB)
    write(folder, "a")
    assert not write(folder, "b", 30 * KB)
    assert folder.find("a") is not None
    assert folder.find("b") is None


def test_mapped_form_stays_readable_after_its_removal(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    with (tmp_path / "a" / "weights.bin").open("rb") as file:
        folder.remove("a")
        assert file.read() == b"w" * 10 * KB


def test_second_writer_of_a_form_changes_nothing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    before = (tmp_path / "a" / "weights.bin").stat().st_ino
    write(folder, "a")
    assert (tmp_path / "a" / "weights.bin").stat().st_ino == before
    assert list((tmp_path / "incoming").iterdir()) == []


def test_next_writer_removes_what_killed_ones_left(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    left = tmp_path / "incoming" / "left"
    left.mkdir(parents=True)
    (left / "weights.bin").write_bytes(b"w")
    with folder.writing() as other:
        write(folder, "a")
        assert other.is_dir()  # its process lives
    assert not left.exists()


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(make_folder(tmp_path), "a")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    os.chown(tmp_path, 4343, -1) if os.getuid() == 0 else pytest.skip("needs root")
    assert make_folder(tmp_path).find("a") is None
    with pytest.raises(PermissionError, match="belongs to user"), make_folder(tmp_path).writing():
        pass


def test_manifest_without_a_file_is_no_form(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    path = tmp_path / "a" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["model.onnx"]  # whose content nothing would check
    path.write_text(json.dumps(manifest))
    assert folder.find("a") is None


def test_form_that_cannot_be_touched_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(make_folder(tmp_path), "a")

    def refuse(path: Path) -> None:
        raise PermissionError(1, "a folder of root", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    assert make_folder(tmp_path).find("a") is not None


def test_form_of_another_user_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(make_folder(tmp_path), "a")

    def refuse(path: Path) -> None:
        raise PermissionError(1, "it belongs to user 4343", str(path))

    monkeypatch.setattr(prepared_folder, "make_private_folder", refuse)
    assert make_folder(tmp_path).find("a") is None
    assert (tmp_path / "a" / "manifest.json").exists()


@pytest.mark.parametrize("is_file", [True, False])
def test_rest_of_a_form_is_replaced(tmp_path: Path, *, is_file: bool) -> None:
    rest = tmp_path / "a"
    if is_file:
        rest.write_bytes(b"w")
    else:
        rest.mkdir()
        (rest / "weights.bin").write_bytes(b"w")
    folder = make_folder(tmp_path)
    folder.find("a")
    assert write(folder, "a")
    assert folder.find("a") is not None
    assert list((tmp_path / "incoming").iterdir()) == []


def test_removal_that_is_interrupted_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path)
    write(folder, "a")
    with monkeypatch.context() as patch:
        patch.setattr(prepared_folder.shutil, "rmtree", lambda *rest, **named: None)  # as if it were killed here
        folder.remove("a")
    assert not (tmp_path / "a").exists()
    write(folder, "b")
    assert list((tmp_path / "incoming").iterdir()) == []


def test_file_among_incoming_forms_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir(parents=True)
    (tmp_path / "incoming" / ".DS_Store").write_bytes(b"x")
    assert write(make_folder(tmp_path), "a")
    assert make_folder(tmp_path).find("a") is not None
