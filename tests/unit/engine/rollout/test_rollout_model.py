"""The split of requests in the engine: which version gets a request, and what clients see of a bad canary."""

import gc
import json
import weakref
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_declaration import DeclaredRollout, Rollout
from naiad.config.rollout.rollout_record import FoundRollout
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import ErrorCode, InferError, UnknownSequenceError, internal, invalid_argument, unavailable
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.engine.rollout.sides import MAX_COUNTERS
from naiad.options.trace import TraceOptions
from naiad.telemetry.trace.tracer import Tracer
from support.model_call_parts import FakeServed, make_call
from support.rollout_parts import Scene, ScriptedVersion


def versions_of(scene: Scene) -> list[str]:
    return [response.header.model_version for _, response in scene.answers.received]


class TestNames:
    def test_model_without_a_rollout_is_served_directly(self) -> None:
        scene = Scene(1, 2)
        newest = scene.versions[2]
        for name in ("", "-1", "2", "latest", "stable", "canary"):
            assert scene.engine.inference.served("m", name) is newest
        assert scene.engine.inference.served("m", "1") is scene.versions[1]

    def test_names_lead_to_versions_of_the_rollout(self) -> None:
        scene = Scene(1, 2, 3)
        scene.change(stable=1, canary=2, aliases={"champion": 1})
        found = [
            scene.engine.inference.served("m", name).version for name in ("stable", "canary", "latest", "champion")
        ]
        assert found == ["1", "2", "3", "1"]

    def test_canary_without_a_declared_one_is_stable(self) -> None:
        scene = Scene(1, 2)
        scene.change(to=1)
        assert scene.engine.inference.served("m", "canary") is scene.versions[1]

    def test_unknown_name_is_refused_with_the_known_ones(self) -> None:
        scene = Scene(1, 2)
        scene.engine.attach(IndexOf(scene))  # type: ignore[arg-type]  # the part that a look-up needs
        scene.change(stable=1, aliases={"champion": 1})
        with pytest.raises(InferError, match="or a name: canary, champion, latest, stable") as caught:
            scene.engine.inference.served("m", "champignon")
        assert caught.value.code is ErrorCode.INVALID_ARG

    def test_missing_canary_is_not_replaced_by_another_version(self) -> None:
        scene = Scene(1, 2)
        scene.engine.attach(IndexOf(scene))  # type: ignore[arg-type]  # the part that a look-up needs
        scene.change(stable=1, canary=2)
        del scene.versions[2]
        scene.publish()
        with pytest.raises(InferError, match="version 2, which is 'canary' in the rollout"):
            scene.engine.inference.served("m", "canary")

    def test_metadata_of_a_name_has_its_version(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2)
        assert scene.engine.views.model_metadata("m", "canary").versions == ["2"]
        assert scene.engine.views.model_metadata("m").versions == ["1", "2"]

    def test_statistics_have_each_version_once(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        assert [row.version for row in scene.engine.views.statistics("m")] == ["1", "2"]
        assert [row.version for row in scene.engine.views.statistics("m", "canary")] == ["2"]

    def test_requests_in_flight_count_once(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.send(6)
        assert scene.engine.in_flight.count == 6


class IndexOf:
    """The repository's view of a scene."""

    namespaces = None
    takes_commands = True

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @property
    def catalog(self) -> "IndexOf":
        return self

    def rows_named(self, name: str):  # type: ignore[no-untyped-def]  # rows of the index
        from naiad.core.model import IndexEntry, ModelState

        return [IndexEntry("m", str(version), ModelState.READY) for version in self._scene.versions]

    def is_ready(self, ill):  # type: ignore[no-untyped-def]  # names of models
        return not ill


class TestSplit:
    def test_share_of_the_weight_goes_to_the_canary(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=10)
        scene.send(10_000)
        assert abs(scene.seen()[1] - 1000) <= 5
        assert sum(scene.seen()) == 10_000

    def test_response_names_the_version_that_executed(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.send(20)
        scene.answer()
        assert sorted(versions_of(scene)) == ["1"] * 10 + ["2"] * 10

    def test_requests_with_a_version_are_not_split(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        scene.send(5, version="1")
        scene.send(3, version="stable")
        assert scene.seen() == [8, 0]
        assert scene.engine.rollout_commands.status("m").counts.stable.requests == 0

    @pytest.mark.parametrize("sticky", ["user", "request_id"])
    def test_equal_keys_reach_the_same_version(self, sticky: str) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50, sticky=sticky)
        seen: dict[str, set[str]] = {}
        for user in [f"user {number % 40}" for number in range(400)]:
            sent = scene.send(parameters={"user": user}) if sticky == "user" else scene.send(request_id=user)
            seen.setdefault(user, set()).add(sent[0].model.version)
        assert all(len(versions) == 1 for versions in seen.values())
        assert {version for versions in seen.values() for version in versions} == {"1", "2"}

    def test_requests_without_the_key_are_split_evenly(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50, sticky="user")
        scene.send(10)
        assert scene.seen() == [5, 5]

    def test_change_takes_effect_with_the_next_request(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        before = scene.send()[0]
        scene.change(action="rollback")
        after = scene.send()[0]
        assert (before.model.version, after.model.version) == ("2", "1")
        scene.answer()
        assert all(response.error is None for _, response in scene.answers.received)

    def test_request_is_cancelled_at_its_version(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        request = scene.send()[0]
        assert scene.engine.inference.cancel(request)
        assert versions_of(scene) == ["2"]
        counts = scene.engine.rollout_commands.status("m").counts.canary
        assert (counts.requests, counts.errors) == (0, 0)


class TestBadCanary:
    def test_unhealthy_canary_gets_no_requests(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        scene.versions[2].reason = "its worker has died"
        scene.send(3)
        assert scene.seen() == [3, 0]

    def test_missing_canary_gets_no_requests(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        del scene.versions[2]
        scene.publish()
        scene.send(3)
        assert scene.seen() == [3]

    def test_rejections_of_the_canary_are_served_by_stable(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        scene.versions[2].rejection = lambda request: unavailable("its queue is full")
        scene.send(3)
        scene.answer()
        assert versions_of(scene) == ["1"] * 3
        counts = scene.engine.rollout_commands.status("m").counts
        assert (counts.canary.errors, counts.stable.requests, counts.stable.errors) == (3, 3, 0)

    def test_versions_share_no_memos_of_a_header(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        header = RequestHeader(model_name="m", parameters={"user": "u"})
        header.admission = "of stable"
        for _ in range(10):
            scene.engine.inference.submit(InferRequest(header, [bytes(8)], scene.answers, arrival_ns=1))
        (stable,), (canary,) = ({request.header for request in each.seen} for each in scene.versions.values())
        assert (stable, stable.admission) == (header, "of stable")
        assert (canary.admission, canary.model_name, canary.parameters) == (None, "m", {"user": "u"})
        scene.versions[2].rejection = lambda request: unavailable("full")
        scene.engine.inference.submit(InferRequest(header, [bytes(8)], scene.answers, arrival_ns=1))
        scene.engine.inference.submit(InferRequest(header, [bytes(8)], scene.answers, arrival_ns=1))
        assert {request.header for request in scene.versions[1].seen} == {header}

    def test_requests_that_both_versions_reject_count_for_none(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        for version in scene.versions.values():
            version.rejection = lambda request: invalid_argument("a wrong shape")
        with pytest.raises(InferError, match="a wrong shape"):
            scene.send()
        assert scene.engine.rollout_commands.status("m").counts.canary.requests == 0

    def test_errors_of_responses_are_counted(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.send(10)
        scene.versions[1].answer()
        scene.versions[2].answer(error=internal("broken"))
        counts = scene.engine.rollout_commands.status("m").counts
        assert (counts.stable.requests, counts.stable.errors) == (5, 0)
        assert (counts.canary.requests, counts.canary.errors) == (5, 5)


class TestReadiness:
    def test_model_is_ready_with_stable(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.versions[2].reason = "ill"
        assert scene.engine.views.is_model_ready("m")
        scene.versions[1].reason = "ill"
        assert not scene.engine.views.is_model_ready("m")
        assert not scene.engine.views.is_model_ready("m", "stable")

    def test_model_without_stable_is_not_ready(self) -> None:
        scene = Scene(1, 2)
        scene.engine.attach(IndexOf(scene))  # type: ignore[arg-type]  # the part that a look-up needs
        scene.engine.phase.is_starting = False
        scene.change(stable=1, canary=2, weight=50)
        assert scene.engine.views.is_ready()
        del scene.versions[1]
        scene.publish()
        assert not scene.engine.views.is_ready()
        assert not scene.engine.views.is_model_ready("m")
        with pytest.raises(InferError, match="version 1, which is 'stable' in the rollout"):
            scene.send()


class TestLifeOfARollout:
    def test_reload_keeps_the_rollout_of_a_client(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=100)
        scene.engine.rollouts.declare("m", None)
        scene.publish()
        assert scene.send()[0].model.version == "2"

    def test_unload_drops_the_rollout_of_a_client(self) -> None:
        scene = Scene(1, 2)
        scene.change(to=1)
        versions, scene.versions = scene.versions, {}
        scene.publish()
        scene.versions = versions
        scene.publish()
        assert scene.send()[0].model.version == "2"

    def test_changed_file_replaces_the_rollout_of_a_client(self) -> None:
        scene = Scene(1, 2)
        scene.engine.rollouts.declare("m", FoundRollout(DeclaredRollout(Rollout(1), "first")))
        scene.publish()
        scene.change(to=2)
        scene.engine.rollouts.declare("m", FoundRollout(DeclaredRollout(Rollout(1), "first")))
        scene.publish()
        assert scene.send()[0].model.version == "2"
        scene.engine.rollouts.declare("m", FoundRollout(DeclaredRollout(Rollout(1, 2, weight=0.0), "second")))
        scene.publish()
        assert scene.send()[0].model.version == "1"

    def test_removed_file_ends_its_rollout(self) -> None:
        scene = Scene(1, 2)
        scene.engine.rollouts.declare("m", FoundRollout(DeclaredRollout(Rollout(1), "first")))
        scene.publish()
        scene.engine.rollouts.declare("m", None)
        scene.publish()
        assert scene.send()[0].model.version == "2"
        assert scene.engine.rollouts.states() == {}

    def test_end_serves_the_newest_version(self) -> None:
        scene = Scene(1, 2)
        scene.change(to=1)
        scene.end()
        assert scene.engine.inference.served("m") is scene.versions[2]
        with pytest.raises(InferError, match="has no rollout"):
            scene.end()

    def test_only_refused_versions_are_not_ready(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.change(action="rollback")
        scene.end()
        del scene.versions[1]
        scene.publish()
        with pytest.raises(InferError):
            scene.engine.inference.served("m")
        assert "naiad rollout m --allow 2" in scene.engine.rollouts.refusal("m")
        assert scene.engine.inference.served("m", "2") is scene.versions[2]
        scene.change(allow=2)
        assert scene.engine.inference.served("m") is scene.versions[2]

    def test_state_that_is_not_newer_is_refused(self) -> None:
        scene = Scene(1, 2)
        scene.change(to=1)
        scene.change(to=2)
        for state in (RolloutState(Rollout(1), revision=1), RolloutState(Rollout(1), "another file", 9)):
            with pytest.raises(InferError, match="changed at the same time"):
                scene.engine.rollout_commands.apply("m", state)
        assert scene.send()[0].model.version == "2"

    def test_state_before_the_load_applies_to_it(self) -> None:
        scene = Scene()
        scene.engine.rollout_commands.apply("m", RolloutState(Rollout(1), revision=4))
        scene.versions = Scene(1, 2).versions
        scene.engine.rollouts.declare("m", None)
        scene.publish()
        assert scene.send()[0].model.version == "1"

    def test_load_needs_all_versions_of_the_rollout(self) -> None:
        scene = Scene(1, 2, 3)
        scene.change(to=1)
        rollouts = scene.engine.rollouts
        kept, replaced = (
            rollouts.after_load("m", FoundRollout(each)) for each in (None, DeclaredRollout(Rollout(2), "new"))
        )
        assert kept is not None
        assert replaced is not None
        assert (kept.versions, replaced.versions) == ({1, 3}, {2})
        assert rollouts.after_load("other", FoundRollout()) is None

    def test_counts_belong_to_the_present_state(self) -> None:
        scene = Scene(1, 2)
        scene.change(stable=1, canary=2, weight=50)
        scene.send(4)
        scene.answer()
        scene.publish()
        assert scene.engine.rollout_commands.status("m").counts.stable.requests == 2
        scene.change(weight=60)
        assert scene.engine.rollout_commands.status("m").counts.stable.requests == 0
        totals = dict(scene.engine.rollouts.totals())["m"].requests
        assert totals == {("stable", "1", "success"): 2, ("canary", "2", "success"): 2}

    def test_counters_of_versions_that_are_gone_are_bounded(self) -> None:
        scene = Scene(1)
        for version in range(2, 600):
            scene.versions[version] = ScriptedVersion(version)
            scene.publish()
            scene.change(stable=version - 1, canary=version, weight=50)
            scene.send(2)
            scene.answer()
            del scene.versions[version - 1]
        totals = dict(scene.engine.rollouts.totals())["m"].requests
        assert len(totals) <= MAX_COUNTERS + 2
        assert totals["canary", "599", "success"] == 1


SEQUENCES = ModelConfig(name="m")
SEQUENCES.sequence_batching.max_sequence_idle_microseconds = 60_000_000


class Sequences:
    """A version that knows the sequences that began there."""

    def __init__(self, scene: Scene, version: int) -> None:
        self.live: set[int | str] = set()
        scene.versions[version].rejection = self.check

    def check(self, request: InferRequest) -> InferError | None:
        header = request.header
        if header.sequence_start:
            self.live.add(header.sequence_id)
        elif header.sequence_id not in self.live:
            return UnknownSequenceError(ErrorCode.INVALID_ARG, "it has not begun")
        if header.sequence_end:
            self.live.discard(header.sequence_id)
        return None


class TestSequences:
    @pytest.fixture
    def scene(self) -> Scene:
        scene = Scene(1, 2, config=SEQUENCES)
        for version in (1, 2):
            Sequences(scene, version)
        return scene

    def version_of(self, scene: Scene, sequence_id: int, **fields: bool) -> str:
        sent = scene.send(sequence_id=sequence_id, **fields)[0]
        scene.answer()
        return str(sent.model.version)

    def test_live_sequence_keeps_its_version(self, scene: Scene) -> None:
        scene.change(stable=1, canary=2, weight=50)
        first = {number: self.version_of(scene, number, sequence_start=True) for number in range(1, 41)}
        assert set(first.values()) == {"1", "2"}
        for change in ({"weight": 100}, {"action": "rollback"}, {"to": 2, "allow": 2}, {"action": "rollback"}):
            scene.change(**change)
            assert {number: self.version_of(scene, number) for number in first} == first
        scene.end()
        assert {number: self.version_of(scene, number) for number in first} == first
        assert self.version_of(scene, 98, sequence_start=True) == "1"
        scene.change(allow=2)
        assert self.version_of(scene, 99, sequence_start=True) == "2"
        scene.change(stable=1, canary=2, weight=1)
        assert {number: self.version_of(scene, number, sequence_end=True) for number in first} == first

    def test_sequence_from_before_the_rollout_goes_on(self, scene: Scene) -> None:
        assert self.version_of(scene, 5, sequence_start=True) == "2"
        scene.change(to=1)
        assert self.version_of(scene, 5) == "2"
        assert self.version_of(scene, 6, sequence_start=True) == "1"

    def test_unknown_sequence_gets_the_error_of_a_version(self, scene: Scene) -> None:
        scene.change(stable=1, canary=2, weight=50)
        with pytest.raises(UnknownSequenceError, match="it has not begun"):
            self.version_of(scene, 7)

    def test_sequence_that_begins_again_is_split_again(self, scene: Scene) -> None:
        scene.change(stable=1, canary=2, weight=100)
        assert self.version_of(scene, 5, sequence_start=True) == "2"
        scene.change(action="rollback")
        assert self.version_of(scene, 5) == "2"
        assert self.version_of(scene, 5, sequence_start=True) == "1"
        assert self.version_of(scene, 5) == "1"

    def test_rejected_start_leaves_no_pin(self, scene: Scene) -> None:
        scene.change(stable=1, canary=2, weight=100)
        accepts = scene.versions[2].rejection
        scene.versions[2].rejection = lambda request: unavailable("no slot")
        with pytest.raises(InferError, match="no slot"):
            self.version_of(scene, 5, sequence_start=True)
        scene.versions[2].rejection = accepts
        scene.change(action="rollback")
        assert self.version_of(scene, 5, sequence_start=True) == "1"


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_unloaded_versions_are_released(gone: int) -> None:
    scene = Scene(1, 2, 3)
    scene.change(stable=1, canary=2, weight=50, shadow=50)
    scene.send(4)
    scene.answer()
    scene.loop.run()
    scene.answer()  # the copies
    for each in scene.versions.values():
        each.seen.clear()
    scene.answers.received.clear()
    version = weakref.ref(scene.versions.pop(gone))
    scene.publish()
    del each
    gc.collect()
    assert version() is None


@pytest.mark.parametrize("is_classified", [False, True])
def test_calls_are_traced_with_their_requests(tmp_path: Path, is_classified: bool) -> None:
    scene = Scene(1, 2)
    scene.change(stable=1, canary=2, weight=100)
    tracer = Tracer(TraceOptions(level=("TIMESTAMPS",), rate=1, file=str(tmp_path / "trace")))
    scene.engine.inference.trace(tracer)
    outputs = [RequestedOutput("OUT", classification=1)] if is_classified else []
    request = scene.send(request_id="parent", outputs=outputs)[0]
    call = make_call(FakeServed("m"), FakeServed("m"))
    call.id, call.traced_with, call.on_response = "child", request, scene.answers
    scene.engine.inference.submit(call)
    scene.answer()
    tracer.close()
    entries = json.loads((tmp_path / "trace").read_text())
    found = {entry["request_id"]: entry for entry in entries if "request_id" in entry}
    assert found["child"]["parent_id"] == found["parent"]["id"]
    assert found["child"]["model_version"] == found["parent"]["model_version"] == 2


def test_explanation_begins_with_the_split() -> None:
    scene = Scene(1, 2)
    assert not scene.engine.views.explanation("m").rules[0].startswith("Without a version")
    scene.change(stable=1, canary=2, weight=10, sticky="user")
    assert scene.engine.views.explanation("m").rules[0] == (
        "Without a version it goes to version 1, stable of a rollout; 10 % of such requests, by user, to version 2."
    )
    scene.change(to=2)
    assert (
        scene.engine.views.explanation("m").rules[0] == "Without a version it goes to version 2, stable of a rollout."
    )
    assert not scene.engine.views.explanation("m", "1").rules[0].startswith("Without a version")
