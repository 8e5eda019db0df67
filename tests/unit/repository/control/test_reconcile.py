"""The reconciler: which steps lead from what is loaded to what is wanted."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from naiad.repository.control.reconcile import (
    Action,
    ControlStep,
    Listed,
    ListingHistory,
    LoadedModel,
    dependents,
    ensembles_above,
    reconcile,
    unloaded,
)


def steps_of(steps: list[ControlStep]) -> list[str]:
    return [f"{step.action.name} {step.name}" for step in steps]


class Repository:
    """Applies plans to a state, as the controller does; a model in `broken` fails to load from the given files."""

    def __init__(self, broken: Mapping[str, object] | None = None) -> None:
        self.state: dict[str, LoadedModel] = {}
        self.broken = broken or {}
        self.generations: dict[str, int] = {}

    def reconcile(self, wanted: Collection[str], listing: Mapping[str, Listed]) -> list[ControlStep]:
        steps = reconcile(wanted, listing, self.state)
        for step in steps:
            self.apply(step, listing.get(step.name))
        return steps

    def apply(self, step: ControlStep, listed: Listed | None) -> None:
        before = self.state.get(step.name)
        if step.action is Action.UNLOAD:
            del self.state[step.name]
        elif step.action is Action.SUSPEND:
            self.state[step.name] = replace(self.state[step.name], is_served=False, has_failed=True)
        else:
            self.load(step.name, listed, before)

    def load(self, name: str, listed: Listed | None, before: LoadedModel | None) -> None:
        old = before or LoadedModel(None, is_served=False)
        files = old.files if listed is None else listed.files
        members = old.members if listed is None or listed.members is None else listed.members
        is_good = self.broken.get(name) != files and all(m in self.state and self.state[m].is_served for m in members)
        if is_good and (listed is not None or not old.is_served):
            self.generations[name] = self.generations.get(name, 0) + 1
        self.state[name] = LoadedModel(
            files,
            members,
            is_served=is_good or old.is_served,
            has_failed=not (is_good or old.is_served),
            generation=self.generations.get(name, 0),
            member_generations={m: self.state[m].generation if m in self.state else 0 for m in members},
        )


NAMES = "abcdef"
Models = dict[str, tuple[bytes, set[str]]]
names = st.sets(st.sampled_from(NAMES))
listings = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from([b"1", b"2"]), names))
"""Models with files and members; a model's members are those before it, so there is no cycle."""


rounds_of_listings = st.lists(st.tuples(listings, names), min_size=1, max_size=6)
"""Listings, each with the wanted models."""


def listing_of(models: Models) -> dict[str, Listed]:
    return {
        name: Listed(files, frozenset(member for member in members if member < name))
        for name, (files, members) in models.items()
    }


@given(rounds_of_listings)
def test_applied_plan_leads_to_the_wanted_state(
    rounds: list[tuple[Models, set[str]]],
) -> None:
    repository = Repository()
    for models, wanted in rounds:
        listing = listing_of(models)
        repository.reconcile(wanted, listing)
        assert reconcile(wanted, listing, repository.state) == []
        state = repository.state
        assert state.keys() <= wanted
        for name in sorted(wanted & listing.keys()):
            loaded, members = state[name], listing[name].members or frozenset()
            assert loaded.is_served or not all(m in state and state[m].is_served for m in members)
            assert (loaded.files, loaded.members) == (listing[name].files, members)


@given(
    rounds_of_listings,
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([b"1", b"2"])),
)
def test_failed_loads_are_not_planned_again(rounds: list[tuple[Models, set[str]]], broken: dict[str, bytes]) -> None:
    repository = Repository(broken)
    for models, wanted in rounds:
        listing = listing_of(models)
        # A member that fails may leave steps of ensembles for the next plan; each ensemble is tried once.
        for _ in NAMES:
            repository.reconcile(wanted, listing)
        assert reconcile(wanted, listing, repository.state) == []


@given(listings)
def test_members_are_loaded_before_their_ensembles(models: Models) -> None:
    listing = listing_of(models)
    order = [step.name for step in reconcile(listing, listing, {})]
    assert sorted(order) == sorted(listing)
    for name, listed in listing.items():
        assert all(order.index(member) < order.index(name) for member in listed.members or () if member in order)


def ensemble_of_two() -> Repository:
    repository = Repository()
    listing = {"x": Listed(b"1"), "y": Listed(b"1"), "e": Listed(b"1", frozenset("xy"))}
    assert steps_of(repository.reconcile("xye", listing)) == ["LOAD x", "LOAD y", "LOAD e"]
    return repository


NESTED = {
    "x": LoadedModel(b"1", generation=2),
    "inner": LoadedModel(b"1", frozenset("x"), generation=1, member_generations={"x": 1}),
    "outer": LoadedModel(b"1", frozenset({"inner"}), generation=1, member_generations={"inner": 1}),
}
"""An ensemble of an ensemble of a model that was loaded again."""


class TestSteps:
    def test_changed_files_are_an_update(self) -> None:
        (step,) = reconcile("m", {"m": Listed(b"2")}, {"m": LoadedModel(b"1")})
        assert step == ControlStep(Action.UPDATE, "m", "its files have changed")

    def test_unlisted_model_stays_as_it_is(self) -> None:
        assert reconcile("m", {}, {"m": LoadedModel(b"1")}) == []

    def test_forced_model_is_loaded_with_the_reason(self) -> None:
        (step,) = reconcile("m", {"m": Listed(b"1")}, {"m": LoadedModel(b"1")}, forced={"m": "the command forces it"})
        assert step == ControlStep(Action.UPDATE, "m", "the command forces it")

    def test_changed_member_updates_its_ensemble(self) -> None:
        repository = ensemble_of_two()
        assert steps_of(repository.reconcile("xye", {"x": Listed(b"2")})) == ["UPDATE x", "UPDATE e"]

    def test_unloaded_member_suspends_its_ensemble(self) -> None:
        repository = ensemble_of_two()
        steps = repository.reconcile("ye", {})
        assert steps_of(steps) == ["SUSPEND e", "UNLOAD x"]
        assert steps[0].reason == "it contains x"
        assert steps_of(repository.reconcile("ye", {})) == []

    def test_suspended_ensemble_is_not_in_same_plan(self) -> None:
        repository = ensemble_of_two()
        listing = {"e": Listed(b"1"), "y": Listed(b"2")}
        assert steps_of(repository.reconcile("ye", listing)) == ["SUSPEND e", "UNLOAD x", "UPDATE y"]

    def test_served_inner_ensemble_leaves_the_outer_one(self) -> None:
        assert steps_of(reconcile(NESTED, {}, NESTED)) == ["UPDATE inner"]

    def test_suspended_ensembles_return_from_inside_out(self) -> None:
        suspended = {name: replace(loaded, is_served=name == "x") for name, loaded in NESTED.items()}
        assert steps_of(reconcile(suspended, {}, suspended)) == ["LOAD inner", "LOAD outer"]

    def test_ensemble_returns_with_its_last_member(self) -> None:
        repository = ensemble_of_two()
        repository.reconcile("e", {})
        assert steps_of(repository.reconcile("xe", {"x": Listed(b"1")})) == ["LOAD x"]
        assert steps_of(repository.reconcile("xye", {"y": Listed(b"1")})) == ["LOAD y", "LOAD e"]

    def test_other_members_update_an_ensemble(self) -> None:
        repository = ensemble_of_two()
        (step,) = reconcile("xye", {"e": Listed(b"1", frozenset("x"))}, repository.state)
        assert step == ControlStep(Action.UPDATE, "e", "its members are other models now")

    def test_cycle_of_ensembles_ends(self) -> None:
        listing = {"p": Listed(b"1", frozenset("q")), "q": Listed(b"1", frozenset("p"))}
        assert steps_of(reconcile("pq", listing, {})) == ["LOAD p", "LOAD q"]


class TestEnsembles:
    STATE: ClassVar = {
        "outer": LoadedModel(b"", frozenset({"inner", "x"})),
        "inner": LoadedModel(b"", frozenset("xy"), is_requested=False),
        "x": LoadedModel(b"", is_requested=False),
        "y": LoadedModel(b""),
    }

    def test_outer_ensembles_come_first(self) -> None:
        assert ensembles_above(["x"], self.STATE) == ["outer", "inner"]
        assert ensembles_above(["outer"], self.STATE) == []

    def test_dependents_are_members_that_nothing_else_needs(self) -> None:
        assert dependents("outer", self.STATE) == ["inner", "x"]
        assert dependents("inner", self.STATE) == []
        assert dependents("unknown", self.STATE) == []


class Poll:
    """Listings over time with a settle time of two seconds, as polling makes them."""

    def __init__(self, acted: Mapping[str, bytes] | None = None) -> None:
        self.acted: dict[str, object] = dict(acted or {})
        self._history = ListingHistory()
        self.listing: dict[str, Listed] = {}

    def look(self, seen: Mapping[str, bytes], now_s: float, *, incomplete: str = "", busy: str = "") -> list[str]:
        self.listing = self._history.observe(seen, incomplete, self.acted, now_s)
        listing = {name: replace(each, is_held=each.is_held or name in busy) for name, each in self.listing.items()}
        state = {name: LoadedModel(files) for name, files in self.acted.items()}
        steps = reconcile(seen, listing, state, now_s=now_s, settle_s=2.0)
        for step in steps:
            if step.action is Action.UNLOAD:
                del self.acted[step.name]
            else:
                self.acted[step.name] = seen[step.name]
        return steps_of(steps)


class TestSettling:
    def test_new_model_is_loaded_after_the_settle_time(self) -> None:
        poll = Poll()
        assert poll.look({"m": b"1"}, 0.0) == []
        assert poll.look({"m": b"1"}, 1.9) == []
        assert poll.look({"m": b"1"}, 2.0) == ["LOAD m"]
        assert poll.look({"m": b"1"}, 3.0) == []

    def test_model_that_goes_on_changing_is_not_loaded(self) -> None:
        poll = Poll()
        for second in range(20):
            assert "LOAD m" not in poll.look({"m": str(second).encode(), "other": b""}, second)
        assert poll.look({"m": b"19", "other": b""}, 21) == ["LOAD m"]

    def test_changing_model_does_not_delay_another(self) -> None:
        poll = Poll()
        poll.look({"bad": b"0", "good": b"1"}, 0)
        assert poll.look({"bad": b"1", "good": b"1"}, 2) == ["LOAD good"]

    def test_change_back_to_what_is_loaded_counts_not(self) -> None:
        poll = Poll({"m": b"1"})
        assert poll.look({"m": b"2"}, 0) == []
        assert poll.look({"m": b"1"}, 5) == []

    def test_incomplete_model_is_not_loaded(self) -> None:
        poll = Poll()
        for second in range(5):
            assert poll.look({"m": b"1"}, second, incomplete="m") == []
        assert poll.look({"m": b"1"}, 5) == []
        assert poll.look({"m": b"1"}, 7) == ["LOAD m"]

    def test_missing_model_is_unloaded_after_the_settle_time(self) -> None:
        poll = Poll({"m": b"1"})
        assert poll.look({}, 0) == []
        assert poll.look({"m": b"1"}, 1) == []
        assert poll.look({}, 2) == []
        assert poll.look({}, 4) == ["UNLOAD m"]
        assert poll.look({}, 9) == []
        assert poll.listing == {}

    def test_missing_model_is_not_unloaded_while_busy(self) -> None:
        poll = Poll({"m": b"1"})
        for second in range(5):
            assert poll.look({}, second, busy="m") == []
        assert poll.look({}, 5) == ["UNLOAD m"]

    def test_model_that_goes_before_settling_is_forgotten(self) -> None:
        poll = Poll()
        poll.look({"m": b"1"}, 0)
        poll.look({}, 1)
        assert poll.listing == {}


states = st.dictionaries(st.sampled_from("abc"), st.sampled_from([b"1", b"2"]))


@given(st.lists(st.tuples(states, st.floats(0.1, 3.0)), max_size=40))
def test_lasting_listing_is_what_is_loaded(looks: list[tuple[dict[str, bytes], float]]) -> None:
    poll = Poll()
    now_s = 0.0
    last = looks[-1][0] if looks else {}
    for seen, passed_s in [*looks, *[(last, 1.0)] * 4]:
        now_s += passed_s
        poll.look(seen, now_s)
    assert poll.acted == last


class TestUnloaded:
    STATE: ClassVar[Mapping[str, LoadedModel]] = {
        "c": LoadedModel(b"c", is_requested=False),
        "d": LoadedModel(b"d"),
        "e": LoadedModel(b"e", frozenset("cd")),
        "f": LoadedModel(b"f", frozenset("e")),
        "g": LoadedModel(b"g", frozenset("d"), is_served=False),
    }

    def test_ensembles_above_are_suspended_outer_ones_first(self) -> None:
        work = unloaded("c", self.STATE, with_dependents=False)
        assert (work.names, work.suspended) == (["c"], ["f", "e"])

    def test_what_is_out_of_service_is_concerned_too(self) -> None:
        """It may be about to come back."""
        work = unloaded("d", self.STATE, with_dependents=False)
        assert set(work.suspended) == {"e", "f"}
        assert work.concerned == {"d", "e", "f", "g"}

    def test_dependents_go_with_an_ensemble(self) -> None:
        work = unloaded("e", self.STATE, with_dependents=True)
        assert (work.names, work.suspended) == (["e", "c"], ["f"])
        assert work.concerned == {"c", "e", "f"}

    def test_unknown_model_concerns_itself(self) -> None:
        work = unloaded("x", self.STATE, with_dependents=True)
        assert (work.names, work.suspended, work.concerned) == (["x"], [], {"x"})
