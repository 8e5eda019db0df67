"""Digests of files and folders. Their values are in files that users have, so that they must not change."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.files.digest import add_files, content_digest, file_sha256


def added(root: Path) -> str:
    sha = hashlib.sha256()
    add_files(sha, root)
    return sha.hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "below" / "weights").write_bytes(b"weights")
    return tmp_path


def test_values_of_earlier_versions_stay(folder: Path) -> None:
    assert file_sha256(folder / "model.onnx") == "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4"
    parts = ((b"below/weights 7;", b"weights"), (b"model.onnx 5;", b"model"))
    expected = hashlib.sha256(b"".join(head + hashlib.sha256(body).digest() for head, body in parts))
    assert content_digest(folder) == expected.hexdigest()
    assert added(folder) == hashlib.sha256(b"13:below/weights:7:weights10:model.onnx:5:model").hexdigest()


@pytest.mark.parametrize("digest", [content_digest, added])
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "model.onnx").write_bytes(b"other"),
        lambda folder: (folder / "model.onnx").rename(folder / "model2.onnx"),
        lambda folder: (folder / "more").write_bytes(b""),
        lambda folder: (folder / "below" / "weights").unlink(),
    ],
)
def test_each_change_of_a_folder_counts(
    folder: Path, digest: Callable[[Path], str], change: Callable[[Path], object]
) -> None:
    before = digest(folder)
    assert digest(folder) == before
    change(folder)
    assert digest(folder) != before


@pytest.mark.parametrize("digest", [content_digest, added])
def test_compiled_python_does_not_count(folder: Path, digest: Callable[[Path], str]) -> None:
    before = digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "model.pyc").write_bytes(b"compiled")
    assert digest(folder) == before


def test_file_counts_with_those_beside_it(folder: Path) -> None:
    model, weights = folder / "model.onnx", folder / "below" / "weights"
    alone = content_digest(model)
    assert content_digest(model, [weights]) != alone
    weights.write_bytes(b"other")
    assert content_digest(model) == alone
