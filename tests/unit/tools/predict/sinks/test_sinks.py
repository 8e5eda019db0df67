"""Outputs to files: every format, failed rows, numbers that are no JSON, strings that are no UTF-8."""

import csv
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.tools.predict.files.row_formats import check_suffix, open_sink
from naiad.tools.predict.rows.chunk import Chunk, ChunkResult
from naiad.tools.predict.rows.row_outputs import OutputBlock, to_block
from naiad.tools.predict.sinks.sink import Layout, PartFile, Sink
from support.batch_parts import signature

OUTPUTS = {
    "Y": (DataType.FP32, (2,)),
    "LABEL": (DataType.BYTES, (1,)),
    "N": (DataType.INT64, ()),
    "IMAGE": (DataType.UINT8, (2, 2)),
    "VARYING": (DataType.FP32, (-1,)),
}
ARRAYS = {
    "Y": np.array([[0.1, 2], [3, 4], [5, 6]], np.float32),
    "LABEL": np.array([[b"a,b"], [b'"x"'], [b""]], object),
    "N": np.array([1, 2, 3]),
    "IMAGE": np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
    "VARYING": np.array([[1], [2], [3]], np.float32),
}


def block(arrays, *, failures=(), keys=None, first: int = 5) -> OutputBlock:
    """Return one block of three rows; a request for the first row, and one for all other rows that succeed."""
    good = [row for row in range(3) if row not in failures]
    results = [
        ChunkResult(offsets, {name: array[offsets] for name, array in arrays.items()})
        for offsets in (good[1:], good[:1])
        if offsets
    ]
    chunk = Chunk("f", 0, 3, keys or {}, [], dict.fromkeys(failures, "bad"), results=results)
    return to_block(chunk, first, list(arrays))


def written(folder: Path, suffix: str, outputs, *blocks: OutputBlock, keys=()) -> Path:
    model = signature({}, outputs)
    folder.mkdir(exist_ok=True)
    sink: Sink = open_sink(f"out{suffix}", folder, {}, Layout(keys, model.outputs))
    for each in blocks:
        assert not sink.problems(each)
        sink.append(each)
    sink.sync()
    path = sink.finish()
    sink.close()
    return path


def test_json_lines_have_an_object_per_row(tmp_path: Path) -> None:
    path = written(tmp_path, ".jsonl", OUTPUTS, block(ARRAYS, failures=[1], keys={"id": ["p", 7, None]}), keys=["id"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0] == {
        "row": 5,
        "id": "p",
        "Y": [0.1, 2],
        "LABEL": "a,b",
        "N": 1,
        "IMAGE": [[0, 1], [2, 3]],
        "VARYING": [1],
    }
    assert rows[1] == {"row": 6, "id": 7, "Y": None, "LABEL": None, "N": None, "IMAGE": None, "VARYING": None}
    assert [row["LABEL"] for row in rows] == ["a,b", None, ""]


def test_numbers_beyond_json_are_bare(tmp_path: Path) -> None:
    arrays = {"Y": np.array([[0.1, np.nan], [np.inf, 1], [-np.inf, 2]], np.float32)}
    text = written(tmp_path, ".jsonl", {"Y": OUTPUTS["Y"]}, block(arrays)).read_text()
    assert '"Y":[0.1, NaN]' in text
    assert '"Y":[Infinity, 1.0]' in text
    cells = written(tmp_path / "c", ".csv", {"Y": OUTPUTS["Y"]}, block(arrays)).read_text().splitlines()
    assert cells == ["row,Y_0,Y_1", "5,0.1,nan", "6,inf,1.0", "7,-inf,2.0"]


def test_bytes_without_utf8_are_base64(tmp_path: Path) -> None:
    arrays = {"LABEL": np.array([[b"\xff"], [b"a"], [b"b"]], object)}
    path = written(tmp_path, ".jsonl", {"LABEL": OUTPUTS["LABEL"]}, block(arrays))
    assert json.loads(path.read_text().splitlines()[0])["LABEL"] == {"b64": "/w=="}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("kind", [DataType.FP16, DataType.BF16, DataType.BOOL, DataType.INT8, DataType.FP64])
def test_all_datatypes_have_texts(tmp_path: Path, suffix: str, kind: DataType) -> None:
    arrays = {"Y": np.array([[0, 1], [1, 1], [1, 0]]).astype(kind.numpy)}
    text = written(tmp_path, suffix, {"Y": (kind, (2,))}, block(arrays)).read_text()
    last = json.loads(text.splitlines()[-1])["Y"] if suffix == ".jsonl" else text.splitlines()[-1].split(",")[1:]
    assert [float(json.loads(str(each).lower())) for each in last] == [1, 0]


def test_csv_has_a_column_per_element(tmp_path: Path) -> None:
    path = written(tmp_path, ".csv", OUTPUTS, block(ARRAYS, failures=[1], keys={"id": ["p", 7, None]}), keys=["id"])
    head, *rows = list(csv.reader(path.open(newline="")))
    assert head == ["row", "id", "Y_0", "Y_1", "LABEL", "N", *(f"IMAGE_{i}" for i in range(4)), "VARYING"]
    assert rows[0] == ["5", "p", "0.1", "2.0", "a,b", "1", "0", "1", "2", "3", "[1.0]"]
    assert rows[1] == ["6", "7"] + [""] * 9
    assert rows[2][4] == ""
    assert path.read_text().splitlines()[3].startswith('7,,5.0,6.0,"",3')


def test_csv_text_may_have_lines_and_quotes(tmp_path: Path) -> None:
    arrays = {"LABEL": np.array([[b'a "b"\nc'], [b" x"], [b"\xff"]], object)}
    path = written(tmp_path, ".csv", {"LABEL": OUTPUTS["LABEL"]}, block(arrays))
    rows = list(csv.reader(path.open(newline="", errors="surrogateescape")))
    assert [row[1] for row in rows[1:]] == ['a "b"\nc', " x", "\udcff"]


def test_archives_keep_shapes_and_mark_failures(tmp_path: Path) -> None:
    outputs = {name: kind for name, kind in OUTPUTS.items() if name != "LABEL"}
    arrays = {name: ARRAYS[name] for name in outputs}
    path = written(tmp_path, ".npz", outputs, block(arrays), block(arrays, failures=[0], first=8))
    with np.load(path) as found:
        assert found["row"].tolist() == [5, 6, 7, 8, 9, 10]
        assert found["ok"].tolist() == [True, True, True, False, True, True]
        assert found["Y"].dtype == np.float32
        assert np.isnan(found["Y"][3]).all()
        assert found["Y"][4:].tolist() == [[3, 4], [5, 6]]
        assert found["N"].tolist() == [1, 2, 3, 0, 2, 3]
        assert found["IMAGE"].shape == (6, 2, 2)
        assert found["VARYING"].tolist() == [1, 2, 3, 2, 3]
        assert found["VARYING.shapes"].tolist() == [[1], [1], [1], [0], [1], [1]]


def test_equal_shapes_make_one_array(tmp_path: Path) -> None:
    arrays = {"VARYING": ARRAYS["VARYING"].astype(ml_dtypes.bfloat16)}
    path = written(tmp_path, ".npz", {"VARYING": (DataType.BF16, (-1,))}, block(arrays))
    with np.load(path) as found:
        assert found["VARYING"].tolist() == [[1], [2], [3]]


def test_rows_of_different_shapes_are_kept(tmp_path: Path) -> None:
    rows = [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)]
    results = [ChunkResult([at], {"VARYING": row[None]}) for at, row in zip((0, 2), rows, strict=True)]
    chunk = Chunk("f", 0, 3, {}, [], {1: "bad"}, results=results)
    ragged = to_block(chunk, 0, ["VARYING"])
    outputs = {"VARYING": OUTPUTS["VARYING"]}
    lines = written(tmp_path, ".jsonl", outputs, ragged).read_text().splitlines()
    assert [json.loads(line)["VARYING"] for line in lines] == [[1, 2], None, [3]]
    with np.load(written(tmp_path / "z", ".npz", outputs, ragged)) as found:
        assert found["VARYING"].tolist() == [1, 2, 3]
        assert found["VARYING.shapes"].tolist() == [[2], [0], [1]]
    lines = written(tmp_path / "c", ".csv", outputs, ragged).read_text().splitlines()
    assert lines == ["row,VARYING", '0,"[1.0,2.0]"', "1,", "2,[3.0]"]


def test_strings_do_not_fit_archives(tmp_path: Path) -> None:
    with pytest.raises(InferError, match="'LABEL' is BYTES"):
        written(tmp_path, ".npz", OUTPUTS)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".npz", ".parquet"])
def test_no_rows_make_a_complete_file(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = written(tmp_path, suffix, {"Y": OUTPUTS["Y"], "V": OUTPUTS["VARYING"]})
    assert path.exists()
    if suffix == ".npz":
        with np.load(path) as found:
            assert found["Y"].shape == (0, 2)


def test_parquet_has_types_and_nulls(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parts = [block(ARRAYS, failures=[1], keys={"id": ["p", 7, None]}), block(ARRAYS, keys={"id": ["p", 7, None]})]
    table = parquet.read_table(written(tmp_path, ".parquet", OUTPUTS, *parts, keys=["id"]))
    assert table["id"].to_pylist() == ["p", "7", None] * 2
    assert table["IMAGE"].to_pylist()[:3] == [[[0, 1], [2, 3]], None, [[8, 9], [10, 11]]]
    assert table["LABEL"].to_pylist()[:4] == ["a,b", None, "", "a,b"]
    assert table["N"].to_pylist() == [1, None, 3, 1, 2, 3]
    assert table["VARYING"].to_pylist()[1:3] == [None, [3]]
    assert str(table.schema.field("Y").type) == "list<element: float>"


def test_parquet_rejects_bytes_without_utf8(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    model = signature({}, {"LABEL": OUTPUTS["LABEL"]})
    sink = open_sink("out.parquet", tmp_path, {}, Layout([], model.outputs))
    problems = sink.problems(block({"LABEL": np.array([[b"\xff"], [b"a"], [b"b"]], object)}))
    sink.close()
    assert list(problems) == [0]
    assert "UTF-8" in problems[0]


def test_row_numbers_never_hide_an_output(tmp_path: Path) -> None:
    outputs = {"row": OUTPUTS["N"], "ok": OUTPUTS["N"]}
    arrays = {"row": ARRAYS["N"], "ok": ARRAYS["N"]}
    with np.load(written(tmp_path, ".npz", outputs, block(arrays))) as found:
        assert sorted(found) == ["_ok", "_row", "ok", "row"]
        assert found["row"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("keys", [["N"], ["id", "id"], ["Y_0"]])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, suffix: str, keys: list[str]) -> None:
    outputs = {name: OUTPUTS[name] for name in ("Y", "N")}
    if keys == ["Y_0"] and suffix != ".csv":
        assert written(tmp_path, suffix, outputs, keys=keys).exists()
        return
    with pytest.raises(InferError, match=f"the output would have 2 columns with the name '{keys[0]}'; choose others"):
        written(tmp_path, suffix, outputs, keys=keys)
    assert not list(tmp_path.iterdir())


def test_unknown_suffixes_are_rejected() -> None:
    with pytest.raises(InferError, match=r"suffix '\.txt'"):
        check_suffix("out.txt")


def test_a_full_disk_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "rows").symlink_to("/dev/full")
    part = PartFile(tmp_path, "rows", {})
    part.write(b"x")
    with pytest.raises(OSError, match=r"No space left on device: '.*rows'"):
        part.sync()
    with pytest.raises(OSError, match="No space left"):
        part.close()
