"""The table of `naiad demo formats` at the widths of a terminal and of a pipe."""

import io

import pytest
from rich.console import Console

from naiad.tools.demo.formats.format_catalog import FORMATS, DemoFormat
from naiad.tools.demo.formats.show_formats import FormatMeasurement, table_of


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_no_cell_is_cut(monkeypatch, columns):
    monkeypatch.setattr(DemoFormat, "missing", "")
    monkeypatch.setattr(DemoFormat, "version", "framework 2026.4.1")
    found = {each.model: FormatMeasurement(270, 297, 1e-7, 0.52, 13202.0, 9.1, 697.0) for each in FORMATS}
    console = Console(file=io.StringIO(), width=columns)
    console.print(table_of(found, 297, columns))
    text = console.file.getvalue()
    assert "…" not in text
    for each in FORMATS:
        assert any(line.strip(" │").startswith(each.name) and each.backend in line for line in text.splitlines())
    assert text.count("270/297") == len(FORMATS)


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(DemoFormat, "missing", "pip install 'naiad[torch]'")
    console = Console(file=io.StringIO(), width=160)
    console.print(table_of({}, 297, 160))
    assert "pip install 'naiad[torch]'" in console.file.getvalue()
