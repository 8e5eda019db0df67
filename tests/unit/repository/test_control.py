"""Commands to load and unload, with a loader that only says what it was asked."""

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, MisfitError, UnloadableError, invalid_argument
from naiad.core.model import ModelState
from naiad.repository.catalog import Catalog
from naiad.repository.control.control_modes import RepositoryControl, explicit_control, no_control
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.store import LocalStore, ModelEntry


class Version:
    def __init__(self, name: str, number: int, config: ModelConfig) -> None:
        self.name, self.number, self.config = name, number, config
        self.stopped = threading.Event()
        self.may_stop = threading.Event()
        self.may_stop.set()

    def stop(self, timeout_s: float) -> bool:
        self.may_stop.wait(60)
        self.stopped.set()
        return True


class Change:
    """A change in place; what it leaves over is a version 0."""

    def __init__(self, version: Version, config: ModelConfig) -> None:
        self.version, self.config = version, config
        self.outcome = ""
        self.left = Version(version.name, 0, config)

    def commit(self) -> Version | None:
        self.outcome = "made"
        self.version.config = self.config
        return self.left if self.config.instance_group else None

    def discard(self) -> None:
        self.outcome = "discarded"


class Loader:
    """A directory `uses-x` makes the model an ensemble of x; a file `broken` makes loading fail, `bad` planning.

    A file `renamed` in the version of a model makes its ensembles not fit.
    """

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.loaded: list[Version] = []
        self.changes: list[Change] = []
        self.on_load: Callable[[], None] = lambda: None

    def plan(self, entry: ModelEntry) -> ModelPlan:
        config = ModelConfig(name=entry.name)
        config.MergeFrom(entry.preset)
        for child in entry.model_dir.iterdir():
            if child.name.startswith("uses-"):
                config.ensemble_scheduling.step.add(model_name=child.name.removeprefix("uses-"))
            if child.name == "exits":
                raise SystemExit("a library ends the process")
            if child.name == "bad":
                raise invalid_argument("bad config")
        if not entry.version_dirs:
            raise UnloadableError(ErrorCode.INVALID_ARG, "no versions")
        return ModelPlan(entry, config, list(entry.version_dirs))

    def config_of(self, loaded: Version) -> ModelConfig:
        return ModelConfig()

    def update(self, plan: ModelPlan, version: int, loaded: Version) -> "Change | None":
        if plan.entry.name.startswith("rigid"):
            return None
        if (plan.entry.model_dir / "unfit").exists():
            raise invalid_argument("does not fit")
        self.changes.append(Change(loaded, plan.config))
        return self.changes[-1]

    def load(self, plan: ModelPlan, version: int) -> Version:
        self.loads.append(f"{plan.entry.name}:{version}")
        self.on_load()
        if (plan.entry.version_dirs[version] / "broken").exists():
            raise invalid_argument("broken")
        for step in plan.config.ensemble_scheduling.step:
            if (plan.entry.model_dir.parent / step.model_name / "1" / "renamed").exists():
                raise MisfitError(ErrorCode.INVALID_ARG, f"it maps what {step.model_name} lacks")
        self.loaded.append(Version(plan.entry.name, version, plan.config))
        return self.loaded[-1]


class Scene:
    def __init__(self, root: Path, mode: str = "explicit", at_start: tuple[str, ...] = ()) -> None:
        self.root = root
        self.loader = Loader()
        self.ready: dict[str, Mapping[int, Version]] = {}
        self.settled = 0
        store = LocalStore(root)
        self.catalog: Catalog[Version] = Catalog([store], self.loader, self.publish, ready_rule=ReadyRule("all"))
        self.control: RepositoryControl[Version] = (
            no_control(self.catalog) if mode == "none" else explicit_control(self.catalog, self.settle, at_start)
        )

    def publish(self, ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        self.ready = dict(ready)

    def settle(self) -> None:
        self.settled += 1

    def write(self, name: str, *versions: int, uses: tuple[str, ...] = ()) -> Path:
        for version in versions or (1,):
            (self.root / name / str(version)).mkdir(parents=True, exist_ok=True)
        for member in uses:
            (self.root / name / f"uses-{member}").mkdir()
        return self.root / name

    def load(self, name: str, **parameters: object) -> None:
        self.control.load_model(name, {key.replace("__", ":", 1): value for key, value in parameters.items()})

    def unload(self, name: str, **parameters: object) -> None:
        self.control.unload_model(name, parameters)

    def served(self) -> dict[str, list[int]]:
        return {name: sorted(versions) for name, versions in self.ready.items()}

    def states(self) -> dict[str, str]:
        return {
            f"{row.name}:{row.version}": f"{row.state.value if row.state else ''} {row.reason}".strip()
            for row in self.control.catalog.survey()
        }

    def refused(self, name: str, **parameters: object) -> InferError:
        with pytest.raises(InferError) as caught:
            self.control.load_model(name, parameters)
        return caught.value


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def config(**fields: object) -> str:
    return json.dumps(fields)


class TestNone:
    def test_everything_is_loaded_and_commands_are_refused(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, "none")
        scene.write("a")
        assert scene.control.load_at_start()
        assert scene.served() == {"a": [1]}
        for command in (scene.control.load_model, scene.control.unload_model):
            with pytest.raises(InferError, match="not allowed if polling is enabled") as caught:
                command("a", {})
            assert caught.value.triton_code is ErrorCode.UNAVAILABLE

    def test_survey_shows_what_came_later(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, "none")
        scene.write("b", 1, 2)
        assert scene.control.load_at_start()
        scene.write("a")
        assert scene.states() == {"a:": "", "b:1": "READY", "b:2": "READY"}
        assert [row.name for row in scene.control.catalog.survey(ready_only=True)] == ["b", "b"]
        assert [row.name for row in scene.control.catalog.index()] == ["b", "b"]


class TestStart:
    def test_nothing_is_loaded_unless_it_is_named(self, scene: Scene) -> None:
        scene.write("a")
        assert scene.control.load_at_start()
        assert scene.served() == {}
        assert scene.states() == {"a:": ""}
        assert scene.control.catalog.is_ready()

    def test_named_models(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("a", "b", "a"))
        for name in ("a", "b", "c"):
            scene.write(name)
        assert scene.control.load_at_start()
        assert scene.served() == {"a": [1], "b": [1]}
        assert sorted(scene.loader.loads) == ["a:1", "b:1"]

    def test_all(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("*",))
        scene.write("a")
        scene.write("e", uses=("a",))
        assert scene.control.load_at_start()
        assert scene.served() == {"a": [1], "e": [1]}
        assert sorted(scene.loader.loads) == ["a:1", "e:1"]

    @pytest.mark.parametrize(
        ("wanted", "loaded"),
        [
            (("bert-*",), ["bert-a", "bert-b"]),
            (("bert-?", "x"), ["bert-a", "bert-b", "x"]),
            (("[xy]", "bert-a"), ["bert-a", "x"]),
        ],
    )
    def test_patterns(self, tmp_path: Path, wanted: tuple[str, ...], loaded: list[str]) -> None:
        scene = Scene(tmp_path, at_start=wanted)
        for name in ("bert-a", "bert-b", "x", "other"):
            scene.write(name)
        assert scene.control.load_at_start()
        assert sorted(scene.served()) == loaded

    def test_a_pattern_that_stands_for_nothing(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("brt-*", "a"))
        scene.write("a")
        assert not scene.control.load_at_start()
        assert scene.served() == {"a": [1]}

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("a", "nothing"))
        scene.write("a")
        assert not scene.control.load_at_start()
        assert scene.served() == {"a": [1]}

    def test_only_what_was_tried_counts_for_readiness(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("bad",))
        (scene.write("bad") / "bad").mkdir()
        assert not scene.control.load_at_start()
        assert scene.control.catalog.is_ready()

    def test_failure_at_start_counts_until_it_is_mended(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("a",))
        broken = scene.write("a") / "1" / "broken"
        broken.touch()
        assert not scene.control.load_at_start()
        assert not scene.control.catalog.is_ready()
        scene.refused("a")
        assert not scene.control.catalog.is_ready()
        broken.unlink()
        scene.load("a")
        assert scene.control.catalog.is_ready()

    def test_model_without_version_counts_at_start(self, tmp_path: Path) -> None:
        scene = Scene(tmp_path, at_start=("a",))
        (tmp_path / "a").mkdir()
        assert not scene.control.load_at_start()
        assert not scene.control.catalog.is_ready()


class TestLoad:
    def test_a_model(self, scene: Scene) -> None:
        scene.write("a", 1, 3)
        scene.load("a")
        assert scene.served() == {"a": [1, 3]}
        assert scene.states() == {"a:1": "READY", "a:3": "READY"}

    def test_again_without_a_change_does_nothing(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a")
        scene.load("a")
        assert scene.loader.loads == ["a:1"]

    def test_load_after_change_lets_old_version_finish(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (old,) = scene.loader.loaded
        old.may_stop.clear()
        (model / "1" / "weights").touch()
        (model / "2").mkdir()
        scene.load("a")
        assert scene.served() == {"a": [1, 2]}
        assert old not in scene.ready["a"].values()
        assert not old.stopped.is_set()
        old.may_stop.set()
        assert old.stopped.wait(60)
        assert scene.settled == 1

    def test_version_that_is_gone(self, scene: Scene) -> None:
        model = scene.write("a", 1, 2)
        scene.load("a")
        (model / "1").rmdir()
        scene.load("a")
        assert scene.served() == {"a": [2]}
        assert scene.states() == {"a:1": "UNAVAILABLE unloaded", "a:2": "READY"}

    def test_failed_reload_leaves_the_old_serving(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "1" / "broken").touch()
        error = scene.refused("a")
        assert error.code is ErrorCode.INVALID_ARG
        assert (
            error.message
            == "load failed for model 'a': version 1 is at UNAVAILABLE state: Invalid argument: broken;\n"
        )
        assert scene.served() == {"a": [1]}
        assert not scene.loader.loaded[0].stopped.is_set()
        assert scene.states() == {
            "a:1": "READY serving what was loaded before, its update failed: Invalid argument: broken"
        }
        assert scene.control.catalog.is_ready()

    def test_failed_first_load(self, scene: Scene) -> None:
        model = scene.write("a", 1, 2)
        (model / "2" / "broken").touch()
        assert "version 2 is at UNAVAILABLE state: Invalid argument: broken" in scene.refused("a").message
        assert scene.served() == {}
        assert scene.states() == {"a:1": "UNAVAILABLE unloaded", "a:2": "UNAVAILABLE Invalid argument: broken"}
        assert scene.control.catalog.is_ready()

    def test_success_after_a_failure(self, scene: Scene) -> None:
        model = scene.write("a", 1, 2)
        (model / "2" / "broken").touch()
        scene.refused("a")
        (model / "2" / "broken").unlink()
        (model / "2").rmdir()
        scene.load("a")
        assert scene.states() == {"a:1": "READY", "a:2": "UNAVAILABLE unloaded"}
        assert scene.control.catalog.is_ready()

    @pytest.mark.parametrize("name", ["nothing", "..", "bad", "exits"])
    def test_what_cannot_be_polled(self, scene: Scene, name: str) -> None:
        for each in ("bad", "exits"):
            (scene.write(each) / each).touch()
        error = scene.refused(name)
        if name == "..":
            assert error.code is ErrorCode.INVALID_ARG
        else:
            codes = {"nothing": ErrorCode.NOT_FOUND, "bad": ErrorCode.INVALID_ARG, "exits": ErrorCode.INTERNAL}
            assert error.code is codes[name]
            assert error.triton_code is ErrorCode.INTERNAL
            assert error.message.startswith(f"failed to load '{name}', failed to poll from model repository")
        assert scene.control.catalog.is_ready()

    def test_what_can_be_polled_but_not_loaded(self, scene: Scene) -> None:
        (scene.root / "empty").mkdir()
        error = scene.refused("empty")
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message == "load failed for model 'empty': no versions\n"
        assert scene.control.catalog.is_ready()

    def test_model_in_two_stores(self, scene: Scene, tmp_path: Path) -> None:
        scene.write("a")
        catalog: Catalog[Version] = Catalog([LocalStore(tmp_path)] * 2, scene.loader, scene.publish)
        control = explicit_control(catalog, scene.settle)
        with pytest.raises(InferError, match="two or more repositories"):
            control.load_model("a", {})


class TestUnchangedVersions:
    """Triton: versions whose files have not changed stay, if the configuration has changed in no other way than in
    instance groups and version policy.
    """

    def test_stay_when_a_version_is_added(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "2").mkdir()
        scene.load("a")
        assert scene.loader.loads == ["a:1", "a:2"]
        assert scene.ready["a"][1] is scene.loader.loaded[0]
        assert not scene.loader.loaded[0].stopped.is_set()
        assert scene.states() == {"a:1": "READY", "a:2": "READY"}

    def test_stay_when_the_other_is_written_to(self, scene: Scene) -> None:
        model = scene.write("a", 1, 2)
        scene.load("a")
        (model / "2" / "weights").touch()
        scene.load("a")
        assert sorted(scene.loader.loads) == ["a:1", "a:2", "a:2"]

    def test_change_of_shared_file_invalidates_versions(self, scene: Scene) -> None:
        model = scene.write("a", 1, 2)
        scene.load("a")
        (model / "labels.txt").touch()
        scene.load("a")
        assert sorted(scene.loader.loads) == ["a:1", "a:1", "a:2", "a:2"]

    @pytest.mark.parametrize(
        ("change", "stays"),
        [
            ({"instance_group": [{"count": 3}]}, True),
            ({"version_policy": {"all": {}}}, True),
            ({"max_batch_size": 8}, False),
            ({"parameters": {"a": {"string_value": "b"}}}, False),
        ],
    )
    def test_and_the_configuration(self, scene: Scene, change: dict[str, object], stays: bool) -> None:
        scene.write("a")
        scene.load("a")
        scene.load("a", config=config(**change))
        assert scene.loader.loads == ["a:1"] if stays else ["a:1", "a:1"]
        assert [change.outcome for change in scene.loader.changes] == ["made"] * stays

    def test_what_a_change_leaves_over_is_stopped(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a")
        scene.load("a", config=config(instance_group=[{"count": 3}]))
        assert scene.loader.changes[0].left.stopped.wait(60)
        assert not scene.loader.loaded[0].stopped.is_set()

    def test_change_is_discarded_if_another_version_fails(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "2").mkdir()
        (model / "2" / "broken").touch()
        scene.refused("a")
        assert [change.outcome for change in scene.loader.changes] == ["discarded"]
        assert scene.served() == {"a": [1]}
        assert scene.states()["a:1"] == "READY"

    def test_a_change_that_fails_leaves_what_is_served(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "1" / "unfit").touch()
        (model / "config.pbtxt").touch()
        scene.load("a")
        (model / "unfit").touch()
        scene.load("a", config=config())  # all files are reloaded
        assert scene.refused("a", config=config(instance_group=[{"count": 3}])).message.endswith("does not fit;\n")
        assert scene.served() == {"a": [1]}

    def test_other_changes_reload_model(self, scene: Scene) -> None:
        scene.write("rigid")
        scene.load("rigid")
        scene.load("rigid", config=config(instance_group=[{"count": 3}]))
        assert scene.loader.loads == ["rigid:1"] * 2

    def test_ensembles_are_always_held_against_their_members(self, scene: Scene) -> None:
        scene.write("x")
        model = scene.write("e", uses=("x",))
        scene.load("e")
        (model / "config.pbtxt").touch()
        scene.load("e")
        assert scene.loader.loads == ["x:1", "e:1", "e:1"]

    def test_force_reloads_versions(self, scene: Scene) -> None:
        scene.write("a", 1, 2)
        scene.load("a")
        scene.control.load_model("a", {"force": True})
        assert len(scene.loader.loads) == 4
        assert scene.loader.changes == []


class TestOverride:
    def test_config(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a", config=config(max_batch_size=7))
        assert scene.ready["a"][1].config.max_batch_size == 7

    def test_it_is_always_loaded(self, scene: Scene) -> None:
        scene.write("a")
        for batch_size in (7, 8):
            scene.load("a", config=config(max_batch_size=batch_size))
        assert scene.ready["a"][1].config.max_batch_size == 8
        assert scene.loader.loads == ["a:1"] * 2

    @pytest.mark.parametrize("file", ["config.pbtxt", "1/weights"])
    def test_it_stays_until_a_file_changes(self, scene: Scene, file: str) -> None:
        model = scene.write("a")
        (model / file).touch()
        scene.load("a", config=config(max_batch_size=7))
        scene.load("a")
        assert scene.ready["a"][1].config.max_batch_size == 7
        os.utime(model / file, ns=(1, 1))
        scene.load("a")
        assert scene.ready["a"][1].config.max_batch_size == 0
        assert scene.loader.loads == ["a:1"] * 2

    def test_forced_load_goes_back(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a", config=config(max_batch_size=7))
        scene.load("a", force=True)
        assert scene.ready["a"][1].config.max_batch_size == 0

    def test_load_after_brought_files_goes_back(self, scene: Scene) -> None:
        scene.write("a")
        scene.control.load_model("a", {"config": config(), "file:/5/model.bin": b"x"})
        scene.load("a")
        assert scene.served() == {"a": [1]}

    def test_update_answers_when_instances_have_left(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a")
        scene.load("a", config=config(instance_group=[{"count": 2}]))
        (change,) = scene.loader.changes
        assert change.outcome == "made"
        assert change.left.stopped.is_set()

    def test_files_of_a_model_that_is_not_there(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = scene.root / "temporary"
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        scene.control.load_model("new", {"config": config(), "file:5/model.bin": b"x"})
        assert scene.served() == {"new": [5]}
        (kept,) = directory.iterdir()
        assert (kept / "5" / "model.bin").read_bytes() == b"x"
        scene.control.load_model("new", {"config": config(), "file:6/model.bin": b"y"})
        assert scene.served() == {"new": [6]}
        scene.unload("new")
        assert list(directory.iterdir()) == []
        assert "failed to poll" in scene.refused("new").message

    def test_files_that_fail_to_load_leave_nothing(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = scene.root / "temporary"
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        with pytest.raises(InferError, match="broken"):
            scene.control.load_model("new", {"config": config(), "file:5/broken": b"x"})
        assert list(directory.iterdir()) == []

    def test_bad_parameters(self, scene: Scene) -> None:
        scene.write("a")
        assert scene.refused("a", nope=1).code is ErrorCode.INVALID_ARG
        assert scene.loader.loads == []


class TestEnsembles:
    @pytest.fixture
    def scene(self, tmp_path: Path) -> Scene:
        scene = Scene(tmp_path)
        for name in ("x", "y", "z"):
            scene.write(name)
        scene.write("inner", uses=("x", "y"))
        scene.write("outer", uses=("inner", "z"))
        scene.write("other", uses=("y",))
        return scene

    def test_members_are_loaded_first(self, scene: Scene) -> None:
        scene.load("outer")
        assert sorted(scene.served()) == ["inner", "outer", "x", "y", "z"]
        loads = scene.loader.loads
        assert loads.index("x:1") < loads.index("inner:1") < loads.index("outer:1")

    def test_unload_leaves_members(self, scene: Scene) -> None:
        scene.load("outer")
        scene.unload("outer")
        assert sorted(scene.served()) == ["inner", "x", "y", "z"]

    def test_unload_dependents(self, scene: Scene) -> None:
        scene.load("x")
        scene.load("outer")
        scene.load("other")
        scene.unload("outer", unload_dependents=True)
        assert sorted(scene.served()) == ["other", "x", "y"]

    def test_member_that_does_not_load(self, scene: Scene) -> None:
        (scene.root / "x" / "1" / "broken").touch()
        scene.load("inner")  # this loader does not look at members
        assert sorted(scene.served()) == ["inner", "y"]

    def test_member_that_is_not_there(self, scene: Scene) -> None:
        scene.write("lonely", uses=("nothing",))
        scene.load("lonely")
        assert sorted(scene.served()) == ["lonely"]

    def test_member_with_its_own_config_keeps_it(self, scene: Scene) -> None:
        scene.load("x", config=config(max_batch_size=7))
        scene.load("inner")
        assert scene.ready["x"][1].config.max_batch_size == 7

    def test_changed_member_is_loaded_with_its_ensemble(self, scene: Scene) -> None:
        scene.load("inner")
        (scene.root / "x" / "2").mkdir()
        scene.load("inner")
        assert scene.served()["x"] == [1, 2]
        assert scene.loader.loads.count("y:1") == 1

    def test_circle(self, scene: Scene) -> None:
        scene.write("p", uses=("q",))
        scene.write("q", uses=("p",))
        scene.load("p")
        assert sorted(scene.served()) == ["p", "q"]
        scene.unload("p", unload_dependents=True)
        assert scene.served() == {}


class TestUnload:
    def test_a_model(self, scene: Scene) -> None:
        scene.write("a", 1, 2)
        scene.load("a")
        scene.unload("a")
        assert scene.served() == {}
        assert all(version.stopped.is_set() for version in scene.loader.loaded)
        assert scene.states() == {"a:1": "UNAVAILABLE unloaded", "a:2": "UNAVAILABLE unloaded"}
        assert scene.control.catalog.is_ready()
        scene.load("a")
        assert scene.served() == {"a": [1, 2]}

    def test_no_request_reaches_it_while_it_finishes(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a")
        scene.loader.loaded[0].may_stop.clear()
        unloading = threading.Thread(target=scene.unload, args=("a",))
        unloading.start()
        while scene.served():
            pass
        assert scene.states() == {"a:1": "UNLOADING"}
        scene.loader.loaded[0].may_stop.set()
        unloading.join(60)
        assert scene.states() == {"a:1": "UNAVAILABLE unloaded"}

    def test_unknown_model_is_as_good_as_unloaded(self, scene: Scene) -> None:
        scene.unload("nothing")
        assert scene.states() == {}

    def test_failed_model_is_forgiven(self, scene: Scene) -> None:
        (scene.write("a") / "1" / "broken").touch()
        scene.refused("a")
        scene.unload("a")
        assert scene.states() == {"a:1": "UNAVAILABLE unloaded"}
        assert scene.control.catalog.is_ready()


class TestSideBySide:
    def test_commands_about_one_model_are_serialized(self, scene: Scene) -> None:
        model = scene.write("rigid")
        running = most = 0
        lock = threading.Lock()

        def on_load() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            os.utime(model, ns=(len(scene.loader.loads),) * 2)
            with lock:
                running -= 1

        scene.loader.on_load = on_load
        threads = [
            threading.Thread(target=scene.load, args=("rigid",), kwargs={"config": config()}) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert most == 1
        assert len(scene.loader.loaded) == 8
        assert [version.stopped.wait(60) for version in scene.loader.loaded[:-1]] == [True] * 7
        assert list(scene.ready["rigid"].values()) == [scene.loader.loaded[-1]]

    def test_stopping_server_publishes_nothing(self, scene: Scene) -> None:
        scene.write("a")
        scene.loader.on_load = scene.control.abandon
        with pytest.raises(InferError, match="the server is stopping"):
            scene.load("a")
        assert scene.served() == {}
        assert scene.loader.loaded[0].stopped.is_set()
        assert scene.refused("a").code in (ErrorCode.UNAVAILABLE, ErrorCode.INVALID_ARG)

    def test_unload_all_waits_for_what_is_replaced(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        scene.loader.loaded[0].may_stop.clear()
        (model / "1" / "weights").touch()
        (model / "2").mkdir()
        scene.load("a")
        assert not scene.control.unload_all(0.0)
        scene.loader.loaded[0].may_stop.set()
        assert scene.control.unload_all(10.0)
        assert [row.state for row in scene.control.catalog.index()] == [ModelState.UNAVAILABLE] * 2


def test_force_reloads_unchanged_model(scene: Scene) -> None:
    scene.write("a")
    scene.load("a")
    scene.control.load_model("a", {})
    assert len(scene.loader.loaded) == 1
    scene.control.load_model("a", {"force": True})
    assert len(scene.loader.loaded) == 2


class TestDryRun:
    def test_dry_run_loads_and_publishes_nothing(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "2").mkdir()
        scene.load("a", dry_run=True)
        assert scene.loader.loads == ["a:1", "a:1", "a:2"]
        assert scene.served() == {"a": [1]}
        assert scene.ready["a"][1] is scene.loader.loaded[0]
        assert [version.stopped.is_set() for version in scene.loader.loaded] == [False, True, True]
        assert scene.states() == {"a:1": "READY"}
        scene.load("a")
        assert scene.served() == {"a": [1, 2]}

    def test_dry_run_failure_is_returned_not_recorded(self, scene: Scene) -> None:
        model = scene.write("a")
        scene.load("a")
        (model / "1" / "broken").touch()
        error = scene.refused("a", dry_run=True)
        assert error.message == (
            "load would fail for model 'a': version 1 would be at UNAVAILABLE state: Invalid argument: broken;\n"
        )
        assert scene.states() == {"a:1": "READY"}

    def test_of_what_was_never_loaded(self, scene: Scene) -> None:
        scene.write("a")
        scene.load("a", dry_run=True)
        assert scene.states() == {"a:": ""}
        assert scene.served() == {}
        assert "not found" not in str(scene.loader.loads)

    def test_of_brought_files_leaves_none(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = scene.root / "temporary"
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        scene.control.load_model("new", {"config": config(), "file:5/model.bin": b"x", "dry_run": True})
        assert scene.loader.loads == ["new:5"]
        assert list(directory.iterdir()) == []


def test_undone_update_is_forgiven(scene: Scene) -> None:
    scene.write("a")
    scene.load("a")
    second = scene.write("a", 2) / "2"
    (second / "broken").touch()
    scene.refused("a")
    assert scene.states() == {"a:1": "READY", "a:2": "UNAVAILABLE Invalid argument: broken"}
    (second / "broken").unlink()
    second.rmdir()
    scene.load("a")
    assert scene.states() == {"a:1": "READY", "a:2": "UNAVAILABLE unloaded"}


class TestMembersOfEnsembles:
    @pytest.fixture
    def scene(self, tmp_path: Path) -> Scene:
        scene = Scene(tmp_path)
        for name in ("x", "y"):
            scene.write(name)
        scene.write("e", uses=("x", "y"))
        scene.load("e")
        scene.loader.loads.clear()
        return scene

    def test_replaced_member_checks_its_ensembles(self, scene: Scene) -> None:
        (scene.root / "x" / "1" / "weights").touch()
        scene.load("x")
        assert scene.loader.loads == ["x:1", "e:1"]
        scene.load("x")
        assert scene.loader.loads == ["x:1", "e:1"]

    def test_also_when_the_ensemble_is_what_is_loaded(self, scene: Scene) -> None:
        (scene.root / "x" / "1" / "weights").touch()
        scene.load("e")
        assert scene.loader.loads == ["x:1", "e:1"]

    def test_mismatched_ensemble_serves_on_with_reason(self, scene: Scene) -> None:
        (scene.root / "x" / "1" / "weights").touch()
        (scene.root / "e" / "1" / "broken").touch()
        scene.load("x")
        assert scene.served() == {"e": [1], "x": [1], "y": [1]}
        assert (
            scene.states()["e:1"]
            == "READY serving what was loaded before, its update failed: Invalid argument: broken"
        )

    def test_ensemble_leaves_while_its_member_does_not_fit(self, scene: Scene) -> None:
        scene.write("outer", uses=("e",))
        scene.load("outer")
        renamed = scene.root / "x" / "1" / "renamed"
        for _ in range(2):
            renamed.touch()
            scene.load("x")
            assert scene.served() == {"x": [1], "y": [1]}
            assert (
                scene.states()["e:1"]
                == (
                    "UNAVAILABLE it does not fit its members any more: load failed for model 'e': version 1 is at "
                    "UNAVAILABLE state: Invalid argument: it maps what x lacks;\n"
                ).strip()
            )
            assert scene.states()["outer:1"].endswith("any more: ensemble 'e' is not served any more")
            assert scene.control.catalog.is_ready()
            (scene.root / "y" / "1" / "weights").touch()
            scene.load("y")
            assert scene.states()["e:1"].startswith("UNAVAILABLE it does not fit its members any more: ")
            renamed.unlink()
            scene.load("x")
            assert scene.served() == {"e": [1], "outer": [1], "x": [1], "y": [1]}
            assert scene.states()["e:1"] == "READY"

    def test_unloaded_member_takes_its_ensembles_along(self, scene: Scene) -> None:
        scene.write("outer", uses=("e",))
        scene.load("outer")
        scene.loader.loads.clear()
        scene.unload("x")
        assert scene.served() == {"y": [1]}
        assert scene.states()["e:1"] == scene.states()["outer:1"] == "UNAVAILABLE unloaded"
        assert scene.control.catalog.is_ready()
        scene.load("x")
        assert scene.served() == {"e": [1], "outer": [1], "x": [1], "y": [1]}
        assert scene.loader.loads == ["x:1", "e:1", "outer:1"]

    def test_ensemble_comes_back_with_its_last_member(self, scene: Scene) -> None:
        scene.unload("x")
        scene.unload("y")
        scene.load("x")
        assert scene.served() == {"x": [1]}
        scene.load("y")
        assert scene.served() == {"e": [1], "x": [1], "y": [1]}

    def test_ensemble_unloaded_by_command_stays_unloaded(self, scene: Scene) -> None:
        scene.unload("x")
        scene.unload("e")
        scene.load("x")
        assert scene.served() == {"x": [1], "y": [1]}

    def test_override_and_implicit_load_are_kept(self, scene: Scene) -> None:
        scene.load("e", config=config(max_batch_size=3, ensemble_scheduling={"step": [{"model_name": "x"}]}))
        (scene.root / "x" / "1" / "weights").touch()
        scene.load("x")
        assert scene.ready["e"][1].config.max_batch_size == 3
