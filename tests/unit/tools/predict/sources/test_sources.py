"""Files to tensors: every format, rows that do not fit, and files that cannot."""

import csv
import json
from base64 import b64encode
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict.sources import bounded_lines, csv_files, folder, json_lines, numpy_files
from support.batch_parts import chunks, reasons, signature, values

PAIR = {"A": (DataType.FP32, (2,)), "B": (DataType.INT64, (1,))}
TEXT = {"TEXT": (DataType.BYTES, (1,))}


def save(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines(path: Path, *rows: object) -> Path:
    return save(path, "".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("save_archive", [np.savez, np.savez_compressed])
def test_archives_have_an_array_per_input(tmp_path: Path, save_archive) -> None:
    a, b = np.arange(14, dtype=np.float32).reshape(7, 2), np.arange(7)
    save_archive(tmp_path / "in.npz", A=a, B=b, other=a)
    for skip in (0, 2, 7):
        found = chunks(tmp_path / "in.npz", signature(PAIR), skip=skip)
        assert values(found, "A") == a[skip:].tolist()
        assert values(found, "B") == b[skip:, None].tolist()
    assert [(chunk.first, chunk.count) for chunk in chunks(tmp_path / "in.npz", signature(PAIR))] == [
        (0, 3),
        (3, 3),
        (6, 1),
    ]


def test_an_npy_file_is_the_only_input(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float64).reshape(6, 2)
    np.save(tmp_path / "in.npy", rows)
    found = chunks(tmp_path / "in.npy", signature({"A": PAIR["A"]}), rows=4)
    assert values(found, "A") == rows.tolist()
    assert found[0].groups[0].arrays["A"].dtype == np.float32
    assert found[-1].done_bytes == (tmp_path / "in.npy").stat().st_size


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 5), np.float32), "expected shape [2]"),
        (np.zeros((3, 2), "U4"), "expected values of FP32"),
        (np.zeros((3, 2), object), "Python objects"),
        (np.asfortranarray(np.zeros((3, 2), np.float32)), "Fortran order"),
        (np.float32(1), "a single value"),
    ],
)
def test_arrays_that_cannot_fit_are_errors(tmp_path: Path, array, reason: str) -> None:
    np.save(tmp_path / "in.npy", array)
    with pytest.raises(InferError) as caught:
        chunks(tmp_path / "in.npy", signature({"A": PAIR["A"]}))
    assert reason in caught.value.message
    assert "in.npy" in caught.value.message


def test_values_out_of_range_fail_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.array([[1], [300], [3]]))
    found = chunks(tmp_path / "in.npy", signature({"A": (DataType.UINT8, (1,))}))
    assert values(found, "A") == [[1], None, [3]]
    assert "out of the range of UINT8" in reasons(found)[1]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rows_of_a_truncated_array_fail(tmp_path: Path, rows: int) -> None:
    np.save(tmp_path / "in.npy", np.zeros((7, 2), np.float32))
    path = tmp_path / "in.npy"
    save(path, path.read_bytes()[:-11])
    found = chunks(path, signature({"A": PAIR["A"]}), rows=rows)
    reason = (
        "rows to 6 of in.npy: not readable as an .npy file: the file ends within the array; set aside after 3 tries"
    )
    assert reasons(found) == dict.fromkeys([5, 6], reason)
    assert values(found, "A") == [[0, 0]] * 5 + [None] * 2


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("start", [0, 12, 17, 24])
def test_rows_of_a_damaged_row_group_fail(tmp_path: Path, rows: int, start: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "in.parquet"
    table = arrow.table({"id": [f"r{row}" for row in range(30)], "A": arrow.array([[row, 1.0] for row in range(30)])})
    parquet.write_table(table, path, row_group_size=10, compression="snappy", use_dictionary=False)
    content = bytearray(path.read_bytes())
    place = parquet.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)
    found = chunks(path, signature({"A": PAIR["A"]}), rows=rows, skip=start, keys=["id"])
    failed = reasons(found)
    assert sorted(failed) == list(range(max(10, start), 20 if start < 20 else 10))
    assert all(each.endswith("set aside after 3 tries") for each in failed.values())
    wanted = [None if 10 <= row < 20 else row for row in range(start, 30)]
    assert values(found, "A") == [None if row is None else [row, 1] for row in wanted]
    found_keys = [key for chunk in found for key in chunk.keys["id"]]
    assert found_keys == [None if row is None else f"r{row}" for row in wanted]


def test_a_read_that_fails_once_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "in.npy", np.zeros((7, 2), np.float32))
    real, calls = numpy_files.NumpySource.read, []

    def read(source: numpy_files.NumpySource, max_rows: int, max_bytes: int) -> object:
        calls.append(max_rows)
        if len(calls) in (2, 3):
            raise OSError(5, "Input/output error")
        return real(source, max_rows, max_bytes)

    monkeypatch.setattr(numpy_files.NumpySource, "read", read)
    found = chunks(tmp_path / "in.npy", signature({"A": PAIR["A"]}), rows=3)
    assert reasons(found) == {}
    assert [chunk.count for chunk in found] == [3, 3, 1]


def test_arrays_of_an_archive_have_equal_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", A=np.zeros((3, 2), np.float32), B=np.zeros(4, np.int64))
    with pytest.raises(InferError, match="'A' has 3, 'B' has 4"):
        chunks(tmp_path / "in.npz", signature(PAIR))


def test_json_lines_have_values_lists_and_base64(tmp_path: Path) -> None:
    raw = np.array([5, 6], np.float32).tobytes()
    path = lines(
        tmp_path / "in.jsonl",
        {"A": [1, 2.5], "B": 7, "more": {}},
        {"A": {"b64": b64encode(raw).decode()}, "B": [8]},
        {"A": {"content": [3, 4], "shape": [2]}, "B": 9},
    )
    found = chunks(path, signature(PAIR))
    assert values(found, "A") == [[1, 2.5], [5, 6], [3, 4]]
    assert values(found, "B") == [[7], [8], [9]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"A": [1, 2]', "not a JSON document"),
        ("[1, 2]", "got a list"),
        ('{"A": [1, 2]}', "input 'B' is missing"),
        ('{"A": [1, 2, 3], "B": 1}', "expected shape [2]"),
        ('{"A": [1, "2"], "B": 1}', "is '2'; expected a number"),
        ('{"A": [1, 2], "B": 1.5}', "expected an integer for INT64"),
        ('{"A": [1, null], "B": 1}', "is None; expected a number"),
        ('{"A": [[1, 2]], "B": 1}', "expected shape [2]"),
        ('{"A": {"b64": "?"}, "B": 1}', "not base64"),
        ('{"A": {"content": [1, 2], "shape": [1]}, "B": 1}', "expected shape [2]"),
        ('{"A": [1, 2], "B": 99999999999999999999}', "expected an integer for INT64"),
    ],
)
def test_bad_lines_fail_alone(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"A": [1, 2], "B": 3}'
    found = chunks(save(tmp_path / "in.jsonl", f"{good}\n\n{line}\n{good}\n"), signature(PAIR), rows=9)
    assert values(found, "A") == [[1, 2], None, [1, 2]]
    assert list(reasons(found)) == [1]
    assert reason in reasons(found)[1]


def test_long_lines_fail_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 40)
    text = f'{{"TEXT": "a"}}\n{{"TEXT": "{"x" * 200}"}}\n{{"TEXT": "b"}}\n'
    found = chunks(save(tmp_path / "in.jsonl", text), signature(TEXT))
    assert values(found, "TEXT") == [[b"a"], None, [b"b"]]
    assert "longer than" in reasons(found)[1]


def test_nan_and_infinity_are_numbers(tmp_path: Path) -> None:
    found = chunks(save(tmp_path / "in.jsonl", '{"A": [NaN, -Infinity], "B": 1}\n'), signature(PAIR))
    assert np.isnan(values(found, "A")[0][0])
    assert values(found, "A")[0][1] == -np.inf


def test_rows_are_grouped_by_shape(tmp_path: Path) -> None:
    model = signature({"IDS": (DataType.INT64, (-1,))})
    path = lines(tmp_path / "in.jsonl", *({"IDS": [row] * size} for row, size in enumerate((2, 1, 2, 3, 1))))
    (chunk,) = chunks(path, model, rows=9)
    assert [list(group.offsets) for group in chunk.groups] == [[0, 2], [1, 4], [3]]
    assert values([chunk], "IDS") == [[0, 0], [1], [2, 2], [3, 3, 3], [4]]


def test_optional_inputs_may_be_missing(tmp_path: Path) -> None:
    model = signature(PAIR)
    inputs = dict(model.inputs)
    inputs["B"] = replace(inputs["B"], is_optional=True)
    model = replace(model, inputs=inputs)
    path = lines(tmp_path / "in.jsonl", {"A": [1, 2]}, {"A": [3, 4], "B": 5})
    found = chunks(path, model)
    assert values(found, "A") == [[1, 2], [3, 4]]
    assert values(found, "B") == [None, [5]]
    assert not reasons(found)


def test_csv_cells_follow_the_datatypes(tmp_path: Path) -> None:
    text = '﻿id,A,B\nx,"[1, 2.5]",7\ny,"[3,4]",\nz,"[5,6]",8\n'
    found = chunks(save(tmp_path / "in.csv", text), signature(PAIR), keys=("id",), rows=9)
    assert values(found, "A") == [[1, 2.5], None, [5, 6]]
    assert values(found, "B") == [[7], None, [8]]
    assert "input 'B' is missing" in reasons(found)[1]
    assert found[0].keys == {"id": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("header", "columns"), [("A_0,A_1,B", {}), ("left,right,B", {"left": "A", "right": "A"}), ("B,A_1,A_0", {})]
)
def test_csv_columns_are_elements(tmp_path: Path, header: str, columns) -> None:
    cells = dict(zip(header.split(","), ("1", "2", "3"), strict=True))
    expected = [[float(cells[name]) for name in (columns or ("A_0", "A_1"))]]
    found = chunks(save(tmp_path / "in.csv", f"{header}\n1,2,3\n"), signature(PAIR), columns=columns)
    assert values(found, "A") == expected
    assert values(found, "B") == [[int(cells["B"])]]


def test_csv_columns_may_be_the_only_input(tmp_path: Path) -> None:
    model = signature({"X": (DataType.FP32, (3,))})
    found = chunks(save(tmp_path / "in.csv", "id,a,b,c\n7,1,2,3\n8,4,x,6\n"), model, keys=("id",))
    assert values(found, "X") == [[1, 2, 3], None]
    assert "is 'x'; expected a number" in reasons(found)[1]


def test_csv_text_reaches_the_model_unchanged(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", b'TEXT\n"a ""b"",\nc"\n\xff\xfe\n[1]\n')
    assert values(chunks(path, signature(TEXT)), "TEXT") == [[b'a "b",\nc'], [b"\xff\xfe"], [b"[1]"]]


def test_csv_keys_that_are_no_text_fail(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", b"id,A\n\xe9,1\n\xe8,2\n\xc3\xa9,3\nb,4\n")
    (found,) = chunks(path, signature({"A": (DataType.FP32, (1,))}), rows=9, keys=["id"])
    assert found.keys["id"][2:] == ["\xe9", "b"]
    assert list(reasons([found])) == [0, 1]
    assert "key 'id' is no UTF-8" in reasons([found])[0]


def test_csv_booleans_are_words_or_digits(tmp_path: Path) -> None:
    path = save(tmp_path / "in.csv", "A\ntrue\n0\nFALSE\nyes\n")
    found = chunks(path, signature({"A": (DataType.BOOL, (1,))}), rows=9)
    assert values(found, "A") == [[True], [False], [False], None]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.FP64])
def test_csv_digits_beyond_any_float_are_no_infinity(tmp_path: Path, width: int, datatype: DataType) -> None:
    rows = ["1e400", "-1e999", "9" * 400, "inf", "-Infinity", "2"]
    lines = [",".join([f"A_{index}" for index in range(width)]), *(",".join([row] * width) for row in rows)]
    found = chunks(save(tmp_path / "in.csv", "\n".join(lines)), signature({"A": (datatype, (width,))}), rows=9)
    assert values(found, "A") == [None, None, None, [np.inf] * width, [-np.inf] * width, [2.0] * width]


def test_other_json_numbers_are_no_booleans(tmp_path: Path) -> None:
    cells = ("true", "0", "1", "2", "-1", "[1]")
    path = save(tmp_path / "in.jsonl", "\n".join([f'{{"A": {each}}}' for each in cells]))
    found = chunks(path, signature({"A": (DataType.BOOL, (1,))}), rows=9)
    assert values(found, "A") == [[True], [False], [True], None, None, [True]]
    assert "value 0 is 2; expected true, false, 1 or 0" in reasons(found)[3]


def test_csv_rows_of_another_width_fail(tmp_path: Path) -> None:
    found = chunks(save(tmp_path / "in.csv", "TEXT,n\na,1\nb\nc,2\n"), signature(TEXT), skip=1)
    assert values(found, "TEXT") == [None, [b"c"]]
    assert "expected 2 cells" in reasons(found)[1]


@pytest.mark.parametrize(
    ("text", "lines"), [('TEXT\na\n"b\nc\nd\n', ", after 3 lines"), ('n,TEXT\n1,a\n2,"b', "cell")]
)
def test_csv_quote_without_end_is_a_failed_row(tmp_path: Path, text: str, lines: str) -> None:
    path = save(tmp_path / "in.csv", text)
    for skip in (0, 1):
        found = chunks(path, signature(TEXT), skip=skip)
        assert values(found, "TEXT") == [[b"a"], None][skip:]
        assert "the file ends within a quoted cell" in reasons(found)[1]
        assert lines in reasons(found)[1]


def test_csv_long_cell_names_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = csv.field_size_limit()
    monkeypatch.setattr(csv_files, "_MAX_CELL_CHARACTERS", 100)
    try:
        csv.field_size_limit(100)
        found = chunks(save(tmp_path / "in.csv", 'TEXT\n"' + "word\n" * 30 + "b\n"), signature(TEXT), rows=99)
    finally:
        csv.field_size_limit(limit)
    assert "field larger than field limit (100), after 21 lines; a quote" in reasons(found)[0]
    assert values(found, "TEXT")[1:] == [[b"word"]] * 9 + [[b"b"]]


@pytest.mark.parametrize("kind", [DataType.INT32, DataType.FP32])
def test_csv_numbers_are_ascii_digits(tmp_path: Path, kind: DataType) -> None:
    found = chunks(
        save(tmp_path / "in.csv", "A\n1_000\n\uff11\uff12\n 7 \n+3\n"), signature({"A": (kind, (1,))}), rows=9
    )
    assert values(found, "A") == [None, None, [7], [3]]
    assert "value 0 is '1_000'; expected " in reasons(found)[0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("names", [["A_0", "A_1", "A_1", "B"], ["A_0", "A_1", "B", "id", "id"]])
def test_columns_of_one_name_are_refused(tmp_path: Path, suffix: str, names: list[str]) -> None:
    path = tmp_path / f"in.{suffix}"
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    save(tmp_path / "in.csv", f"{','.join(names)}\n{','.join('1' for _ in names)}\n")
    parquet.write_table(pa.table([[1]] * len(names), names=names), tmp_path / "in.parquet")
    with pytest.raises(InferError, match=r"in\.\w+: 2 columns have the name '(A_1|id)', and one is needed"):
        chunks(path, signature(PAIR), keys=("id",) if "id" in names else ())
    if "id" in names:
        assert values(chunks(path, signature(PAIR)), "B") == [[1]]


def test_large_unsigned_integers_stay_exact(tmp_path: Path) -> None:
    found = chunks(save(tmp_path / "in.csv", f"A\n{2**64 - 1}\n1\n"), signature({"A": (DataType.UINT64, (1,))}))
    assert values(found, "A") == [[2**64 - 1], [1]]


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_missing_columns_list_the_columns_found(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / "in.csv", "A,other\n1,2\n")
    np.savez(tmp_path / "in.npz", A=np.zeros((1, 2)), other=np.zeros(1))
    with pytest.raises(InferError, match=r"no column 'B'.*'A', 'other'.*--column"):
        chunks(tmp_path / f"in.{suffix}", signature(PAIR))


def test_missing_keys_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InferError, match="no column 'id', which --key names"):
        chunks(save(tmp_path / "in.csv", "TEXT\na\n"), signature(TEXT), keys=("id",))


def test_parquet_columns_are_numbers_lists_and_text(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table(
        {
            "A": pa.array([[1, 2], [3, 4], None, [5], [6, 7]], pa.list_(pa.float64())),
            "B": pa.array([1, 2, 3, 4, 5], pa.int32()),
            "TEXT": ["a", "b", "c", "d", None],
            "id": ["p", "q", "r", "s", "t"],
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    found = chunks(tmp_path / "in.parquet", signature({**PAIR, **TEXT}), keys=("id",), rows=2)
    assert values(found, "A") == [[1, 2], [3, 4], None, None, None]
    assert values(found, "B") == [[1], [2], None, None, None]
    assert [key for chunk in found for key in chunk.keys["id"]] == ["p", "q", "r", "s", "t"]
    assert sorted(reasons(found)) == [2, 3, 4]
    for skip in range(6):
        rest = chunks(tmp_path / "in.parquet", signature({"B": PAIR["B"]}), skip=skip)
        assert values(rest, "B") == [[row] for row in range(skip + 1, 6)]


def test_files_of_a_folder_are_rows(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", ".hidden"):
        save(tmp_path / name, name)
    found = chunks(tmp_path, signature(TEXT))
    assert values(found, "TEXT") == [[b"a.jpg"], [b"b.png"]]
    assert found[0].keys == {"file": ["a.jpg", "b.png"]}
    assert values(chunks(tmp_path / "*.png", signature(TEXT)), "TEXT") == [[b"b.png"]]
    pixels = signature({"P": (DataType.UINT8, (-1,))})
    assert values(chunks(tmp_path / "*.png", pixels), "P") == [list(b"b.png")]


def test_large_files_of_a_folder_fail(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folder, "MAX_FILE_BYTES", 3)
    save(tmp_path / "a", "1234")
    save(tmp_path / "b", "12")
    found = chunks(tmp_path, signature(TEXT))
    assert values(found, "TEXT") == [None, [b"12"]]
    assert list(reasons(found)) == [0]


def test_folders_need_an_input_of_bytes(tmp_path: Path) -> None:
    save(tmp_path / "a", "1")
    with pytest.raises(InferError, match="FP32"):
        chunks(tmp_path, signature({"A": PAIR["A"]}))
    with pytest.raises(InferError, match="needs 'A', 'B'"):
        chunks(tmp_path, signature(PAIR))


def test_patterns_read_files_by_name(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        lines(tmp_path / f"{number}.jsonl", {"TEXT": str(number)}, {"TEXT": f"{number}b"})
    model = signature(TEXT)
    found = chunks(tmp_path / "?.jsonl", model, rows=9)
    assert values(found, "TEXT") == [[text] for text in (b"0", b"0b", b"1", b"1b", b"2", b"2b")]
    assert [chunk.file for chunk in found] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert values(chunks(tmp_path / "?.jsonl", model, skip=3), "TEXT") == [[b"1b"], [b"2"], [b"2b"]]


def test_files_of_the_job_are_no_inputs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "in.jsonl", {"TEXT": "a"})
    lines(tmp_path / "out.jsonl", {"TEXT": "b"})
    assert values(chunks("*.jsonl", signature(TEXT)), "TEXT") == [[b"a"]]
    with pytest.raises(InferError, match="a file that a job writes"):
        chunks("out.jsonl", signature(TEXT))


@pytest.mark.parametrize("name", ["none.jsonl", "*.jsonl"])
def test_missing_files_are_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(InferError) as caught:
        chunks(tmp_path / name, signature(TEXT))
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_chunks_are_limited_in_bytes(tmp_path: Path) -> None:
    path = lines(tmp_path / "in.jsonl", *({"TEXT": "x" * 100} for _ in range(10)))
    assert [chunk.count for chunk in chunks(path, signature(TEXT), rows=100, max_bytes=300)] == [3, 3, 3, 1]


CELLS = ["1", "-2.5", " 3e4 ", "nan", "inf", "-Infinity", "1e400", "007", ".5", "5.", "+1"]
ODD_CELLS = [*CELLS, "", " ", "x", "1_000", "0x10", "1 2", "٣", "1;2", "#", "1#2", "true", "\x00"]


@pytest.mark.parametrize("null_is_nan", [False, True])
@pytest.mark.parametrize("cells", [CELLS, ODD_CELLS, [*CELLS, ""]])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_blocks_equal_single_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], end: str, null_is_nan: bool
) -> None:
    model = signature({"A": (DataType.FP64, (3,)), "T": (DataType.BYTES, (1,))})
    model = replace(
        model, inputs={name: replace(each, null_is_nan=null_is_nan) for name, each in model.inputs.items()}
    )
    table = [[a, f"t{number}", b, "1", "k"] for number, (a, b) in enumerate(product(cells, cells))]
    text = end.join(["A_0,T,A_1,A_2,id", *map(",".join, table), ""])
    path = save(
        tmp_path / "in.csv", text.replace(f"t7,{cells[7]},1,k", f"t7,{cells[7]},1,k,more").replace("t9,", f"t9,{end}")
    )
    found = chunks(path, model, rows=8, keys=("id",))
    monkeypatch.setattr(csv_files, "plain_lines", lambda lines, width: None)
    expected = chunks(path, model, rows=8, keys=("id",))
    for name in model.inputs:
        assert repr(values(found, name)) == repr(values(expected, name))
    assert reasons(found) == reasons(expected)
    assert [list(chunk.keys["id"]) for chunk in found] == [list(chunk.keys["id"]) for chunk in expected]
    assert [chunk.done_bytes for chunk in found] == [chunk.done_bytes for chunk in expected]


def test_plain_csv_lines_are_read_as_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "in.csv", "A_0,A_1,note\n" + "1,2.5,text\n" * 20 + '3,4,"a, b"\n' + "5,6,text\n" * 3)
    looks: list[int] = []
    cell_by_cell = csv_files.CsvSource._cell_by_cell

    def counted(source, *arguments):
        found = cell_by_cell(source, *arguments)
        looks.append(found[0])
        return found

    monkeypatch.setattr(csv_files.CsvSource, "_cell_by_cell", counted)
    found = chunks(path, signature({"A": (DataType.FP32, (2,))}), rows=10)
    assert values(found, "A") == [[1, 2.5]] * 20 + [[3, 4]] + [[5, 6]] * 3
    assert looks == [4, 0]  # the block with the quoted cell, and the end of the file


def test_a_line_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_lines, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "in.csv"
    short = "1,2\n" * 300_000
    path.write_text(f"A_0,A_1\n{short}")
    model = signature({"A": PAIR["A"]}, max_batch_size=100_000)
    assert sum(chunk.count for chunk in chunks(path, model, rows=100_000)) == 300_000
    for text in ["A_0,A_1\n1,2\n" + "7" * (2 << 20), "A" * (2 << 20)]:
        path.write_text(text)
        with pytest.raises(InferError, match=r"in\.csv: a line is longer than 1 MiB; expected a line for each row"):
            chunks(path, model)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"A": [1, 2], "A": [3, 4]}', "an object has 2 members with the name 'A'; each must have its own"),
        ('{"A": {"content": [1, 2], "shape": [2], "shape": [1]}}', "2 members with the name 'shape'"),
        ('{"A": [1, 2], "t": "a:b", "t": "A"}', "2 members with the name 't'"),
        ('{"A" : [1, 2],"A"\t:[1, 2]}', "2 members with the name 'A'"),
        ('{"A":[1, 2],"\\u0041":[1, 2]}', "2 members with the name 'A'"),
        ('{"A": [1, 2], "t": "a:b:c", "u": {"t": 1}}', ""),
        ('{"A": [1, 2], "t": "\\": ", "n": ' + "9" * 200 + "}", ""),
        ('{"A": [1, 2], "t": ' + '{"t":' * 1000 + "1" + "}" * 1000 + "}", "nested too deep"),
    ],
    ids=["twice", "inside", "others", "spaces", "escaped", "colons", "digits", "deep"],
)
def test_repeated_members_of_json_fail(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'{line}\n{{"A": [5, 6]}}\n')
    found = chunks(path, signature({"A": PAIR["A"]}))
    assert values(found, "A") == [None if reason else [1, 2], [5, 6]]
    assert reason in reasons(found).get(0, "")
