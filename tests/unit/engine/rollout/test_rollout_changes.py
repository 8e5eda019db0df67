"""Changes of rollouts in servers that share a record: each decides on what was decided before."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from naiad.config.rollout.rollout_declaration import DeclaredRollout, Rollout
from naiad.config.rollout.rollout_record import FoundRollout, decode_record
from naiad.config.rollout.state import RolloutState, changed
from naiad.core.errors import InferError, invalid_argument
from naiad.engine.rollout import rollout_changes
from naiad.repository.rollout_records import RolloutRecords
from naiad.repository.stores.notes import DirectoryNotes
from naiad.repository.stores.store import ModelEntry
from naiad.server import rollout_follower
from naiad.server.rollout_follower import RolloutFollower
from support.rollout_parts import Scene

NAME = ".m.rollout.json"


class Notes(DirectoryNotes):
    """Notes whose changes are seen at once."""

    look_s = 0.0


class ReadOnlyNotes(Notes):
    def exchange(self, model: str, change: object) -> None:
        raise PermissionError(13, "Permission denied")


class Replica:
    """A server with two versions of one model, and the record of its repository."""

    def __init__(self, directory: Path, *, notes: type[Notes] = Notes, cache: Path | None = None) -> None:
        self.scene = Scene(1, 2)
        self.engine = self.scene.engine
        self.engine.phase.is_starting = False
        self.records = RolloutRecords(cache=cache)
        self.entry = ModelEntry("m", directory / "m", {}, notes=notes(directory))
        self.engine.rollout_commands.keep(self.records, asyncio.get_running_loop())
        self.follower = RolloutFollower(self.engine, self.records)
        self.load()

    def load(self, declared: DeclaredRollout | None = None) -> None:
        """Load the model, as at the start of the server."""
        found = self.records.find(self.entry)
        self.engine.rollouts.declare("m", FoundRollout(declared, found.state, found.problem, (1, 2)))
        self.scene.publish()

    async def change(self, fields: Mapping[str, object] | None) -> InferError | None:
        done: asyncio.Future[InferError | None] = asyncio.get_running_loop().create_future()
        self.engine.rollout_commands.changes.change("m", fields, done.set_result)
        return await done

    async def look(self) -> None:
        """Look at the record until there is nothing left to do."""
        for _ in range(3):
            await self.follower.check()

    @property
    def state(self) -> RolloutState:
        found = self.engine.rollouts.state("m")
        assert found is not None
        return found

    def picks(self) -> Sequence[str]:
        return [request.model.version for request in self.scene.send(4)]


def stored(directory: Path) -> RolloutState:
    return decode_record((directory / NAME).read_bytes())


def test_decision_is_stored_before_it_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path)
        for fields in ({"stable": 1, "canary": 2, "weight": 50}, {"action": "rollback"}):
            assert await replica.change(fields) is None
            assert stored(tmp_path) == replica.engine.rollouts.decided()["m"]
        again = Replica(tmp_path)
        assert (again.picks(), list(again.state.refused)) == (["1"] * 4, [2])

    asyncio.run(run())


def test_decision_follows_from_that_of_another_server(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = Replica(tmp_path), Replica(tmp_path)
        assert await one.change({"stable": 1, "canary": 2, "weight": 50}) is None
        assert await two.change({"sticky": "user"}) is None
        rollout = two.state.rollout
        assert rollout is not None
        assert (rollout.weight, rollout.sticky) == (50.0, "user")
        await one.look()
        assert one.state == two.state

    asyncio.run(run())


def test_server_without_rollouts_looks_less_often(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = Replica(tmp_path), Replica(tmp_path)
        assert two.follower.pause_s == 1.0
        assert await one.change({"stable": 1, "canary": 2, "weight": 50}) is None
        await two.look()
        assert two.follower.pause_s == 0.5

    asyncio.run(run())


def test_decision_at_the_same_time_is_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = Replica(tmp_path), Replica(tmp_path)
        await one.change({"stable": 1, "canary": 2, "weight": 50})
        await two.look()
        keep = two.records.keep

        def interfere(key: str, state: RolloutState, *, is_decision: bool = False) -> RolloutState:
            two.records.keep = keep  # type: ignore[method-assign]  # only once
            one.records.keep("m", changed(one.state, {"weight": 5}, (1, 2), "m"))
            return keep(key, state, is_decision=is_decision)

        two.records.keep = interfere  # type: ignore[method-assign]
        assert await two.change({"sticky": "user"}) is None
        rollout = stored(tmp_path).rollout
        assert rollout is not None
        assert (rollout.weight, rollout.sticky) == (5.0, "user")

    asyncio.run(run())


def test_refusal_of_one_server_counts_for_all(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = Replica(tmp_path), Replica(tmp_path)
        await one.change({"stable": 1, "canary": 2, "weight": 100})
        await two.look()
        assert two.picks() == ["2"] * 4
        await one.change({"action": "rollback"})
        await two.look()
        assert two.picks() == ["1"] * 4
        error = await two.change({"weight": 100})
        assert error is not None
        assert "--allow 2" in error.message
        await two.change(None)
        assert two.picks() == ["1"] * 4  # the newest version that was not refused
        await two.change({"allow": 2})
        await one.look()
        assert one.picks() == two.picks() == ["2"] * 4

    asyncio.run(run())


def test_refusals_apply_to_servers_with_another_file(tmp_path: Path) -> None:
    first, second = (DeclaredRollout(Rollout(1, 2, weight=100.0), digest) for digest in ("first", "second"))

    async def run() -> None:
        one, two = Replica(tmp_path), Replica(tmp_path)
        one.load(first)
        two.load(second)
        await one.change({"action": "rollback"})
        assert two.picks() == ["2"] * 4
        await two.look()
        assert two.picks() == ["1"] * 4
        assert two.state.base == "second"
        three = Replica(tmp_path)
        three.load(second)
        assert three.picks() == ["1"] * 4

    asyncio.run(run())


def test_changed_file_is_stored_with_its_load(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path)
        await replica.change({"to": 1})
        replica.load(DeclaredRollout(Rollout(1, 2, weight=50.0), "new"))
        assert stored(tmp_path).base == ""
        await replica.look()
        assert stored(tmp_path) == replica.state
        assert (replica.state.base, replica.state.revision) == ("new", 1)

    asyncio.run(run())


def test_file_alone_stores_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path)
        replica.load(DeclaredRollout(Rollout(1, 2, weight=50.0), "new"))
        await replica.look()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_record_of_a_read_only_repository_is_cached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"

    async def run() -> None:
        replica = Replica(tmp_path, notes=ReadOnlyNotes, cache=cache)
        for weight in (10, 20):
            assert await replica.change({"stable": 1, "canary": 2, "weight": weight}) is None
        assert replica.engine.rollout_commands.status("m").record.startswith(str(cache))
        again = Replica(tmp_path, notes=ReadOnlyNotes, cache=cache)
        assert again.state == replica.state
        # Once the repository can be written, the record is there for all.
        other = Replica(tmp_path, cache=cache)
        await other.change({"weight": 30})
        rollout = stored(tmp_path).rollout
        assert rollout is not None
        assert rollout.weight == 30.0

    asyncio.run(run())
    (warning,) = [
        each.getMessage() for each in caplog.records if "where other servers do not see it" in each.getMessage()
    ]
    assert f"cannot be stored in {tmp_path / NAME}: Permission denied" in warning
    assert "--rollout-state=PATH" in warning


def test_cached_record_is_shared_later(tmp_path: Path) -> None:
    """A store that cannot be reached for a moment must not leave a verdict in the cache of one server for good."""
    cache = tmp_path / "cache"

    async def run() -> None:
        replica = Replica(tmp_path, notes=ReadOnlyNotes, cache=cache)
        await replica.change({"stable": 1, "canary": 2, "weight": 50})
        await replica.change({"action": "rollback"})
        status = replica.engine.rollout_commands.status("m").as_tree()
        assert (status["unstored"], "Permission denied" in status["unshared"]) == ("", True)
        await replica.look()
        assert not (tmp_path / NAME).exists()
        # A restart finds it in the cache, and shares it in time.
        again = Replica(tmp_path, cache=cache)
        assert again.engine.rollout_commands.status("m").unshared
        await again.look()
        assert not (tmp_path / NAME).exists()
        again.follower._shares.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rollout_follower, "_RETRY_S", 0.0)
            await again.look()
        assert list(stored(tmp_path).refused) == [2]
        assert again.engine.rollout_commands.status("m").as_tree()["unshared"] == ""
        assert not list(cache.iterdir()), "a record that is removed on purpose would come back"

    asyncio.run(run())


def test_decision_does_not_wait_for_hanging_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_changes, "_CATCH_UP_S", 0.05)
    may_answer = threading.Event()

    class HangingNotes(Notes):
        def read(self, model: str) -> bytes | None:
            assert may_answer.wait(60)
            return super().read(model)

    async def run() -> None:
        replica = Replica(tmp_path)
        await replica.change({"stable": 1, "canary": 2, "weight": 100})
        replica.records._homes["m"].notes = HangingNotes(tmp_path)
        change = asyncio.ensure_future(replica.change({"action": "rollback"}))
        while replica.state.refused == {}:
            await asyncio.sleep(0.01)
        assert not change.done(), "it was answered before it was stored"
        assert replica.picks() == ["1"] * 4
        may_answer.set()
        assert await change is None
        assert list(stored(tmp_path).refused) == [2]

    asyncio.run(run())


def test_removed_record_is_stored_again(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path)
        await replica.look()
        await replica.change({"to": 1})
        (tmp_path / NAME).unlink()  # before any look
        await replica.look()
        assert stored(tmp_path).rollout == Rollout(1)

    asyncio.run(run())


def test_only_a_decision_replaces_a_newer_record(tmp_path: Path) -> None:
    content = b'{"format": "naiad rollout", "schema": 2}'

    async def run() -> None:
        replica = Replica(tmp_path, cache=tmp_path / "cache")
        await replica.change({"stable": 1, "canary": 2, "weight": 50})
        (tmp_path / NAME).write_bytes(content)
        await replica.look()
        assert (tmp_path / NAME).read_bytes() == content
        assert "a later version of naiad" in replica.engine.rollout_commands.status("m").unshared
        await replica.change({"action": "rollback"})
        assert list(stored(tmp_path).refused) == [2]

    asyncio.run(run())
    assert (tmp_path / f"{NAME}.unreadable").read_bytes() == content


def test_rollout_without_a_place_applies_with_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        replica = Replica(tmp_path, notes=ReadOnlyNotes)
        with caplog.at_level(logging.ERROR):
            assert await replica.change({"to": 1}) is None
        assert replica.picks() == ["1"] * 4

    asyncio.run(run())
    assert "Permission denied; allow the server to write there, or give a directory" in caplog.text


def test_refusal_that_is_stored_nowhere_survives_an_unload(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path, notes=ReadOnlyNotes)
        await replica.change({"stable": 1, "canary": 2, "weight": 50})
        await replica.change({"action": "rollback"})
        status = replica.engine.rollout_commands.status("m").as_tree()
        assert "Permission denied" in status["unstored"]
        versions, replica.scene.versions = replica.scene.versions, {}
        replica.scene.publish()  # the model is unloaded
        replica.scene.versions = versions
        replica.load()
        assert (replica.picks(), list(replica.state.refused)) == (["1"] * 4, [2])

    asyncio.run(run())


def test_state_is_stored_once_there_is_space(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path, notes=ReadOnlyNotes)
        await replica.change({"to": 1})
        replica.records._homes["m"].notes = Notes(tmp_path)
        await replica.look()
        assert stored(tmp_path) == replica.engine.rollouts.decided()["m"]
        assert replica.engine.rollout_commands.status("m").unstored == ""

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"format": "other"}'])
def test_next_decision_replaces_an_unusable_record(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)

    async def run() -> None:
        replica = Replica(tmp_path)
        assert replica.picks() == ["1"] * 4
        assert f"the record {tmp_path / NAME} cannot be used" in caplog.text
        assert await replica.change({"to": 2}) is None
        assert stored(tmp_path).rollout == Rollout(2)

    asyncio.run(run())
    assert (tmp_path / f"{NAME}.unreadable").read_bytes() == content


def test_record_that_breaks_while_servers_run_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(tmp_path)
        await replica.change({"stable": 1, "canary": 2, "weight": 100})
        (tmp_path / NAME).write_bytes(b"{")
        await replica.look()
        assert replica.picks() == ["2"] * 4
        assert stored(tmp_path) == replica.state

    asyncio.run(run())


def test_missing_versions_are_loaded_beside_served_ones(tmp_path: Path) -> None:
    class Repository:
        """Has a version that is not loaded."""

        takes_commands = True
        catalog = None

        def __init__(self, replica: Replica) -> None:
            self.replica = replica
            self.seen: list[frozenset[int] | None] = []
            self.error: InferError | None = None

        def load_beside(self, key: str) -> None:
            scene = self.replica.scene
            self.seen.append(scene.engine.rollouts.intended_versions(key))
            if self.error is not None:
                raise self.error
            scene.versions[3] = Scene(3).versions[3]
            scene.engine.rollouts.declare(key, FoundRollout())
            scene.publish()

    async def run() -> None:
        replica = Replica(tmp_path)
        repository = Repository(replica)
        replica.engine.attach(repository)  # type: ignore[arg-type]  # what is used of it
        repository.error = invalid_argument("version 3 does not load")
        error = await replica.change({"canary": 3, "weight": 50})
        assert error is repository.error
        assert (replica.picks(), list(tmp_path.iterdir())) == (["2"] * 4, [])
        # What the record says of a model that is not loaded here, or was unloaded meanwhile, loads nothing.
        commands, errors = replica.engine.rollout_commands, list[InferError | None]()
        commands.carry_out("unloaded", commands.changed("m", {"to": 1}), errors.append, is_stored=True)
        assert (errors, repository.seen) == ([None], [{1, 2, 3}])
        repository.error = None
        assert await replica.change({"canary": 3, "weight": 50}) is None
        assert sorted(replica.picks()) == ["2", "2", "3", "3"]
        assert repository.seen == [{1, 2, 3}, {1, 2, 3}]
        assert replica.engine.rollouts.intended_versions("m") is None

    asyncio.run(run())
