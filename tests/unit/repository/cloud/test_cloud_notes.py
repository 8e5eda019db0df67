"""Notes in an object store whose answers a test scripts."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from naiad.core.errors import InferError, unavailable
from naiad.repository.cloud.last_notes import LastNotes
from naiad.repository.cloud.notes import CloudNotes
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject, Version
from naiad.repository.cloud.url import parse_cloud_url

NAME = ".m.rollout.json"


class Bucket:
    """Objects with a version each."""

    url = parse_cloud_url("s3://bucket/models")

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.listings = 0
        self.reads = 0
        self.before_write: Callable[[], object] = lambda: None

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = (content, self.objects.get(key, (b"", 0))[1] + 1)

    def top_objects(self) -> Sequence[StoredObject]:
        self.listings += 1
        return [StoredObject(key, len(content), str(number)) for key, (content, number) in self.objects.items()]

    def read(self, key: str, max_bytes: int) -> tuple[bytes, Version] | None:
        self.reads += 1
        found = self.objects.get(key)
        return None if found is None else (found[0][:max_bytes], {"e_tag": str(found[1])})

    def write(self, key: str, content: bytes, replaced: Version | None) -> None:
        self.before_write()
        found = self.objects.get(key)
        if (None if found is None else {"e_tag": str(found[1])}) != replaced:
            raise ObjectChangedError(key)
        self.put(key, content)

    def move(self, key: str, target: str) -> None:
        self.objects[target] = self.objects.pop(key)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make() -> tuple[Bucket, CloudNotes, Clock]:
    bucket, clock = Bucket(), Clock()
    return bucket, CloudNotes(bucket, clock), clock  # type: ignore[arg-type]  # what is used of it


def counted(content: bytes | None) -> bytes:
    return str(int(content or b"0") + 1).encode()


def test_note_that_changes_meanwhile_is_read_again() -> None:
    bucket, notes, _ = make()
    notes.exchange("m", counted)

    def interfere() -> None:
        bucket.before_write = lambda: None
        bucket.put(NAME, b"41")

    bucket.before_write = interfere
    notes.exchange("m", counted)
    assert notes.read("m") == b"42"


def test_note_that_always_changes_is_an_error() -> None:
    bucket, notes, _ = make()
    bucket.before_write = lambda: bucket.put(NAME, b"0")
    with pytest.raises(InferError, match="is replaced by other servers all the time"):
        notes.exchange("m", counted)


def test_models_without_a_note_cost_one_listing() -> None:
    bucket, notes, clock = make()
    assert [notes.read(f"m{number}") for number in range(100)] == [None] * 100
    assert (bucket.listings, bucket.reads) == (1, 0)
    clock.now_s = 60.0
    bucket.put(NAME, b"new")
    assert notes.read("m") == b"new"
    assert (bucket.listings, bucket.reads) == (2, 1)


def test_listing_for_another_purpose_is_used() -> None:
    bucket, notes, clock = make()
    notes.observe(
        [StoredObject(NAME, 3, "1"), StoredObject("m/1/model.onnx", 3, "2"), StoredObject("x.json", 1, "3")]
    )
    assert notes.look() == {NAME: "1"}
    assert bucket.listings == 0
    clock.now_s = CloudNotes.look_s
    assert notes.look() == {}
    assert bucket.listings == 1


def test_own_write_is_seen_at_once() -> None:
    _, notes, _ = make()
    assert notes.look() == {}
    notes.exchange("m", counted)
    one = notes.look()[notes.file_name("m")]
    notes.exchange("m", counted)
    assert notes.look()[notes.file_name("m")] != one
    notes.exchange("m", lambda content: None)
    assert notes.read("m") == b"2"


def test_unusable_note_is_renamed() -> None:
    bucket, notes, _ = make()
    bucket.put(NAME, b"bad")
    assert notes.set_aside("m") == f"{NAME}.unreadable"
    assert (notes.read("m"), bucket.objects[f"{NAME}.unreadable"][0]) == (None, b"bad")
    assert notes.where("m") == f"s3://bucket/models/{NAME}"


class ClosedBucket(Bucket):
    """A bucket that cannot be reached."""

    is_open = False

    def top_objects(self) -> list[StoredObject]:
        self.listings += 1
        if not self.is_open:
            raise unavailable("the store does not answer")
        return [StoredObject(key, len(content), str(number)) for key, (content, number) in self.objects.items()]


def test_notes_are_remembered_while_store_is_away(tmp_path: Path) -> None:
    def opened(bucket: Bucket) -> CloudNotes:
        last = LastNotes(tmp_path, "bucket")
        return CloudNotes(bucket, Clock(), last)  # type: ignore[arg-type]  # what is used of it

    before = Bucket()
    before.put(NAME, b"refused: 2")
    assert [opened(before).read("m"), opened(before).read("other")] == [b"refused: 2", None]
    away = ClosedBucket()
    notes = opened(away)
    assert [notes.read("m"), notes.read("other")] == [b"refused: 2", None]
    assert away.listings == 1  # one attempt for all models


def test_notes_that_were_never_read_are_an_error(tmp_path: Path) -> None:
    notes = CloudNotes(ClosedBucket(), Clock(), LastNotes(tmp_path, "bucket"))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(InferError, match="the store does not answer"):
            notes.read("m")


def test_notes_are_read_again_when_store_is_back(tmp_path: Path) -> None:
    bucket, clock = ClosedBucket(), Clock()
    notes = CloudNotes(bucket, clock, LastNotes(tmp_path, "bucket"))  # type: ignore[arg-type]
    with pytest.raises(InferError):
        notes.read("m")
    bucket.is_open = True
    bucket.put(NAME, b"new")
    clock.now_s = 60.0
    assert notes.read("m") == b"new"


def test_notes_are_read_after_the_cache_was_emptied(tmp_path: Path) -> None:
    bucket, clock = Bucket(), Clock()
    notes = CloudNotes(bucket, clock, LastNotes(tmp_path / "listings", "key"))  # type: ignore[arg-type]
    for content in (b"1", b"2"):
        bucket.put(NAME, content)
        clock.now_s += 60
        assert notes.read("m") == content
        shutil.rmtree(tmp_path / "listings")
