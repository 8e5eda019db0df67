"""Giving freed memory back, where the C library can."""

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from naiad.telemetry import process_resources as heap


@pytest.fixture(autouse=True)
def _found_again() -> Iterator[None]:
    heap._find_malloc_trim.cache_clear()
    yield
    heap._find_malloc_trim.cache_clear()


def test_everything_that_can_go_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=kept.append))
    heap.trim_heap()
    heap.trim_heap()
    assert kept == [0, 0]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    with caplog.at_level("DEBUG", logger=heap.__name__):
        heap.trim_heap()
        heap.trim_heap()
    records = [record for record in caplog.records if record.name == heap.__name__]
    assert [record.levelname for record in records] == ["DEBUG"]
    assert "no malloc_trim" in caplog.text
