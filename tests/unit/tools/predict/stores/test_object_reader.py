"""An object as a file: equal to the same bytes in memory, in few requests."""

import io
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import ErrorCode, InferError, invalid_argument, unavailable
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject
from naiad.tools.predict.stores import object_reader
from naiad.tools.predict.stores.object_reader import ObjectReader

CONTENT = bytes(range(256)) * 40


class Objects:
    """One object in memory; `requests` are the ranges that were asked."""

    url = SimpleNamespace(of=lambda key: f"s3://b/{key}")

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.requests: list[tuple[int, int]] = []

    def read_range(self, item: StoredObject, start: int, end: int) -> bytes:
        self.requests.append((start, end))
        if self.failure is not None:
            raise self.failure
        return CONTENT[start:end]

    def read_ahead(self, item: StoredObject, start: int, end: int) -> "Future[bytes]":
        future: Future[bytes] = Future()
        future.set_result(self.read_range(item, start, end))
        return future


def opened(objects: Any) -> ObjectReader:
    return ObjectReader(objects, StoredObject("k", len(CONTENT), "1"))


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(-300, 11_000), st.integers(0, 3000))))
@settings(max_examples=60, deadline=None)
def test_any_order_of_reads_gives_the_bytes(steps: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_reader, "_FIRST_BYTES", 100)
        patch.setattr(object_reader, "_MAX_BYTES", 1000)
        file, model = io.BufferedReader(opened(Objects()), 64), io.BytesIO(CONTENT)
        for whence, offset, size in steps:
            place = max(0, [0, model.tell(), len(CONTENT)][whence] + offset)
            assert file.seek(place) == model.seek(place)
            assert file.read(size) == model.read(size)
            assert file.tell() == model.tell()


def test_requests_become_larger_while_reads_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reader, "_FIRST_BYTES", 512)
    monkeypatch.setattr(object_reader, "_MAX_BYTES", 4096)
    objects = Objects()
    file = opened(objects)
    file.read(10)
    assert objects.requests == [(0, 512)], "the head costs little"
    file.read(-1)
    assert [end - start for start, end in objects.requests] == [512, 512, 1024, 2048, 4096, 2048]
    assert objects.requests[-1][1] == len(CONTENT)


def test_failures_have_names() -> None:
    for failure, text in [
        (ObjectChangedError("k"), "s3://b/k: the object has changed since the job has found it"),
        (unavailable("away"), "away"),
        (invalid_argument("access is denied"), "access is denied"),
    ]:
        with pytest.raises(InferError, match=text) as caught:
            opened(Objects(failure)).read(1)
        assert caught.value.code is ErrorCode.UNAVAILABLE, "it ends the job"
    with pytest.raises(OSError, match="Invalid argument"):
        opened(Objects()).seek(-1)
