"""What listings mean, with objects out of a dictionary."""

from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.repository.cloud.cache import ModelCache
from naiad.repository.cloud.cloud_store import CloudStore, split_directories
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import StoredObject
from naiad.repository.cloud.url import parse_cloud_url


class Objects(ObjectStore):
    """A bucket in a dictionary."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.url = parse_cloud_url("s3://bucket/models")
        self.contents = contents
        self.fetched: list[str] = []
        self.listed: list[str] = []

    def brief(self) -> "Objects":
        return self

    def list_top(self, known: object = None) -> tuple[list[str], list[str]]:
        self.listed.append("/")
        names = {key.split("/")[0] for key in self.contents if "/" in key}
        return sorted(names), sorted(key for key in self.contents if "/" not in key)

    def list_objects(self, below: str = "") -> list[StoredObject]:
        self.listed.append(below)
        found = [key for key in self.contents if not below or key.startswith(f"{below}/")]
        return [StoredObject(key, len(self.contents[key]), self.contents[key].hex()) for key in found]

    def fetch(self, item: StoredObject, target: Path) -> None:
        self.fetched.append(item.key)
        target.write_bytes(self.contents[item.key])


@pytest.fixture
def objects() -> Objects:
    return Objects(
        {
            "a/config.pbtxt": b"name: 'a'",
            "a/1/model.onnx": b"onnx",
            "a/2": b"",
            ".git/config": b"x",
            "b/1/model.py": b"python",
            "README.md": b"text",
        }
    )


@pytest.fixture
def store(objects: Objects, tmp_path: Path) -> CloudStore:
    return CloudStore(objects, ModelCache(tmp_path / "cache", 10_000))


def test_models_are_the_directories_that_are_not_hidden(store: CloudStore) -> None:
    assert store.location == "s3://bucket/models"
    assert store.list_models() == ["a", "b"]
    assert sorted(store.look()) == ["a", "b"]


def test_a_model_comes_with_its_versions(store: CloudStore, objects: Objects) -> None:
    entry = store.open_model("a")
    assert list(entry.version_dirs) == [1, 2]
    assert entry.config_path is not None
    assert entry.config_path.read_bytes() == b"name: 'a'"
    assert sorted(objects.fetched) == ["a/1/model.onnx", "a/config.pbtxt"]
    entry.release()


def test_a_look_is_one_listing_and_brings_nothing(store: CloudStore, objects: Objects) -> None:
    before = {name: listing.fingerprint for name, listing in store.look().items()}
    assert objects.listed == [""]
    objects.contents["a/1/model.onnx"] = b"new!"
    after = {name: listing.fingerprint for name, listing in store.look().items()}
    assert before["a"] != after["a"]
    assert before["b"] == after["b"]
    assert objects.fetched == []


def test_listing_and_opened_model_have_same_fingerprint(store: CloudStore) -> None:
    listing = store.sight("b")
    assert listing is not None
    assert listing.open().fingerprint == store.look()["b"].fingerprint == listing.fingerprint


def test_the_mark_of_an_upload(store: CloudStore, objects: Objects) -> None:
    assert not store.look()["a"].is_incomplete
    objects.contents["a/.uploading"] = b""
    assert store.look()["a"].is_incomplete


def test_what_is_not_there(store: CloudStore) -> None:
    assert store.sight("c") is None
    assert store.sight(".git") is None
    with pytest.raises(InferError, match="model 'c' is not found in model repository s3://bucket/models"):
        store.open_model("c")
    with pytest.raises(InferError, match="must not be a path"):
        store.sight("../a")


def test_change_during_download_starts_again(store: CloudStore, objects: Objects) -> None:
    original = objects.fetch

    def fetch(item: StoredObject, target: Path) -> None:
        original(item, target)
        if item.key == "a/config.pbtxt":
            objects.contents["a/1/model.onnx"] = b"newer"

    objects.fetch = fetch
    entry = store.open_model("a")
    assert (entry.model_dir / "1" / "model.onnx").read_bytes() == b"newer"


def test_one_model_is_no_repository(objects: Objects, tmp_path: Path) -> None:
    objects.contents = {"config.pbtxt": b"", "1/model.onnx": b""}
    store = CloudStore(objects, ModelCache(tmp_path / "cache", 100))
    for ask in (store.list_models, store.look):
        with pytest.raises(InferError, match="is one model; give the repository that it lies in, s3://bucket"):
            ask()


def test_nothing_is_no_repository(objects: Objects, store: CloudStore) -> None:
    objects.contents.clear()
    for ask in (store.list_models, store.look):
        with pytest.raises(InferError, match="there is nothing below s3://bucket/models"):
            ask()


def item(key: str, size_bytes: int = 1) -> StoredObject:
    return StoredObject(key, size_bytes, "x")


def test_directories_differ_from_empty_files() -> None:
    items = [item("m/1", 0), item("m/2", 0), item("m/2/data", 3), item("m/1.5", 0), item("m/2/__init__.py", 0)]
    directories, files = split_directories("m", [*items, item("m/initial_state", 0)])
    assert directories == ["1", "2", "initial_state"]
    assert [each.key for each in files] == ["m/2/data", "m/1.5", "m/2/__init__.py"]


@pytest.mark.parametrize("key", ["m/..", "m//a", "m/a/../b", "m/" + "x" * 256, "m/a\0b", "m/."])
def test_keys_that_cannot_be_paths_are_refused(key: str) -> None:
    with pytest.raises(InferError, match="cannot be the path of a file"):
        split_directories("m", [item(key)])


def test_object_that_is_also_directory_is_rejected() -> None:
    with pytest.raises(InferError, match="is an object and a directory"):
        split_directories("m", [item("m/1", 5), item("m/1/a")])
