"""Parts of files: each format can be read from any row on, and gives the same rows."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict.files import row_reader
from naiad.tools.predict.files.input_files import InputFiles, find_files, open_source
from naiad.tools.predict.files.row_reader import Reader
from naiad.tools.predict.prediction_job import PredictJob
from support.batch_parts import chunks, signature

MODEL = signature({"X": (DataType.FP32, (2,))})
ROWS = 23


def write(path: Path) -> None:
    rows = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez_compressed(path, X=rows)
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"X": row, "name": "\u00fc"}, ensure_ascii=False) for row in rows.tolist()]
        path.write_text("\ufeff" + "\n".join([*lines[:5], "", *lines[5:]]))
    elif path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table({"X_0": rows[:, 0], "X_1": rows[:, 1]}), path, row_group_size=7)
    else:
        texts = [f'{a},{b},"\u00fc, \n""x"' if a % 8 == 0 else f"{a},{b},\u00fc" for a, b in rows]
        short = ["only one cell", *texts[:4], "", *texts[4:]]
        path.write_bytes("\r\n".join(['\ufeff"X_0",X_1,note', *short]).encode() + b"\n\n3,4,\xff\n")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_each_part_has_its_rows(tmp_path: Path, suffix: str, size: int) -> None:
    path = tmp_path / f"in{suffix}"
    write(path)
    whole = chunks(path, MODEL, rows=1)
    job = PredictJob("models", "m", [str(path)], "out.jsonl")
    reader = Reader(find_files(job.inputs, []), job, MODEL)
    found = []
    while (span := reader.pass_over(size)) is not None:
        assert span.first == len(found)
        source = open_source(span.files, job, MODEL)
        source.seek(span.position, span.first)
        part = []
        while len(part) < span.count:
            rows = source.read(1, 1 << 20)
            part.append((rows.first, {name: np.asarray(each).tolist() for name, each in rows.columns.items()}))
        source.close()
        found += part
        assert span.done_bytes <= reader.total_bytes == span.file_bytes
    assert reader.done_bytes == path.stat().st_size
    assert [first for first, _ in found] == [chunk.first for chunk in whole] == list(range(len(whole)))
    good = [chunk for chunk in whole if not chunk.failures]
    assert [found[chunk.first][1]["X"] for chunk in good] == [chunk.groups[0].arrays["X"].tolist() for chunk in good]
    assert len(good) == ROWS + (suffix == ".csv")


def test_rows_may_be_passed_over_after_a_skip(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(tmp_path / name)
    job = PredictJob("models", "m", [f"{tmp_path}/*.csv"], "out.jsonl")
    reader = Reader(find_files(job.inputs, []), job, MODEL)
    rows = ROWS + 2
    assert reader.skip(rows + 4) == rows + 4
    span = reader.pass_over(1000)
    assert span is not None
    assert (span.files.path.name, span.first, span.count) == ("b.csv", 4, rows - 4)
    assert reader.pass_over(1) is None


OUTAGES = [
    InferError(ErrorCode.UNAVAILABLE, "the store is away"),
    InferError(ErrorCode.DEADLINE_EXCEEDED, "the store is slow"),
    *(OSError(number, os.strerror(number)) for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE)),
]


@pytest.mark.parametrize("error", OUTAGES, ids=str)
@pytest.mark.parametrize("place", range(3))
def test_outage_sets_no_file_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, place: int
) -> None:
    names = ["a.csv", "b.csv", "c.csv"]
    for name in names:
        (tmp_path / name).write_text("X_0,X_1\n1,2\n")

    def open_or_fail(files: InputFiles, *rest: Any) -> object:
        if files.path.name == names[place]:
            raise error
        return open_source(files, *rest)

    monkeypatch.setattr(row_reader, "open_source", open_or_fail)
    job = PredictJob("models", "m", [f"{tmp_path}/*.csv"], "out.jsonl")
    with pytest.raises(type(error), match=str(error).partition("]")[2].strip() or str(error)):
        Reader(find_files(job.inputs, []), job, MODEL)
    error = PermissionError(errno.EACCES, "Permission denied")
    if place < 2:
        reader = Reader(find_files(job.inputs, []), job, MODEL)
        assert list(reader.set_aside) == [str(tmp_path / names[place])]
        assert reader.unread == [tmp_path / names[place]]


BYTES = signature({"X": (DataType.BYTES, (1,))})


def test_missing_file_of_a_folder_fails_alone(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        for name in "12":
            (folder / name).write_text(f"{folder.name}{name}")
    job = PredictJob("models", "m", list(map(str, folders)), "out.jsonl")
    files = find_files(job.inputs, [])
    (folders[0] / "1").unlink()
    reader = Reader(files, job, BYTES)
    assert (reader.set_aside, reader.unread) == ({}, [])
    first, second = reader.read(8, 1 << 20), reader.read(8, 1 << 20)
    assert first is not None
    assert second is not None
    assert (first.count, list(first.failures), second.count, second.failures) == (2, [0], 2, {})
    assert "No such file" in first.failures[0]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_outage_in_a_folder_makes_no_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "1").write_text("text")
    job = PredictJob("models", "m", [str(tmp_path)], "out.jsonl")
    reader = Reader(find_files(job.inputs, []), job, BYTES)
    monkeypatch.setattr(Path, "read_bytes", lambda path: refuse_with(OSError(number, os.strerror(number))))
    with pytest.raises(OSError, match=os.strerror(number)):
        reader.read(8, 1 << 20)


def refuse_with(error: Exception) -> bytes:
    raise error
