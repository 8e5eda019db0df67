"""The table of models on demand: examples, and a state machine over requests, loads, failures, evictions and GPUs."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from naiad.config.load_policy import LoadPolicy
from naiad.repository.control.on_demand.memory.budgets import HOST, Amounts
from naiad.repository.control.on_demand.residency import Residency
from naiad.repository.control.on_demand.resident import IDLE, Ask, LoadRefusal, ResidencePhase, Use, Uses

ON_DEMAND = LoadPolicy(is_on_demand=True)
MB = 1_000_000


def table(budget: int = 10 * MB, *, count: int = 4, size: int = 4 * MB, policy: LoadPolicy = ON_DEMAND) -> Residency:
    residency = Residency({HOST: budget})
    for index in range(count):
        residency.add(f"m{index}", policy, size)
    return residency


def load(residency: Residency, name: str, now_s: float = 0.0, size: int = 4 * MB) -> None:
    assert residency.ask(name, now_s) is Ask.BEGIN
    assert residency.room(name, dict, now_s).is_admitted
    residency.loaded(name, {HOST: size}, now_s, is_protected=False)


def look_at_nothing() -> Uses:
    """Stand in for a look at the loaded models where none is due: it takes long with the lock of the loop."""
    raise AssertionError("the loaded models are looked at although enough of them leave")


def test_second_request_begins_no_load() -> None:
    residency = table()
    assert residency.ask("m0", 0.0) is Ask.BEGIN
    assert residency.ask("m0", 0.0) is Ask.HELD
    assert residency.room("m0", dict, 0.0).is_admitted
    residency.loaded("m0", {HOST: 3 * MB}, 1.0)
    assert residency.ask("m0", 1.0) is Ask.READY
    assert residency.used[HOST] == 3 * MB


def test_least_recently_used_model_leaves_first() -> None:
    residency = table()
    load(residency, "m0")
    load(residency, "m1")
    assert residency.ask("m2", 5.0) is Ask.BEGIN
    room = residency.room("m2", lambda: {"m0": Use(4.0), "m1": Use(3.0)}, 5.0)
    assert not room.is_admitted
    assert room.victims == [["m1"]]
    residency.begin_eviction("m1")
    assert residency.room("m2", look_at_nothing, 5.0).victims == []
    assert not residency.evicted("m1", 6.0)
    assert residency.room("m2", dict, 6.0).is_admitted


def test_unexplained_growth_takes_room() -> None:
    residency = table()
    load(residency, "m0")
    residency.unexplained = {HOST: 3 * MB}
    residency.ask("m1", 5.0)
    room = residency.room("m1", lambda: {"m0": Use(1.0)}, 5.0)
    assert (room.is_admitted, room.victims) == (False, [["m0"]])
    residency.begin_eviction("m0")
    residency.evicted("m0", 6.0)
    assert residency.room("m1", dict, 6.0).is_admitted
    residency.loaded("m1", {HOST: 4 * MB}, 6.0, is_protected=False)
    residency.unexplained = {}
    load(residency, "m2", 7.0)
    residency.unexplained = {HOST: 3 * MB}
    assert residency.excess(lambda: {"m1": Use(1.0), "m2": Use(2.0)}, 9.0) == [["m1"]]


def test_lone_model_stays_beside_unexplained_growth() -> None:
    residency = table()
    residency.unexplained = {HOST: 2 * MB}
    load(residency, "m0", size=9 * MB)
    assert residency.excess(lambda: {"m0": Use(1.0)}, 9.0) == [], "its next request would load it again, and so on"
    residency.resize("m0", {HOST: 11 * MB})
    assert residency.excess(lambda: {"m0": Use(1.0)}, 9.0) == [["m0"]]


def test_lone_ensemble_stays_beside_unexplained_growth() -> None:
    residency = table()
    residency.add("all", ON_DEMAND, 0, ["m0", "m1"])
    residency.unexplained = {HOST: 3 * MB}
    assert residency.ask("all", 0.0) is Ask.BEGIN
    assert residency.room("all", dict, 0.0).is_admitted
    for name, size in (("m0", 4 * MB), ("m1", 4 * MB), ("all", 0)):
        residency.loaded(name, {HOST: size}, 0.0, is_protected=False)
    assert residency.excess(dict, 9.0) == []


def test_models_smaller_than_measured_leave_room() -> None:
    residency = table(11 * MB)
    load(residency, "m0")
    load(residency, "m1")
    residency.ask("m2", 5.0)
    assert not residency.room("m2", lambda: {"m0": Use(is_bound=True), "m1": Use(is_bound=True)}, 5.0).is_admitted
    residency.unexplained = {HOST: -MB}
    assert residency.room("m2", dict, 5.0).is_admitted


def test_busy_model_leaves_after_idle_ones() -> None:
    residency = table()
    load(residency, "m0")
    load(residency, "m1")
    residency.ask("m2", 5.0)
    uses = {"m0": Use(1.0, is_busy=True), "m1": Use(3.0)}
    assert residency.room("m2", lambda: uses, 5.0).victims == [["m1"]]
    uses["m1"] = Use(3.0, is_bound=True)
    assert residency.room("m2", lambda: uses, 5.0).victims == [["m0"]]


@pytest.mark.parametrize(
    ("use", "policy", "is_protected"),
    [
        (Use(0.0, is_bound=True), ON_DEMAND, False),
        (IDLE, LoadPolicy(is_on_demand=True, min_residence_s=10.0), False),
        (IDLE, ON_DEMAND, True),
    ],
    ids=["sequence", "residence", "held-requests"],
)
def test_next_model_waits_for_one_that_stays(use: Use, policy: LoadPolicy, is_protected: bool) -> None:
    residency = table(5 * MB, policy=policy)
    load(residency, "m0")
    residency.models["m0"].is_protected = is_protected
    residency.ask("m1", 5.0)
    room = residency.room("m1", lambda: {"m0": use}, 5.0)
    assert not room.is_admitted
    assert not room.victims


def test_call_of_a_running_model_exceeds_the_budget() -> None:
    residency = table(5 * MB)
    load(residency, "m0")
    residency.ask("m1", 5.0, is_urgent=True)
    room = residency.room("m1", lambda: {"m0": Use(4.0, is_busy=True)}, 5.0)
    assert room.is_admitted
    assert not room.victims
    assert residency.used[HOST] == 8 * MB


def test_model_above_the_budget_is_refused() -> None:
    residency = table(3 * MB)
    residency.ask("m0", 0.0)
    refusal = residency.room("m0", dict, 0.0).refusal
    assert "4000000 bytes" in refusal
    assert "3000000 bytes" in refusal


def test_failed_load_has_a_growing_pause() -> None:
    residency = table()
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0):
        assert residency.ask("m0", now_s) is Ask.BEGIN
        residency.failed("m0", "no such file", now_s)
        assert residency.ask("m0", now_s) == LoadRefusal("no such file", pause_s)
        assert not residency.is_answerable("m0", now_s)
        now_s += pause_s
    for _ in range(20):
        residency.ask("m0", now_s)
        residency.failed("m0", "no such file", now_s)
        now_s += 60.0
    assert residency.ask("m0", now_s) is Ask.BEGIN


def test_failure_of_a_loaded_model_changes_nothing() -> None:
    residency = table()
    load(residency, "m0")
    residency.failed("m0", "no room", 1.0)
    assert residency.ask("m0", 1.0) is Ask.READY
    assert residency.used[HOST] == 4 * MB


def test_request_during_an_eviction_loads_again() -> None:
    residency = table()
    load(residency, "m0")
    residency.begin_eviction("m0")
    assert residency.ask("m0", 1.0) is Ask.HELD
    assert residency.evicted("m0", 2.0)
    assert residency.is_loading("m0")


def test_ensemble_leaves_before_its_member() -> None:
    residency = table(10 * MB, count=3)
    residency.add("e", ON_DEMAND, 0, ["m0"])
    load(residency, "m0")
    load(residency, "e", size=0)
    load(residency, "m1")
    residency.ask("m2", 5.0)
    assert residency.room("m2", lambda: {"m1": Use(4.0)}, 5.0).victims == [["e", "m0"]]


def test_member_of_a_loading_ensemble_stays() -> None:
    residency = table(10 * MB, count=3)
    residency.add("e", ON_DEMAND, 0, ["m0"])
    load(residency, "m0")
    load(residency, "m1")
    residency.ask("e", 5.0)
    residency.ask("m2", 5.0)
    residency.room("e", dict, 5.0)
    assert residency.room("m2", lambda: {"m1": Use(4.0)}, 5.0).victims == [["m1"]]


def test_small_models_do_not_overtake_a_large_one() -> None:
    residency = table(10 * MB, count=2)
    residency.add("large", ON_DEMAND, 9 * MB)
    residency.add("small", ON_DEMAND, 1 * MB)
    load(residency, "m0")
    residency.ask("large", 1.0)
    residency.ask("small", 1.0)
    assert residency.room("large", lambda: {"m0": IDLE}, 1.0).victims == [["m0"]]
    residency.begin_eviction("m0")
    assert not residency.room("small", dict, 1.0).is_admitted
    residency.evicted("m0", 2.0)
    assert residency.room("large", dict, 2.0).is_admitted


def test_loads_behind_a_stuck_one_proceed() -> None:
    residency = table(10 * MB, count=1)
    residency.add("large", ON_DEMAND, 9 * MB)
    residency.add("small", ON_DEMAND, 1 * MB)
    load(residency, "m0")
    residency.ask("large", 1.0)
    residency.ask("small", 1.0)
    assert not residency.room("large", lambda: {"m0": Use(is_bound=True)}, 1.0).victims
    assert residency.room("small", dict, 1.0).is_admitted


def test_no_model_leaves_for_a_load_without_hope() -> None:
    residency = table(10 * MB, count=2)
    residency.add("large", ON_DEMAND, 8 * MB)
    load(residency, "m0")
    load(residency, "m1")
    residency.ask("large", 5.0)
    assert residency.room("large", lambda: {"m0": Use(is_bound=True)}, 5.0).victims == []
    assert residency.is_stuck
    residency.unexplained = {HOST: 9 * MB}
    assert residency.room("large", dict, 5.0).victims == [["m0"], ["m1"]], "then nothing keeps it from loading"


def test_growth_beside_a_sequence_stops_no_load() -> None:
    residency = table(10 * MB, count=3)
    for name in ("m0", "m1"):
        load(residency, name)
    residency.unexplained = {HOST: 3 * MB}
    uses = {"m0": Use(1.0, is_bound=True), "m1": Use(2.0)}
    residency.ask("m2", 5.0)
    room = residency.room("m2", lambda: uses, 5.0)
    assert (room.is_admitted, room.victims) == (False, [["m1"]])
    residency.begin_eviction("m1")
    assert not residency.room("m2", lambda: uses, 5.0).is_admitted
    residency.evicted("m1", 6.0)
    assert residency.room("m2", lambda: uses, 6.0).is_admitted, "nothing else can leave"
    residency.loaded("m2", {HOST: 4 * MB}, 6.0, is_protected=False)
    uses = {"m0": Use(1.0, is_bound=True), "m2": Use(6.0)}
    assert residency.excess(lambda: uses, 9.0) == [], "its next request would load it again, and so on"
    assert residency.excess(lambda: {"m0": Use(1.0), "m2": Use(6.0)}, 9.0) == [["m0"]]


def test_growth_stops_loads_while_a_response_ends() -> None:
    residency = table(10 * MB, count=2, policy=LoadPolicy(is_on_demand=True, min_residence_s=5.0))
    load(residency, "m0")
    residency.unexplained = {HOST: 3 * MB}
    residency.ask("m1", 1.0)
    assert not residency.room("m1", lambda: {"m0": Use(1.0)}, 1.0).is_admitted, "a young model can leave soon"
    assert residency.room("m1", lambda: {"m0": Use(1.0)}, 6.0).victims == [["m0"]]


def test_grown_models_have_idle_ones_evicted() -> None:
    residency = table()
    load(residency, "m0")
    load(residency, "m1")
    residency.resize("m1", {HOST: 9 * MB})
    assert residency.excess(lambda: {"m0": Use(1.0), "m1": Use(2.0)}, 3.0) == [["m0"]]


def test_model_that_grew_beyond_the_budget_loads_again() -> None:
    residency = table()
    load(residency, "m0")
    residency.resize("m0", {HOST: 40 * MB})
    residency.begin_eviction("m0")
    residency.evicted("m0", 1.0)
    load(residency, "m0", 2.0)
    assert residency.used[HOST] == 4 * MB


def test_model_measured_too_large_is_tried_again() -> None:
    residency = table()
    load(residency, "m0", size=40 * MB)
    residency.begin_eviction("m0")
    residency.evicted("m0", 1.0)
    residency.ask("m0", 1.0)
    refusal = residency.room("m0", dict, 1.0).refusal
    assert "it took 40000000 bytes" in refusal
    residency.failed("m0", refusal, 1.0)
    load(residency, "m0", 2.0)


def test_idle_model_is_unloaded_after_its_time() -> None:
    residency = table(0, policy=LoadPolicy(is_on_demand=True, idle_unload_s=10.0))
    load(residency, "m0")
    assert residency.idle({"m0": Use(5.0)}, 14.0) == []
    assert residency.idle({"m0": Use(5.0, is_busy=True)}, 16.0) == []
    assert residency.idle({"m0": Use(5.0)}, 16.0) == [["m0"]]


GPUS = ("gpu:0", "gpu:1")


def table_of_gpus(sizes: dict[str, dict[str, int]], limit: int = 10) -> Residency:
    """Return a table in which two GPUs and the host have 10 MB each, with loaded models of these sizes in MB."""
    residency = Residency({HOST: 100 * MB, **dict.fromkeys(GPUS, limit * MB)})
    for name, amounts in sizes.items():
        residency.add(name, ON_DEMAND, max(amounts.values()) * MB, gpus=amounts.keys() - {HOST})
        assert residency.ask(name, 0.0) is Ask.BEGIN
        assert residency.room(name, dict, 0.0).is_admitted
        residency.loaded(name, {budget: size * MB for budget, size in amounts.items()}, 0.0, is_protected=False)
    return residency


def ask(residency: Residency, name: str, size: int, *gpus: str) -> None:
    residency.add(name, ON_DEMAND, size * MB, gpus=gpus)
    assert residency.ask(name, 5.0) is Ask.BEGIN


def test_models_without_memory_on_that_gpu_stay() -> None:
    residency = table_of_gpus({"first": {"gpu:0": 6}, "second": {"gpu:1": 6}, "host": {HOST: 6}})
    uses = {"first": Use(3.0), "second": Use(2.0), "host": Use(1.0)}
    ask(residency, "m", 6, "gpu:0")
    assert residency.room("m", lambda: uses, 5.0).victims == [["first"]]


def test_model_of_two_gpus_waits_for_both() -> None:
    residency = table_of_gpus({"first": {"gpu:0": 6}, "second": {"gpu:1": 6}})
    ask(residency, "m", 6, *GPUS)
    assert residency.room("m", dict, 5.0).victims == [["first"], ["second"]]
    for name in ("first", "second"):
        residency.begin_eviction(name)
    for name in ("first", "second"):
        assert not residency.room("m", look_at_nothing, 5.0).is_admitted
        residency.evicted(name, 5.0)
    assert residency.room("m", look_at_nothing, 5.0).is_admitted
    assert residency.used["gpu:0"] == residency.used["gpu:1"] == 6 * MB


def test_loads_for_other_gpus_do_not_wait_behind() -> None:
    residency = table_of_gpus({"first": {"gpu:0": 6}, "second": {"gpu:1": 6}})
    ask(residency, "a", 6, "gpu:0")
    ask(residency, "b", 6, "gpu:1")
    ask(residency, "small", 1, "gpu:1")
    assert not residency.room("a", lambda: {"first": Use(is_bound=True)}, 5.0).victims
    assert residency.room("b", dict, 5.0).victims == [["second"]]
    assert residency.first() == ["a", "b"]
    residency.begin_eviction("second")
    assert not residency.room("small", dict, 5.0).is_admitted, "it waits behind the larger one of the same GPU"


def test_model_above_the_gpu_budget_is_refused() -> None:
    residency = table_of_gpus({})
    ask(residency, "m", 11, "gpu:1")
    refusal = residency.room("m", dict, 5.0).refusal
    assert "--model-gpu-memory-budget of GPU 1: its files have 11000000 bytes, the budget is 10000000" in refusal


def test_waiting_ensembles_do_not_block_each_other() -> None:
    residency = table(14 * MB, count=4)
    residency.add("large0", ON_DEMAND, 8 * MB)
    residency.add("large1", ON_DEMAND, 8 * MB)
    residency.add("e0", ON_DEMAND, 0, ["m0", "large0"])
    residency.add("e1", ON_DEMAND, 0, ["m1", "large1"])
    for name in ("m0", "m1"):
        load(residency, name)
    for name in ("e0", "e1"):
        residency.ask(name, 5.0)
    assert residency.room("e1", dict, 5.0).victims == [], "the first one decides"
    assert residency.room("e0", dict, 5.0).victims == [["m1"]]


def test_ensemble_with_too_large_members_is_refused() -> None:
    residency = table(10 * MB, count=3)
    residency.add("e", ON_DEMAND, 0, ["m0", "m1", "m2"])
    load(residency, "m0", size=3 * MB)
    residency.ask("e", 5.0)
    assert "its members have 11000000 bytes, the budget is 10000000" in residency.room("e", dict, 5.0).refusal


def test_growth_on_a_gpu_has_idle_ones_evicted() -> None:
    residency = table_of_gpus({"a": {"gpu:0": 4}, "b": {"gpu:0": 4}, "c": {"gpu:1": 4}})
    residency.resize("a", {"gpu:0": 7 * MB})
    assert residency.excess(lambda: {"a": Use(3.0), "b": Use(2.0), "c": Use(1.0)}, 5.0) == [["b"]]


@given(st.lists(st.tuples(st.sampled_from(["gpu:0", "gpu:1"]), st.integers(1, 4)), max_size=5), st.randoms())
def test_victims_are_the_least_recently_used(models: list[tuple[str, int]], random: Random) -> None:
    residency = table_of_gpus({f"m{index}": {gpu: size} for index, (gpu, size) in enumerate(models)}, limit=20)
    order = [f"m{index}" for index in range(len(models))]
    random.shuffle(order)
    uses = {name: Use(float(last)) for last, name in enumerate(order)}
    ask(residency, "large", 19, "gpu:0")
    victims = [name for group in residency.room("large", lambda: uses, 9.0).victims for name in group]
    on_gpu = [name for name in order if residency.models[name].gpus == {"gpu:0"}]
    assert victims == on_gpu[: len(victims)]
    left = sum(residency.models[name].charged["gpu:0"] for name in on_gpu[len(victims) :])
    assert left <= MB


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h"])
SIZES = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 0, "f": 2, "g": 0, "h": 0}
MEMBERS = {"e": ["a", "b"], "g": ["c", "b"], "h": ["c", "d"]}
"""The last one is too large."""
PLACES = {"a": GPUS[:1], "b": GPUS, "c": GPUS[1:], "f": GPUS[::-1]}
LIMITS = {HOST: 6 << 16, "gpu:0": 3 << 16, "gpu:1": 5 << 16}


def amounts_of(name: str) -> Amounts:
    return dict.fromkeys((HOST, *PLACES.get(name, ())), SIZES[name] << 16)


class OnDemand(RuleBasedStateMachine):
    """What the threads would do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.residency = Residency(LIMITS)
        self.now_s = 0.0
        self.bound: set[str] = set()
        self.used_s: dict[str, float] = {}
        self.exceeds = False
        policy = LoadPolicy(is_on_demand=True, idle_unload_s=50.0, min_residence_s=2.0)
        for name, size in SIZES.items():
            self.residency.add(name, policy, size << 16, MEMBERS.get(name, ()), PLACES.get(name, ()))

    def uses(self) -> dict[str, Use]:
        return {
            name: Use(self.used_s.get(name, 0.0), is_bound=name in self.bound)
            for name in self.residency.of_phase(ResidencePhase.LOADED)
        }

    @rule(seconds=st.floats(0.1, 20.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(name=NAMES, is_urgent=st.booleans())
    def ask(self, name: str, is_urgent: bool) -> None:
        before = self.residency.models[name].phase
        found = self.residency.ask(name, self.now_s, is_urgent=is_urgent)
        assert (found is Ask.BEGIN) == (before is ResidencePhase.COLD and not isinstance(found, LoadRefusal))
        if found is Ask.READY:
            self.used_s[name] = self.now_s

    @rule(name=NAMES, binds=st.booleans())
    def bind(self, name: str, binds: bool) -> None:
        if binds and self.residency.models[name].phase is ResidencePhase.LOADED:
            self.bound.add(name)
        else:
            self.bound.discard(name)

    @precondition(lambda self: self.residency.of_phase(ResidencePhase.LOADING))
    @rule(data=st.data(), outcome=st.sampled_from(["loaded", "failed"]))
    def load(self, data: st.DataObject, outcome: str) -> None:
        name = data.draw(st.sampled_from(self.residency.of_phase(ResidencePhase.LOADING)))
        is_urgent = self.residency.models[name].is_urgent
        room = self.residency.room(name, self.uses, self.now_s)
        self.evict(room.victims)
        assert bool(room.refusal) == (name == "h")
        if room.refusal:
            self.residency.failed(name, room.refusal, self.now_s)
        if not room.is_admitted:
            return
        self.exceeds = self.exceeds or is_urgent
        if outcome == "failed":
            self.residency.failed(name, "reason", self.now_s)
            return
        for member in self.residency.models[name].members:
            if self.residency.models[member].phase is ResidencePhase.COLD:
                self.residency.loaded(member, amounts_of(member), self.now_s, is_protected=False)
        self.residency.loaded(name, amounts_of(name), self.now_s)

    def evict(self, groups: list[list[str]]) -> None:
        for name in [name for group in groups for name in group]:
            model = self.residency.models[name]
            assert model.phase is ResidencePhase.LOADED
            assert not model.is_protected
            assert name not in self.bound
            assert self.now_s - model.loaded_s >= model.policy.min_residence_s
            self.residency.begin_eviction(name)

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.residency.release(name)

    @precondition(lambda self: self.residency.of_phase(ResidencePhase.EVICTING))
    @rule(data=st.data())
    def end_eviction(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.residency.of_phase(ResidencePhase.EVICTING)))
        is_asked = self.residency.models[name].is_asked
        assert self.residency.evicted(name, self.now_s) == is_asked
        assert self.residency.is_loading(name) == is_asked

    @rule()
    def sweep(self) -> None:
        self.evict(self.residency.idle(self.uses(), self.now_s)[:1])
        self.evict(self.residency.excess(self.uses, self.now_s))

    @invariant()
    def charges_add_up_and_stay_in_the_budget(self) -> None:
        models = self.residency.models.values()
        for budget in LIMITS:
            assert self.residency.used[budget] == sum(model.charged.get(budget, 0) for model in models)
        assert all(not model.charged for model in models if model.phase is ResidencePhase.COLD)
        for phase in ResidencePhase:
            assert self.residency.count(phase) == sum(model.phase is phase for model in models)
        if not self.exceeds:
            assert all(self.residency.used[budget] <= limit for budget, limit in LIMITS.items())

    def teardown(self) -> None:
        """Every load that waits is admitted at last, when nothing keeps its room."""
        self.bound.clear()
        for _ in range(100):
            self.now_s += 100.0
            for name in self.residency.of_phase(ResidencePhase.LOADED):
                self.residency.release(name)
            for name in self.residency.of_phase(ResidencePhase.EVICTING):
                self.residency.evicted(name, self.now_s)
            waiting = self.residency.of_phase(ResidencePhase.LOADING)
            if not waiting:
                return
            for name in waiting:
                room = self.residency.room(name, self.uses, self.now_s)
                self.evict(room.victims)
                if room.refusal:
                    self.residency.failed(name, room.refusal, self.now_s)
                if room.is_admitted:
                    for member in self.residency.models[name].members:
                        if self.residency.models[member].phase is ResidencePhase.COLD:
                            self.residency.loaded(member, amounts_of(member), self.now_s, is_protected=False)
                    self.residency.loaded(name, amounts_of(name), self.now_s)
        raise AssertionError(f"{waiting} wait without end")


TestOnDemand = OnDemand.TestCase
TestOnDemand.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
