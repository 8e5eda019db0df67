"""Where the states of rollouts are kept."""

from pathlib import Path

import pytest

from naiad.config.rollout.rollout_declaration import Rollout
from naiad.config.rollout.state import RolloutState
from naiad.repository.rollout_records import RolloutRecords
from naiad.repository.stores.namespaces import NamespacedStore
from naiad.repository.stores.store import LocalStore

STATE = RolloutState(Rollout(1))


@pytest.mark.parametrize("spelling", ["models", "./models/", "other/../models"])
@pytest.mark.parametrize("has_namespaces", [False, True])
def test_state_is_found_however_the_repository_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str, has_namespaces: bool
) -> None:
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    # A directory in the place of the file that would be written: the repository is read-only.
    (tmp_path / "models" / ".m.rollout.json.new").mkdir()

    def records() -> RolloutRecords:
        return RolloutRecords(tmp_path / "states") if has_namespaces else RolloutRecords(cache=tmp_path / "states")

    def store(root: Path) -> LocalStore | NamespacedStore:
        return NamespacedStore(LocalStore(root)) if has_namespaces else LocalStore(root)

    def entry(root: Path):  # type: ignore[no-untyped-def]
        found = store(root)
        return found.open_model(next(iter(found.list_models())))

    one = records()
    absolute = entry(tmp_path / "models")
    one.find(absolute)
    one.keep(absolute.key, STATE)
    assert records().find(entry(Path(spelling))).state == STATE


def test_look_that_is_a_little_early_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of a second is sometimes a millisecond early, and the look must not wait for the next one."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    mine, other = RolloutRecords(), RolloutRecords()
    entry = LocalStore(tmp_path).open_model("m")
    times_s = iter((10.0, 10.995, 11.0))
    monkeypatch.setattr("naiad.repository.rollout_records.time.monotonic", lambda: next(times_s))
    mine.find(entry)
    assert mine.changed() == {}
    other.find(entry)
    other.keep(entry.key, STATE)
    assert mine.changed()[entry.key].state == STATE
