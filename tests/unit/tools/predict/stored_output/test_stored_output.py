"""The rows of a stored output: how many segments there are, and what a killed process has left on this machine."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict.sinks.sink import Layout
from naiad.tools.predict.stored_output import stored_output
from naiad.tools.predict.stored_output.segment import Segment
from naiad.tools.predict.stored_output.stored_output import StoredOutput


def opened(monkeypatch: pytest.MonkeyPatch, folder: Path) -> StoredOutput:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    checkpoint: Any = SimpleNamespace(output="s3://b/out.jsonl", segments=[Segment(0, 5, 0, "0")], folder=None)
    return StoredOutput(checkpoint, Layout([], {}))


def test_segments_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stored_output, "MAX_SEGMENTS", 2)
    output = opened(monkeypatch, tmp_path)
    output.extend(Segment(5, 2, 1, "5"))
    with pytest.raises(InferError, match=r"s3://b/out\.jsonl has 2 segments, and more are not kept") as caught:
        output.extend(Segment(7, 1, 0, "7"))
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert (output.rows, output.failed_rows) == (7, 1)
    output.close()


def test_what_a_killed_job_has_left_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = tmp_path / "naiad-held-rows-killed"
    (left / "1").mkdir(parents=True)
    (left / "1" / "rows").write_bytes(b"1")
    output = opened(monkeypatch, tmp_path)
    assert not left.exists()
    output.close()
    assert not list(tmp_path.iterdir())
