"""The files of a package against its manifest: changed bytes, links, archives that lead out, large ones."""

import json
import os
import stat
import zipfile

import pytest

from naiad.tools.optimize.package.manifest import MANIFEST, DamagedPackageError, NoPackageError, manifest_of
from naiad.tools.optimize.package.package_files import opened, write_archive


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    for name, content in (("config.pbtxt", "name: 'm'"), ("1/model.onnx", "model"), ("evidence/result.json", "{}")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / MANIFEST).write_text(manifest_of(folder, "m", "onnx", "2026-05-04").to_json())
    return folder


@pytest.fixture
def archive(package, tmp_path):
    write_archive(package, tmp_path / "package.zip")
    return tmp_path / "package.zip"


def problems(path, **limits):
    with pytest.raises(DamagedPackageError) as caught, opened(path, **limits) as contents:
        contents.check()
    assert str(path) in str(caught.value)
    return list(caught.value.problems)


def rewritten(archive, target, **changes):
    """Copy an archive with other contents of some members; None leaves one out."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name)) if name not in changes else None
        for name, content in changes.items():
            if content is not None:
                new.writestr(name, content)
    return target


@pytest.mark.parametrize("kind", ["package", "archive"])
def test_untouched_package_is_copied(kind, request, tmp_path):
    path = request.getfixturevalue(kind)
    with opened(path) as contents:
        contents.check()
        contents.copy(tmp_path / "copy")
    assert (tmp_path / "copy/1/model.onnx").read_text() == "model"
    with opened(tmp_path / "copy") as copy:
        assert copy.manifest == contents.manifest


def test_changed_byte_is_named(package):
    (package / "1/model.onnx").write_text("modeL")
    assert problems(package) == ["1/model.onnx has changed"]


def test_other_size_is_named(package):
    (package / "1/model.onnx").write_text("models")
    assert problems(package) == ["1/model.onnx has changed: it has 6 bytes, expected 5"]


def test_missing_and_added_files_are_named(package):
    (package / "config.pbtxt").unlink()
    (package / "1/model.py").write_text("import os")
    assert problems(package) == ["config.pbtxt is missing", "1/model.py was added"]


def test_changed_manifest_is_refused(package):
    manifest = json.loads((package / MANIFEST).read_text())
    manifest["files"]["1/model.onnx"]["bytes"] = 6
    (package / MANIFEST).write_text(json.dumps(manifest))
    assert problems(package) == [f"{MANIFEST} has changed"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "files": 3}'])
def test_unreadable_manifest_is_refused(package, text):
    (package / MANIFEST).write_text(text)
    assert MANIFEST in problems(package)[0]


def test_links_are_refused(package):
    (package / "1/weights.bin").symlink_to("/etc/hostname")
    assert problems(package) == ["1/weights.bin is a link or a special file"]


def test_linked_folders_are_refused(package):
    (package / "2").symlink_to(package / "1")
    assert problems(package) == ["2 is a link or a special file"]


def test_pipes_are_refused(package):
    os.mkfifo(package / "1/pipe")
    assert problems(package) == ["1/pipe is a link or a special file"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "1/../../outside", "C:\\outside", "a\\..\\b"])
def test_archive_that_leads_out_is_refused(archive, tmp_path, name):
    path = rewritten(archive, tmp_path / "other.zip", **{name: "x"})
    assert problems(path) == [f"{name!r} leads out of the package"]


def test_manifest_that_leads_out_is_refused(package):
    manifest = manifest_of(package, "m", "onnx", "2026-05-04")
    entry = manifest.files["1/model.onnx"]
    (package / MANIFEST).write_text(
        type(manifest)("m", "onnx", "", {**manifest.files, "../../model": entry}).to_json()
    )
    assert problems(package) == ["'../../model' leads out of the package"]


def test_model_name_that_leads_out_is_refused(package):
    manifest = manifest_of(package, "../m", "onnx", "")
    files = {name: entry for name, entry in manifest.files.items() if name != MANIFEST}
    (package / MANIFEST).write_text(type(manifest)("../m", "onnx", "", files).to_json())
    assert "must not be a path" in problems(package)[0]


def test_link_in_an_archive_is_refused(archive):
    with zipfile.ZipFile(archive, "a") as file:
        info = zipfile.ZipInfo("1/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc/hostname")
    assert problems(archive) == ["1/link is a link or a special file"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_second_member_of_a_name_is_refused(archive):
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("1/model.onnx", "other")
    assert problems(archive) == ["1/model.onnx is there twice"]


def test_oversized_archive_is_refused(archive):
    assert "the most is" in problems(archive, max_bytes=10)[0]


def test_changed_member_is_named(archive, tmp_path):
    path = rewritten(archive, tmp_path / "other.zip", **{"1/model.onnx": "modeL"})
    assert problems(path) == ["1/model.onnx has changed"]


def test_flipped_bit_of_an_archive_is_named(archive):
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as file:
        info = file.getinfo("1/model.onnx")
    content[info.header_offset + 30 + len(info.filename) + 2] ^= 1
    archive.write_bytes(content)
    assert "1/model.onnx" in problems(archive)[0]


def test_copy_of_a_changed_package_is_refused(package, tmp_path):
    (package / "1/model.onnx").write_text("modeL")
    with opened(package) as contents, pytest.raises(DamagedPackageError, match=r"1/model\.onnx has changed"):
        contents.copy(tmp_path / "copy")


def test_other_paths_are_no_packages(tmp_path):
    (tmp_path / "file").write_text("text")
    for path in (tmp_path, tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(NoPackageError, match="no package"), opened(path):
            pass


def test_missing_manifest_is_refused(package):
    (package / MANIFEST).unlink()
    assert f"{MANIFEST} is missing" in problems(package)[0]


def test_cut_archive_is_refused(archive):
    archive.write_bytes(archive.read_bytes()[:-30])
    assert "not readable as a zip archive" in problems(archive)[0]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_changed_byte_of_archive_never_passes(archive, tmp_path):
    content = archive.read_bytes()
    with opened(archive) as contents:
        contents.check()
    refused = 0
    for place in range(0, len(content), 2):
        archive.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            with opened(archive) as changed:
                changed.check()
        except (DamagedPackageError, NoPackageError):
            refused += 1
        else:  # A byte without meaning, such as a time: the content is the same.
            assert changed.manifest == contents.manifest
    assert refused > len(content) / 4
