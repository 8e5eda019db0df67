"""What a file of PyTorch contains, read from the directory of the archive; nothing in the file is executed.

All formats of today are zip archives with one directory at the top:

    TorchScript     constants.pkl, code/, data.pkl
    torch.export    archive_format, models/*.json (serialized_exported_program.json before PyTorch 2.7)
    AOTInductor     archive_format, data/aotinductor/
    torch.save      data.pkl alone: a state dict, or a pickled module
"""

import enum
import os
import re
import zipfile
from pathlib import Path

from naiad.core.errors import InferError, invalid_argument

_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of `torch.save` before PyTorch 1.6, and with `_use_new_zipfile_serialization=False`."""


_START, _END, _END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
"""A zip archive ends with this record, without a comment in PyTorch's. Archives may contain others."""


class PyTorchFormat(enum.Enum):
    """A format of model files."""

    TORCHSCRIPT = "a TorchScript archive"
    EXPORTED = "a torch.export archive"
    AOT_INDUCTOR = "an AOTInductor package"
    CHECKPOINT = "a file of torch.save (a state dict or a pickled module)"
    SOURCE = "Python source"


def detect_format(path: Path) -> PyTorchFormat:
    """Return what is in `path`. Raises InferError(INVALID_ARG) for a truncated file and for another format."""
    if path.suffix == ".py":
        return PyTorchFormat.SOURCE
    try:
        with path.open("rb") as file:
            start = file.read(len(_LEGACY_MAGIC))
            file.seek(-min(path.stat().st_size, _END_BYTES), os.SEEK_END)
            is_whole = file.read(4) == _END
        if start == _LEGACY_MAGIC:
            return PyTorchFormat.CHECKPOINT
        if not start.startswith(_START):
            raise _unknown(path)
        if not is_whole:
            raise _unusable(path, "is truncated: the directory at its end is missing; copy it again")
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise _unusable(path, f"cannot be read: {error}") from error
    return _format_of(path, names)


def _format_of(path: Path, names: set[str]) -> PyTorchFormat:
    if any(name.startswith("data/aotinductor/") for name in names):
        return PyTorchFormat.AOT_INDUCTOR
    if any(re.fullmatch(r"models/[^/]+\.json|serialized_exported_program\.json", name) for name in names):
        return PyTorchFormat.EXPORTED
    if "constants.pkl" in names:
        return PyTorchFormat.TORCHSCRIPT
    if "data.pkl" in names:
        return PyTorchFormat.CHECKPOINT
    raise _unknown(path)


def _unknown(path: Path) -> InferError:
    known = ", ".join(
        known.value for known in PyTorchFormat if known not in (PyTorchFormat.CHECKPOINT, PyTorchFormat.SOURCE)
    )
    return _unusable(path, f"is not a model of PyTorch: expected {known}, or a model.py with an nn.Module")


def _unusable(path: Path, problem: str) -> InferError:
    return invalid_argument(f"{path} {problem}")
