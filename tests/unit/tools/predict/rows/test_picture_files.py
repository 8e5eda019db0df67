"""Files of pictures that cannot be read: a mistake of the row, or an outage, which ends the job."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.stored_object import StoreError
from naiad.tools.predict.rows.outage import is_outage, is_outage_of_file
from naiad.tools.predict.rows.picture_files import PictureFiles


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EIO, OSError), (errno.ESTALE, OSError), (errno.EMFILE, OSError), (errno.EACCES, InferError)],
)
def test_an_outage_is_no_mistake_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    (tmp_path / "a.png").write_bytes(b"")

    def refuse(path: Path, *arguments: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(expected, match=os.strerror(number)):
        PictureFiles(tmp_path).read("a.png")


def test_errors_of_a_store_are_outages() -> None:
    assert is_outage(StoreError(ErrorCode.PERMISSION_DENIED, "access denied"))
    assert not is_outage(InferError(ErrorCode.INVALID_ARG, "no array"))
    assert not is_outage(OSError(errno.EIO, "the file ends too early")), "rows of a known number may be damaged"
    assert is_outage_of_file(OSError(errno.EIO, "Input/output error"))
