"""Parts of files: each format can be read from any row on, and gives the same rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.tools.predict.files.input_files import find_files, open_source
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
