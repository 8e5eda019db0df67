"""Writes whose answers are lost, and removal of many objects, with stores of obstore in memory and on the disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects import objects as module
from naiad.repository.cloud.objects import store_requests
from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoreError
from naiad.repository.cloud.url import parse_cloud_url


class Library:
    """obstore, whose answers to calls of some kinds can be lost."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self.lost: dict[str, int] = {}
        """By call: how many of the next answers do not come."""
        self.meanwhile: Callable[[], object] = tuple
        """Called before an answer is lost."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(obstore, name)

        def call(*arguments: Any, **fields: Any) -> Any:
            answer = function(*arguments, **fields)
            if self.lost.get(name, 0):
                self.lost[name] -= 1
                self.meanwhile()
                raise ConnectionError("the answer did not come")
            return answer

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(module, "_library", lambda: found)
    return found


def store_of(monkeypatch: pytest.MonkeyPatch, client: Any) -> ObjectStore:
    monkeypatch.setattr(store_requests, "make_client", lambda *_, **__: client)
    return ObjectStore(parse_cloud_url("s3://b/x"), Credential("a key"), {}, first_pause_s=0.001)


@pytest.mark.parametrize("lost", [1, 3])
def test_lost_answer_of_a_write_is_success(library: Library, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    client = MemoryStore()
    store = store_of(monkeypatch, client)
    library.lost["put"] = lost
    version = store.write("k", b"one", None)
    library.lost["put"] = lost
    assert store.write("k", b"two", version) != version, "of an existing one"
    found = store.read("k", 10)
    assert found is not None
    assert found[0] == b"two"
    with pytest.raises(ObjectChangedError):
        store.write("k", b"three", version)
    with pytest.raises(ObjectChangedError):
        store.write("k", b"two", None)


@pytest.mark.parametrize("other", [b"3", b"three"], ids=["size", "content"])
def test_another_process_is_seen_behind_a_lost_answer(
    library: Library, monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    client = MemoryStore()
    store = store_of(monkeypatch, client)
    version = store.write("k", b"one", None)
    library.lost["put"] = 1
    library.meanwhile = lambda: obstore.put(client, "k", other)
    with pytest.raises(ObjectChangedError):
        store.write("k", b"fours", version)
    library.lost["put"] = 1
    library.meanwhile = lambda: obstore.delete(client, "k")
    found = store.read("k", 10)
    assert found is not None
    with pytest.raises(ObjectChangedError):
        store.write("k", b"fours", found[1])


def test_a_removed_object_is_no_version_of_it(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 answers for an object that is not there."""
    store = store_of(monkeypatch, MemoryStore())

    def missing(*arguments: Any, **fields: Any) -> Any:
        raise FileNotFoundError("Server returned non-2xx status code: 404 Not Found")

    library.put = missing
    with pytest.raises(ObjectChangedError):
        store.write("k", b"1", {"e_tag": "1"})
    with pytest.raises(StoreError, match="it is not there"):
        store.write("k", b"1", None)


def test_lost_answer_of_a_move_is_success(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MemoryStore()
    store = store_of(monkeypatch, client)
    obstore.put(client, "a", b"1")
    library.lost["rename"] = 1
    store.move("a", "b")
    assert [each.key for each in store.list_objects()] == ["b"]
    with pytest.raises(StoreError, match="it is not there") as caught:
        store.move("a", "c")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_an_absent_object_does_not_end_removal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = LocalStore(str(tmp_path))
    store = store_of(monkeypatch, client)
    keys = [f"k{number:02d}" for number in range(50)]
    for key in keys[9:]:
        obstore.put(client, key, b"1")
    store.delete(keys)
    assert store.list_objects() == []


def test_any_number_of_objects_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MemoryStore()
    store = store_of(monkeypatch, client)
    monkeypatch.setattr(module, "_MAX_OBJECTS", 10)
    monkeypatch.setattr(module, "_LISTING_CHUNK", 4)
    for number in range(15):
        obstore.put(client, f"a/{number}", b"1")
    for key in ("b", "ab/1", "c/d"):
        obstore.put(client, key, b"1")
    pages: list[int] = []
    store.delete_below("a", check=lambda: pages.append(1))
    assert len(pages) == 4
    assert sorted(each.key for each in store.list_objects()) == ["ab/1", "b", "c/d"]
    store.delete_below("", kept=["b"])
    assert [each.key for each in store.list_objects()] == ["b"]


def test_objects_that_stay_end_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    client = MemoryStore()
    store = store_of(monkeypatch, client)
    obstore.put(client, "a/1", b"1")
    monkeypatch.setattr(store, "delete", lambda keys: None)
    with pytest.raises(InferError, match="s3://b/x/a/1 was removed, and is still there"):
        store.delete_below("a")
