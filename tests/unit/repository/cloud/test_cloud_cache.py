"""The cache of copies, with contents that come out of a dictionary."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.core.errors import InferError, unavailable
from naiad.files.held import HeldDirectory, removing
from naiad.repository.cloud.cache import LocalModel, ModelCache, WantedFile


class Remote:
    def __init__(self) -> None:
        self.fetched: list[str] = []

    def file(self, path: str, content: bytes) -> WantedFile:
        def fetch(target: Path) -> None:
            self.fetched.append(path)
            target.write_bytes(content)

        return WantedFile(path, len(content), content.hex().ljust(8, "0")[:32], f"s3://b/{path}", fetch)


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache", 100)


def stored(cache: ModelCache) -> list[Path]:
    return sorted((cache.root / "objects").glob("*/*"))


def test_a_model_is_brought_once(cache: ModelCache, remote: Remote) -> None:
    files = [remote.file("config.pbtxt", b"config"), remote.file("1/model.py", b"model")]
    model = cache.open("state", "m", ["2"], files)
    assert model.directory == cache.root / "models" / "state" / "m"
    assert (model.directory / "1" / "model.py").read_bytes() == b"model"
    assert (model.directory / "2").is_dir()
    assert model.downloaded_bytes == 11
    again = ModelCache(cache.root, 100).open("state", "m", ["2"], files)
    assert again.downloaded_bytes == 0
    assert len(remote.fetched) == 2


def test_another_state_shares_what_is_the_same(cache: ModelCache, remote: Remote) -> None:
    same = remote.file("weights", b"weights")
    old = cache.open("one", "m", [], [same, remote.file("config", b"old")])
    new = cache.open("two", "m", [], [same, remote.file("config", b"new")])
    assert remote.fetched.count("weights") == 1
    assert (old.directory / "config").read_bytes() == b"old", "what is served stays as it is"
    assert (new.directory / "config").read_bytes() == b"new"
    assert os.path.samefile(old.directory / "weights", new.directory / "weights")


@pytest.mark.parametrize("damage", [b"wrong", b"x", b""])
def test_damage_is_found_by_the_digest(cache: ModelCache, remote: Remote, damage: bytes) -> None:
    files = [remote.file("a", b"right"), remote.file("b", b"other")]
    model = cache.open("state", "m", [], files)
    path = model.directory / "a"
    path.chmod(0o644)
    path.write_bytes(damage)
    again = cache.open("state", "m", [], files)
    assert (again.directory / "a").read_bytes() == b"right"
    assert sorted(remote.fetched) == ["a", "a", "b"]


def test_removed_file_is_restored_without_download(cache: ModelCache, remote: Remote) -> None:
    files = [remote.file("a", b"right")]
    model = cache.open("state", "m", [], files)
    (model.directory / "a").unlink()
    assert (cache.open("state", "m", [], files).directory / "a").read_bytes() == b"right"
    assert remote.fetched == ["a"]


def test_what_came_before_a_failure_is_kept(cache: ModelCache, remote: Remote) -> None:
    def fail(target: Path) -> None:
        raise unavailable("away")

    good = remote.file("a", b"right")
    bad = WantedFile("b", 1, "ff00", "s3://b/b", fail)
    with pytest.raises(InferError, match="away"):
        cache.open("state", "m", [], [good, bad])
    assert list((cache.root / "incoming").iterdir()) == []
    model = cache.open("state", "m", [], [good, remote.file("b", b"c")])
    assert remote.fetched == ["a", "b"]
    assert (model.directory / "b").read_bytes() == b"c"


def test_oldest_unused_entry_is_evicted(cache: ModelCache, remote: Remote) -> None:
    models = [cache.open(name, "m", [], [remote.file("w", name.encode() * 30)]) for name in "abc"]
    for model, moment in zip(models, (1, 2, 3), strict=True):
        os.utime(model.directory.parent, (moment, moment))
    models[1].release()
    models[2].release()
    cache.open("d", "m", [], [remote.file("w", b"d" * 30)])
    assert models[0].directory.exists(), "the oldest, but in use"
    assert not models[1].directory.exists()
    assert models[2].directory.exists()
    assert sum(path.stat().st_size for path in stored(cache)) == 90


def test_oversized_copy_error_names_flag(cache: ModelCache, remote: Remote) -> None:
    kept = cache.open("a", "m", [], [remote.file("w", b"a" * 60)])
    with pytest.raises(
        InferError, match=r"no room for 50 bytes: it may hold 100, and 60 are in use; .*--cloud-cache"
    ):
        cache.open("b", "m", [], [remote.file("w", b"b" * 50)])
    assert kept.directory.exists()
    kept.release()
    assert cache.open("b", "m", [], [remote.file("w", b"b" * 50)]).downloaded_bytes == 50


def test_what_two_downloads_need_counts_together(cache: ModelCache, remote: Remote) -> None:
    inner: list[str] = []

    def fetch(target: Path) -> None:
        with pytest.raises(InferError, match="no room") as caught:
            cache.open("b", "m", [], [remote.file("w", b"b" * 60)])
        inner.append(caught.value.message)
        target.write_bytes(b"a" * 60)

    cache.open("a", "m", [], [WantedFile("w", 60, "aa00", "s3://b/w", fetch)])
    assert len(inner) == 1


def test_leftovers_of_a_crash_are_swept(cache: ModelCache, remote: Remote) -> None:
    left = cache.root / "incoming" / "left"
    left.mkdir()
    (left / "reserved").write_bytes(b"")
    os.truncate(left / "reserved", 1000)
    cache.open("a", "m", [], [remote.file("w", b"a")])
    assert not left.exists()


def test_contents_may_go_during_a_sweep(cache: ModelCache, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.open("a", "m", [], [remote.file("w", b"a" * 60)]).release()
    found = Path.glob

    def glob(path: Path, pattern: str) -> list[Path]:
        # As another process would that finds a content damaged: it has no lock of the whole cache.
        paths = list(found(path, pattern))
        if path == cache.root / "objects" and not (cache.root / "models" / "a" / "m").exists():
            for each in paths:
                each.unlink(missing_ok=True)
        return paths

    monkeypatch.setattr(Path, "glob", glob)
    assert cache.open("b", "m", [], [remote.file("w", b"b" * 60)]).downloaded_bytes == 60


def test_evicted_states_are_forgotten(cache: ModelCache, remote: Remote) -> None:
    for number in range(20):
        cache.open(str(number), "m", [], [remote.file("w", bytes([number]) * 60)]).release()
    assert len(cache._verified) <= 2


def test_a_file_system_without_hard_links_gets_copies(
    cache: ModelCache, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = [remote.file("a", b"right")]
    assert (cache.open("state", "m", [], files).directory / "a").read_bytes() == b"right"
    assert ModelCache(cache.root, 100).open("state", "m", [], files).downloaded_bytes == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InferError, match=r"file/cache cannot be used: .*Not a directory; .* --cloud-cache-directory"):
        ModelCache(tmp_path / "file" / "cache", 100)


def test_a_held_directory_is_not_removed(tmp_path: Path) -> None:
    def is_free() -> bool:
        with removing(tmp_path / "held") as free:
            return free

    first, second = HeldDirectory(tmp_path / "held"), HeldDirectory(tmp_path / "held")
    assert not is_free()
    first.release()
    first.release()
    assert not is_free()
    second.release()
    assert is_free()
    (tmp_path / "held").rmdir()
    assert not is_free()


def test_release_is_the_callers(cache: ModelCache, remote: Remote) -> None:
    opened: Callable[[], LocalModel] = lambda: cache.open("a", "m", [], [remote.file("w", b"a" * 60)])  # noqa: E731
    first, second = opened(), opened()
    first.release()
    with pytest.raises(InferError, match="no room"):
        cache.open("b", "m", [], [remote.file("w", b"b" * 60)])
    second.release()
    cache.open("b", "m", [], [remote.file("w", b"b" * 60)])


def test_emptied_cache_is_made_again(cache: ModelCache, remote: Remote) -> None:
    files = [remote.file("weights", b"weights")]
    cache.open("one", "m", [], files).release()
    shutil.rmtree(cache.root)
    again = cache.open("one", "m", [], files)
    assert (again.directory / "weights").read_bytes() == b"weights"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_cache_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner can have put other files there, with the right digests beside them."""
    root = ModelCache(tmp_path / "cache", 100).root
    os.chown(root / "models", 65534, 65534)
    with pytest.raises(InferError, match=r"cache/models: it belongs to user 65534.* --cloud-cache-directory"):
        ModelCache(root, 100)
