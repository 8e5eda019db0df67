"""Formats of PyTorch files, recognised without PyTorch."""

import zipfile

import pytest

from naiad.backend.pytorch.formats import PyTorchFormat, detect_format
from naiad.core.errors import InferError


def archive(path, *names):
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"archive/{name}", b"content")
    return path


def refusal(path):
    with pytest.raises(InferError) as caught:
        detect_format(path)
    return caught.value.message


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("data.pkl", "constants.pkl", "code/__torch__.py"), PyTorchFormat.TORCHSCRIPT),
        (("archive_format", "models/model.json"), PyTorchFormat.EXPORTED),
        (("version", "serialized_exported_program.json"), PyTorchFormat.EXPORTED),
        (("archive_format", "data/aotinductor/model/a.wrapper.so"), PyTorchFormat.AOT_INDUCTOR),
        (("archive_format", "models/model.json", "data/aotinductor/model/a.so"), PyTorchFormat.AOT_INDUCTOR),
        (("data.pkl", "data/0"), PyTorchFormat.CHECKPOINT),
    ],
)
def test_archives_differ_by_their_names(tmp_path, names, kind):
    assert detect_format(archive(tmp_path / "model.pt", *names)) is kind


def test_old_checkpoints_are_recognised(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    assert detect_format(path) is PyTorchFormat.CHECKPOINT


def test_source_is_recognised_by_its_name(tmp_path):
    assert detect_format(tmp_path / "model.py") is PyTorchFormat.SOURCE


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK"])
def test_other_content_names_the_formats(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path} is not a model of PyTorch: expected a TorchScript archive")


def test_other_archives_are_no_models(tmp_path):
    assert "is not a model of PyTorch" in refusal(archive(tmp_path / "model.pt", "word/document.xml"))


def test_truncated_archives_with_inner_archives_are_recognised(tmp_path):
    """An archive of torch.export contains another one, whose end is not the end of the file."""
    inner = archive(tmp_path / "inner", "data.pkl").read_bytes()
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/models/model.json", b"{}")
        file.writestr("archive/data/sample_inputs/model.pt", inner)
    path.write_bytes(path.read_bytes()[:-30])
    assert "is truncated" in refusal(path)


def test_unreadable_file_names_the_reason(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "model.pt")
