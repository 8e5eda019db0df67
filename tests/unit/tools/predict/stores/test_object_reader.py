"""An object as a file: equal to the same bytes in memory, in few requests."""

import io
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject, StoreError
from naiad.tools.predict.stores import object_reader
from naiad.tools.predict.stores.object_reader import ObjectReader

CONTENT = bytes(range(256)) * 40
DENIED = StoreError(ErrorCode.INVALID_ARG, "access is denied", ObjectFailure.DENIED)


class Objects:
    """One object in memory; `requests` are the ranges that were asked."""

    url = SimpleNamespace(of=lambda key: f"s3://b/{key}")

    last_read = None

    def __init__(self, failure: Exception | None = None, others: Sequence[str] = ()) -> None:
        """All reads fail, of `k` alone if there are others."""
        self.failure = failure
        self.others = others
        self.requests: list[tuple[int, int]] = []

    def read_range(self, item: StoredObject, start: int, end: int) -> bytes:
        self.requests.append((start, end))
        if self.failure is not None and item.key not in self.others:
            raise self.failure
        return CONTENT[start:end]

    def top_objects(self, below: str = "") -> list[StoredObject]:
        return [StoredObject(key, 1, "1") for key in ("k", *self.others)]

    def find(self, key: str) -> StoredObject | None:
        return None if "gone" in str(self.failure) else StoredObject(key, 1, "2")

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
        (StoreError(ErrorCode.UNAVAILABLE, "away", ObjectFailure.PASSING), "away"),
        (DENIED, "access is denied"),
    ]:
        with pytest.raises(InferError, match=text) as caught:
            opened(Objects(failure)).read(1)
        assert caught.value.code is ErrorCode.UNAVAILABLE, "it ends the job"
    with pytest.raises(OSError, match="Invalid argument"):
        opened(Objects()).seek(-1)


def test_an_unreadable_object_is_as_a_file() -> None:
    """Also after others were read; behind its first byte it ends the job."""
    with pytest.raises(PermissionError, match="access is denied"):
        opened(Objects(DENIED, ["other"])).read(1)
    with pytest.raises(FileNotFoundError, match="removed after it was found: 's3://b/k'"):
        opened(Objects(ObjectChangedError("gone"))).read(1)
    objects = Objects(others=["other"])
    file = opened(objects)
    file.read(1)
    for objects.failure in (DENIED, ObjectChangedError("gone")):
        file.seek(9000)
        file._window = b""
        with pytest.raises(StoreError) as caught:
            file.read(1)
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_an_ended_credential_is_no_denied_object() -> None:
    objects: Any = Objects(DENIED)
    objects.last_read = StoredObject("before", 1, "1")
    with pytest.raises(StoreError):
        opened(objects).read(1)
    objects.others = ["before"]
    objects.top_objects = lambda below: pytest.fail("one object is enough")
    with pytest.raises(PermissionError):
        opened(objects).read(1)
