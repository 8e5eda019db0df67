"""Numbers of plain lines: the same ones as Python reads cell by cell."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.predict.sources import csv_numbers
from naiad.tools.predict.sources.csv_numbers import read_floats

NUMBERS = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(lambda value: f"{value:.6g}"),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(["-0", "+1", "007", ".5", "5.", "1E5", "1e400", " 2", "nan", "inf", "-1e-320", "9" * 400]),
)
ENDS = st.sampled_from(["\n", "\r\n"])
TABLES = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1)
)
NO_NUMBERS = ["true", "null", "[1]", "1_000", "0x10", '"1"', "one", "{}", "1-2", "--1", "1e", "٣"]


@given(
    table=st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1)
    ),
    end=ENDS,
)
def test_numbers_equal_python_floats(table, end):
    found = read_floats([",".join(row) + end for row in table], [1, 0], null_is_nan=False)
    wanted = np.array([[float(row[1]), float(row[0])] for row in table])
    if np.isinf(wanted).any():
        assert found is None
        return
    np.testing.assert_array_equal(found, wanted)
    assert np.array_equal(np.signbit(found), np.signbit(wanted)) or any(map(math.isnan, wanted.ravel()))


@pytest.mark.parametrize(
    "cell", ["true", "null", "[1]", "1_000", "0x10", '"1"', "one", "{}", "1-2", "--1", "1e", "٣"]
)
def test_cell_that_is_no_number_is_refused(cell):
    assert read_floats([f"1,{cell}\n", "2,3\n"], [0, 1], null_is_nan=True) is None


def test_empty_cells_are_nan_where_null_is():
    lines = ["1,,3\n", ",2,\n"]
    assert read_floats(lines, [0, 1, 2], null_is_nan=False) is None
    found = read_floats(lines, [0, 1, 2], null_is_nan=True)
    np.testing.assert_array_equal(found, [[1, np.nan, 3], [np.nan, 2, np.nan]])


def test_text_beside_the_numbers_is_passed_over():
    np.testing.assert_array_equal(read_floats(["a,1\n", "b,2"], [1], null_is_nan=False), [[1], [2]])


def test_plain_numbers_need_no_loadtxt(monkeypatch):
    monkeypatch.delattr(csv_numbers.np, "loadtxt")
    np.testing.assert_array_equal(
        read_floats(["1,2.5\r\n", "-3,4e2"], [0, 1], null_is_nan=True), [[1, 2.5], [-3, 400]]
    )
