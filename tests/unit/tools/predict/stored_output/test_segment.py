"""Segments: their content, and which of them follow each other."""

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.stored_output.segment import chain, decoded, encoded


def test_rows_come_back() -> None:
    written = WrittenRows(3, 1, {"rows.csv": b"1\n\n2\n", "rejected.jsonl": b"", "a": b"\x00\xff"})
    assert decoded(encoded(written), "x") == written


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n", encoded(WrittenRows(1, 0, {"a": b"12"}))[:-1], b"\xff\n"])
def test_damage_is_found(content: bytes) -> None:
    with pytest.raises(InferError, match="s3://b/x is damaged; add --restart"):
        decoded(content, "s3://b/x")
    with pytest.raises(InferError, match="is damaged"):
        decoded(encoded(WrittenRows(1, 0, {"a": b"12"})) + b"3", "x")


def name(first: int, rows: int, failed_rows: int = 0, token: str = "ab12") -> str:
    return f"{first:015d}-{rows}-{failed_rows}-{token}.rows"


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], []),
        ([name(0, 5), name(5, 2, 1)], [name(0, 5), name(5, 2, 1)]),
        ([name(5, 2)], []),
        ([name(0, 5), name(6, 2)], [name(0, 5)]),
        ([name(0, 5, token="b"), name(0, 5, token="a"), name(5, 1)], [name(0, 5, token="a"), name(5, 1)]),
        ([name(0, 2), name(2, 3), name(0, 5), name(5, 1)], [name(0, 5), name(5, 1)]),
        ([name(0, 0), "other", "0-1-0.rows"], []),
    ],
    ids=["none", "two", "no first", "a gap", "twice", "overlap", "others"],
)
def test_segments_that_follow_each_other_are_chosen(names: list[str], wanted: list[str]) -> None:
    found = chain(names)
    assert [each.name for each in found] == wanted
    assert [each.first for each in found] == [sum(each.rows for each in found[:place]) for place in range(len(found))]
