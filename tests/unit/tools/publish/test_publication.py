"""A publication against a server that a test scripts: what is served then, and what is in the repository."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from naiad.client import InferError
from naiad.core.errors import invalid_argument
from naiad.core.model import UNLOADED, IndexEntry, ModelMetadata, ModelState
from naiad.repository.stores.new_version import NewVersion
from naiad.repository.stores.store import list_version_dirs
from naiad.tools.publish.publication import Publication, Published, publish
from naiad.tools.publish.publication_source import PublicationSource
from naiad.tools.publish.sample import SampleError, TrialSample
from naiad.tools.publish.trial import PublishError

BAD = "bad"
CANDIDATE = "plus.candidate"


class ScriptedServer:
    """Serves the newest versions of a real directory; a test decides what goes wrong."""

    def __init__(self, repository: Path, newest: int = 1) -> None:
        self._repository = repository
        self._newest = newest
        self.served: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.calls: list[str] = []
        self.takes_commands = True
        self.on_load: Callable[[str], object] = lambda name: None
        self.hangs_at: str = ""
        self.is_hanging = asyncio.Event()

    def read(self, name: str) -> None:
        """Serve what is in the repository now, unless it is bad."""
        versions = list_version_dirs(self._repository / name)
        chosen = list(versions)[-self._newest :]
        if any((versions[each] / "model.onnx").read_text() == BAD for each in chosen):
            self.reasons[name] = "it is bad"
            raise invalid_argument("it is bad")
        self.served[name] = chosen

    # --- what a publication uses of a client ------------------------------------------------------------------------

    async def load(self, name: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.calls.append(f"load {name}")
        self.on_load(name)
        if f"{name} {max(list_version_dirs(self._repository / name), default=0)}" == self.hangs_at:
            versions = list(list_version_dirs(self._repository / name))
            try:
                self.is_hanging.set()
                await asyncio.Event().wait()
            finally:
                self.served[name] = versions[-1:]  # a server goes on with a load whose client is gone
        self.read(name)

    async def unload(self, name: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.calls.append(f"unload {name}")
        if not self.takes_commands:
            raise invalid_argument("explicit model load / unload is not allowed if polling is enabled")
        self.served.pop(name, None)

    async def repository_index(self) -> Sequence[IndexEntry]:
        if not self.takes_commands:
            self.poll()
        rows = [
            IndexEntry(name, str(each), ModelState.READY, self.reasons.get(name, ""))
            for name, versions in self.served.items()
            for each in versions
        ]
        return [*rows, IndexEntry("plus", "99", ModelState.UNAVAILABLE, UNLOADED)]

    def poll(self) -> None:
        """Follow the repository, as a polling server does."""
        for path in self._repository.iterdir():
            if not path.name.startswith("."):
                try:
                    self.read(path.name)
                except InferError:
                    self.reasons[path.name] = "its update failed: it is bad"

    async def model_metadata(self, name: str, version: str) -> ModelMetadata:
        return ModelMetadata(name, [version], "onnx", (), ())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    root.mkdir()
    return root


def source_of(tmp_path: Path, content: str = "good") -> PublicationSource:
    path = tmp_path / "new.onnx"
    path.write_text(content)
    return PublicationSource("plus", NewVersion({"model.onnx": path}))


async def send(
    server: ScriptedServer, repository: Path, tmp_path: Path, content: str = "good", **how: Any
) -> Published:
    publication = Publication(source_of(tmp_path, content), repository, timeout_s=5, **how)
    return await publish(server, publication, server.calls.append)  # type: ignore[arg-type]  # what is used of it


def versions(repository: Path, model: str = "plus") -> list[int]:
    return list(list_version_dirs(repository / model)) if (repository / model).exists() else []


def test_new_model_is_loaded_once(repository: Path, tmp_path: Path) -> None:
    server = ScriptedServer(repository)
    found = asyncio.run(send(server, repository, tmp_path))
    assert (found.version, versions(repository), server.served) == (1, [1], {"plus": [1]})
    assert [each for each in server.calls if each.startswith("load ")] == ["load version 1 of 'plus'", "load plus"]


def test_served_model_gets_a_version_after_its_candidate(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        for _ in range(2):
            await send(server, repository, tmp_path)
        return server

    server = asyncio.run(run())
    assert server.served == {"plus": [2]}
    loads = [each for each in server.calls if each in (f"load {CANDIDATE}", "load plus", f"unload {CANDIDATE}")]
    assert loads[-3:] == [f"load {CANDIDATE}", f"unload {CANDIDATE}", "load plus"]
    assert sorted(path.name for path in repository.iterdir()) == ["plus"]


def test_bad_version_is_not_tried_on_clients(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        await send(server, repository, tmp_path)
        with pytest.raises(PublishError, match="it is bad"):
            await send(server, repository, tmp_path, BAD)
        return server

    server = asyncio.run(run())
    assert (server.served, versions(repository)) == ({"plus": [1]}, [1])
    assert server.calls.count("load plus") == 1


def test_candidate_that_was_left_is_replaced(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        await send(server, repository, tmp_path)
        left = repository / CANDIDATE / "1"
        left.mkdir(parents=True)
        (left / "model.onnx").write_text(BAD)
        await send(server, repository, tmp_path)
        return server

    server = asyncio.run(run())
    assert (server.served, versions(repository)) == ({"plus": [2]}, [1, 2])
    assert sorted(path.name for path in repository.iterdir()) == ["plus"]


def test_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="is not a directory; give the directory of the server's"):
        asyncio.run(send(ScriptedServer(tmp_path), tmp_path / "missing", tmp_path))


def test_cancelled_publication_has_the_old_version_loaded(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        await send(server, repository, tmp_path)
        server.hangs_at = "plus 2"
        running = asyncio.ensure_future(send(server, repository, tmp_path))
        await server.is_hanging.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return server

    server = asyncio.run(run())
    assert server.served == {"plus": [1]}, "the server still has the version that was taken back"
    assert versions(repository) == [1]


def test_cancelled_publication_of_a_new_model_unloads_it(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        server.hangs_at = "plus 1"
        running = asyncio.ensure_future(send(server, repository, tmp_path))
        await server.is_hanging.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return server

    server = asyncio.run(run())
    assert (server.served, versions(repository)) == ({}, [])


def test_failed_load_after_the_trial_is_taken_back(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        await send(server, repository, tmp_path)

        def spoil(name: str) -> None:
            if name == "plus" and (repository / "plus" / "2").exists():
                (repository / "plus" / "2" / "model.onnx").write_text(BAD)

        server.on_load = spoil
        with pytest.raises(PublishError, match=r"it is bad\. Version 1 is served, as before"):
            await send(server, repository, tmp_path)
        return server

    server = asyncio.run(run())
    assert (server.served, versions(repository)) == ({"plus": [1]}, [1])
    assert server.calls[-1] == "load plus"


@pytest.mark.parametrize(("newest", "left"), [(1, [3, 4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4])])
def test_old_versions_are_removed_unless_they_are_served(
    repository: Path, tmp_path: Path, newest: int, left: Sequence[int]
) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository, newest)
        for _ in range(3):
            await send(server, repository, tmp_path)
        await send(server, repository, tmp_path, keep_versions=2)
        return server

    server = asyncio.run(run())
    assert versions(repository) == left
    assert set(server.served["plus"]) <= set(left)


def test_nothing_is_removed_without_a_limit(repository: Path, tmp_path: Path) -> None:
    async def run() -> None:
        server = ScriptedServer(repository)
        for _ in range(3):
            await send(server, repository, tmp_path)

    asyncio.run(run())
    assert versions(repository) == [1, 2, 3]


def test_polling_server_gets_no_commands_and_no_candidate(repository: Path, tmp_path: Path) -> None:
    async def run() -> ScriptedServer:
        server = ScriptedServer(repository)
        server.takes_commands = False
        for _ in range(2):
            await send(server, repository, tmp_path)
        with pytest.raises(PublishError, match="the server follows it"):
            await send(server, repository, tmp_path, BAD)
        return server

    server = asyncio.run(run())
    assert versions(repository) == [1, 2]
    assert not [each for each in server.calls if each in ("load plus", f"load {CANDIDATE}")]


def test_sample_is_asked_of_candidate_and_version(repository: Path, tmp_path: Path) -> None:
    asked: list[tuple[str, int | None]] = []

    class Server(ScriptedServer):
        wrong: Mapping[str, bool] = {}

        async def infer(self, name: str, tensors: object, *, version: str, timeout_s: float) -> dict[str, object]:
            asked.append((name, int(version) if version else None))
            if self.wrong.get(name):
                raise SampleError("the answer is wrong")
            return {}

    async def run() -> Server:
        server = Server(repository)
        await send(server, repository, tmp_path, sample=TrialSample({}))
        await send(server, repository, tmp_path, sample=TrialSample({}))
        assert asked == [("plus", 1), (CANDIDATE, None), ("plus", 2)]
        for name in (CANDIDATE, "plus"):
            server.wrong = {name: True}
            with pytest.raises(PublishError, match="the answer is wrong"):
                await send(server, repository, tmp_path, sample=TrialSample({}))
            assert (server.served, versions(repository)) == ({"plus": [2]}, [1, 2])
        return server

    assert asyncio.run(run()).calls[-1] == "load plus"
