"""Control calls on models that depend on each other, in every order and overlap.

The controller, catalog and life cycle are real; threads take turns where a call waits for a lock, loads, or stops
versions. In every overlap no ensemble is ready without its members, the server stays ready, no call is lost, and
the calls leave what they would leave one after the other in some order.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.core.model import ModelState
from naiad.repository import catalog as catalog_module
from naiad.repository.catalog import Catalog
from naiad.repository.control.controller import ModelController
from naiad.repository.control.locks import ModelLocks
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.model_plan import ModelPlan, member_names
from naiad.repository.stores.store import LocalStore, ModelEntry
from naiad.telemetry.trim_pace import heap_trims
from support.long_run import examples, is_long
from support.turns import Turns

LEAVES = ("a", "b", "c")
ENSEMBLES = ("e", "f", "g")
NAMES = (*LEAVES, *ENSEMBLES)
KINDS = ("load", "reload", "unload", "unload_dependents")
Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Call:
    kind: str
    name: str


class InlinePool:
    """A pool whose work is done at once, on the thread of the caller."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> "InlinePool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool) -> None:
        pass


class TurnLocks(ModelLocks):
    """The locks of the controller; a thread that waits for one gives its turn away."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def _acquire(self, names: Collection[str]) -> None:
        self._turns.pause(lambda: self._locked.isdisjoint(names))
        super()._acquire(names)

    def _release(self, names: Collection[str]) -> None:
        super()._release(names)
        self._turns.pause()


class Version:
    def __init__(self, turns: Turns, config: ModelConfig) -> None:
        self._turns = turns
        self.config = config

    def stop(self, timeout_s: float) -> bool:
        self._turns.pause()
        return True


class Repository:
    """A controller of models `graph`, of which an ensemble loads only while its members are served."""

    def __init__(self, root: Path, graph: Graph) -> None:
        self._graph = graph
        self.turns = Turns()
        self.broken: Collection[str] = ()
        self.ready: Mapping[str, Mapping[int, Version]] = {}
        self.was_ready = True
        self.catalog: Catalog[Version] = Catalog([LocalStore(root)], self, self._publish, ready_rule=ReadyRule("all"))
        self._controller = ModelController(self.catalog, self.turns.pause)
        self._controller._locks = TurnLocks(self.turns)

    def _publish(self, ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        self.ready = dict(ready)

    # --- the loader ---------------------------------------------------------------------------------------------

    def plan(self, entry: ModelEntry) -> ModelPlan:
        config = ModelConfig(name=entry.name)
        for member in sorted(self._graph.get(entry.name, ())):
            config.ensemble_scheduling.step.add(model_name=member)
        return ModelPlan(entry, config, list(entry.version_dirs))

    def config_of(self, loaded: Version) -> ModelConfig:
        return loaded.config

    def update(self, plan: ModelPlan, version: int, loaded: Version) -> None:
        return None

    def load(self, plan: ModelPlan, version: int) -> Version:
        self.turns.pause()
        missing = member_names(plan.config) - self.ready.keys()
        if missing or plan.entry.name in self.broken:
            raise invalid_argument(f"broken, or without {missing}")
        self.turns.pause()
        return Version(self.turns, plan.config)

    # --- calls --------------------------------------------------------------------------------------------------

    def execute(self, call: Call) -> None:
        try:
            if call.kind in ("load", "reload"):
                self._controller.load(call.name, {"force": call.kind == "reload"}, is_by_client=True)
            else:
                is_deep = call.kind == "unload_dependents"
                self._controller.unload(call.name, {"unload_dependents": is_deep})
        except InferError:
            assert call.kind in ("load", "reload")

    def overlap(self, calls: Sequence[Call], choose: Callable[[int], int]) -> int:
        """Execute calls at the same time; return how many came to their end."""
        ended: list[Call] = []

        def begin(call: Call) -> None:
            def work() -> None:
                self.execute(call)
                ended.append(call)

            self.turns.begin(work)

        for call in calls:
            begin(call)
        self.turns.run(choose, self.check)
        return len(ended)

    def check(self) -> None:
        """Check what holds at every time."""
        ill = [name for name in self.ready if not self._graph.get(name, frozenset()) <= self.ready.keys()]
        assert not ill, f"{ill} are ready without their members"
        assert self.catalog.is_ready(ill), self.catalog.index()

    def states(self) -> dict[str, ModelState | None]:
        found = {row.name: row.state for row in self.catalog.index()}
        return {name: state for name, state in found.items() if state is ModelState.READY}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("models")
    for name in NAMES:
        (directory / name / "1").mkdir(parents=True)
    with (
        mock.patch.object(catalog_module, "ThreadPoolExecutor", InlinePool),
        mock.patch.object(heap_trims, "request"),
    ):
        yield directory


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    graph: dict[str, frozenset[str]] = {}
    for name in ENSEMBLES:
        graph[name] = draw(st.frozensets(st.sampled_from([*LEAVES, *graph]), min_size=1, max_size=3))
    return graph


CALLS = st.builds(Call, st.sampled_from(KINDS), st.sampled_from(NAMES))


def _outcome(
    root: Path,
    graph: Graph,
    before: Sequence[Call],
    broken: Collection[str],
    order: Sequence[Call],
    ended: Collection[int] = (),
) -> Any:
    """Return what calls leave one after the other; loads at the positions `ended` fail when their members are up."""
    repository = Repository(root, graph)
    for call in before:
        repository.execute(call)
    for position, call in enumerate(order):
        repository.broken = {*broken, call.name} if position in ended else broken
        repository.execute(call)
    repository.check()
    return repository.states()


def _possible(
    root: Path, graph: Graph, before: Sequence[Call], broken: Collection[str], calls: Sequence[Call]
) -> list[Any]:
    """Return what the calls may leave: the same as one after the other in some order.

    An unload ends a load of the same model that is in progress: that load fails before or after that of its members.
    """
    unloaded = {call.name for call in calls if call.kind.startswith("unload")}
    outcomes = []
    for order in itertools.permutations(calls):
        loads = [at for at, call in enumerate(order) if call.kind in ("load", "reload") and call.name in unloaded]
        for count in range(len(loads) + 1):
            for ended in itertools.combinations(loads, count):
                rest = [call for at, call in enumerate(order) if at not in ended]
                outcomes.append(_outcome(root, graph, before, broken, rest))
                outcomes.append(_outcome(root, graph, before, broken, order, ended))
    return outcomes


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_overlapping_calls_leave_what_some_order_leaves(root: Path, data: st.DataObject) -> None:
    graph = data.draw(graphs())
    before = data.draw(st.lists(CALLS, max_size=4))
    broken = data.draw(st.frozensets(st.sampled_from(NAMES), max_size=1))
    calls = data.draw(st.lists(CALLS, min_size=2, max_size=3))
    repository = Repository(root, graph)
    for call in before:
        repository.execute(call)
    repository.broken = broken
    assert repository.overlap(calls, lambda count: data.draw(st.integers(0, count - 1))) == len(calls)
    assert repository.states() in _possible(root, graph, before, broken, calls)


E_OF_C: Graph = {"e": frozenset("c"), "f": frozenset("e"), "g": frozenset("e")}


@pytest.mark.parametrize("first", [Call(kind, name) for kind in KINDS for name in ("c", "e")], ids=str)
@pytest.mark.parametrize("second", [Call(kind, name) for kind in KINDS for name in ("c", "e")], ids=str)
def test_every_pair_of_calls_in_every_overlap(root: Path, first: Call, second: Call) -> None:
    """The second call begins after each number of steps of the first one, and goes on as far as it can."""
    loaded = (Call("load", "f"),)
    for before in ((), loaded, (*loaded, Call("unload", "c"))) if is_long() else (loaded,):
        possible = _possible(root, E_OF_C, before, (), (first, second))
        for step_count in itertools.count():
            repository = Repository(root, E_OF_C)
            for call in before:
                repository.execute(call)
            steps_left = step_count

            def choose(count: int) -> int:
                nonlocal steps_left
                steps_left -= 1
                return 0 if steps_left >= 0 else count - 1

            assert repository.overlap([first, second], choose) == 2
            assert repository.states() in possible
            if steps_left > 0:
                break  # the first call had ended before the second one began


def test_member_of_changed_files_is_loaded_too(root: Path) -> None:
    """While a load of `f` waits, its member `e` is unloaded and gets other members."""
    graph = {"e": frozenset("c"), "f": frozenset("e")}
    repository = Repository(root, graph)
    repository.execute(Call("load", "f"))

    def change() -> None:
        repository.execute(Call("unload", "e"))
        graph["e"] = frozenset("b")

    # The load plans first, then it waits while the other work is done.
    chosen = iter([0])
    repository.turns.begin(lambda: repository.execute(Call("reload", "f")))
    repository.turns.begin(change)
    repository.turns.run(lambda count: next(chosen, count - 1), lambda: None)
    assert repository.ready.keys() >= {"b", "e", "f"}
    repository.check()
