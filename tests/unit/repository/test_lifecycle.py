import pytest

from naiad.core.model import MISFIT, UNLOADED, IndexEntry, ModelKey, ModelState
from naiad.repository.lifecycle import Lifecycle, ReadyRule


class Version:
    def __init__(self, label: str) -> None:
        self.label = label

    def stop(self, timeout_s: float) -> bool:
        raise AssertionError("the life cycle stops nothing by itself")


class Table:
    """What was published last."""

    def __init__(self) -> None:
        self.ready: dict[str, dict[int, str]] = {}
        self.count = 0

    def publish(self, ready: object, name: str) -> None:
        assert isinstance(ready, dict)
        others = self.ready.keys() - {name}
        assert others == ready.keys() - {name}
        self.ready = {name: {n: v.label for n, v in versions.items()} for name, versions in ready.items()}
        self.count += 1


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def lifecycle(table: Table) -> Lifecycle[Version]:
    return Lifecycle(table.publish)


def state_of(lifecycle: Lifecycle[Version]) -> list[tuple[str, str, ModelState | None, str]]:
    return [(row.name, row.version, row.state, row.reason) for row in lifecycle.rows()]


def test_version_is_loading_until_it_is_swapped_in(lifecycle: Lifecycle[Version], table: Table) -> None:
    lifecycle.begin_load("m", [1, 3])
    assert state_of(lifecycle) == [("m", "1", ModelState.LOADING, ""), ("m", "3", ModelState.LOADING, "")]
    assert table.count == 0
    assert lifecycle.swap("m", {1: Version("a"), 3: Version("b")}) == []
    assert lifecycle.is_ready
    assert table.ready == {"m": {1: "a", 3: "b"}}


def test_failed_version_says_why_and_spoils_readiness(lifecycle: Lifecycle[Version], table: Table) -> None:
    lifecycle.begin_load("m", [1])
    lifecycle.fail_version("m", 1, "no such file")
    assert state_of(lifecycle) == [("m", "1", ModelState.UNAVAILABLE, "no such file")]
    assert not lifecycle.is_ready
    assert table.ready == {}


def test_failed_model_has_a_reason_but_no_version(lifecycle: Lifecycle[Version]) -> None:
    lifecycle.fail_model("m", "model appears in two or more repositories")
    assert state_of(lifecycle) == [("m", "", ModelState.UNAVAILABLE, "model appears in two or more repositories")]
    assert not lifecycle.is_ready


def test_reload_keeps_old_version_until_swap(lifecycle: Lifecycle[Version], table: Table) -> None:
    old, new = Version("old"), Version("new")
    lifecycle.begin_load("m", [1])
    lifecycle.swap("m", {1: old})
    lifecycle.begin_load("m", [1])
    assert state_of(lifecycle) == [("m", "1", ModelState.READY, "")]
    assert lifecycle.is_ready
    assert lifecycle.swap("m", {1: new}) == [old]
    assert table.ready == {"m": {1: "new"}}


def test_failed_reload_leaves_the_old_version_and_readiness(lifecycle: Lifecycle[Version], table: Table) -> None:
    lifecycle.begin_load("m", [1])
    lifecycle.swap("m", {1: Version("old")})
    lifecycle.begin_load("m", [1])
    stale = "serving what was loaded before, its update failed: "
    lifecycle.fail_version("m", 1, "broken")
    assert state_of(lifecycle) == [("m", "1", ModelState.READY, stale + "broken")]
    lifecycle.fail_model("m", "broken too")
    assert state_of(lifecycle) == [("m", "1", ModelState.READY, stale + "broken too")]
    assert lifecycle.is_ready
    assert table.ready == {"m": {1: "old"}}


def test_failures_of_updates_are_forgiven_once_undone(lifecycle: Lifecycle[Version], table: Table) -> None:
    lifecycle.begin_load("m", [1])
    lifecycle.forgive_updates("m")
    assert state_of(lifecycle) == [("m", "1", ModelState.LOADING, "")]
    lifecycle.swap("m", {1: Version("old")})
    lifecycle.begin_load("m", [1, 2])
    lifecycle.fail_version("m", 1, "broken")
    lifecycle.fail_version("m", 2, "broken")
    assert not lifecycle.is_ready
    lifecycle.forgive_updates("m")
    assert state_of(lifecycle) == [
        ("m", "1", ModelState.READY, ""),
        ("m", "2", ModelState.UNAVAILABLE, "unloaded"),
    ]
    assert lifecycle.is_ready
    assert table.ready == {"m": {1: "old"}}


def test_misfit_is_shown_until_model_serves_again(lifecycle: Lifecycle[Version], table: Table) -> None:
    reason = f"{MISFIT}: a member lacks OUT"
    lifecycle.begin_load("m", [1, 2])
    lifecycle.swap("m", {1: Version("old"), 2: Version("newer")})
    lifecycle.swap("m", {2: Version("newest")})
    lifecycle.begin_unload("m", withdraw=True, reason=reason)
    assert state_of(lifecycle)[1] == ("m", "2", ModelState.UNLOADING, reason)
    assert table.ready == {}
    lifecycle.note_misfit("m", reason)
    assert state_of(lifecycle) == [
        ("m", "1", ModelState.UNAVAILABLE, "unloaded"),
        ("m", "2", ModelState.UNAVAILABLE, reason),
    ]
    assert lifecycle.is_ready
    lifecycle.begin_load("m", [2])
    assert state_of(lifecycle)[1] == ("m", "2", ModelState.LOADING, reason)
    lifecycle.swap("m", {2: Version("again")})
    assert state_of(lifecycle)[1] == ("m", "2", ModelState.READY, "")


def test_loading_model_is_not_forgotten(lifecycle: Lifecycle[Version], table: Table) -> None:
    lifecycle.begin_load("m", [1])
    lifecycle.forget("m")
    assert lifecycle.swap("m", {1: Version("new")}) == []
    assert table.ready == {"m": {1: "new"}}
    lifecycle.end_unload("m", list(lifecycle.begin_unload("m")))
    lifecycle.forget("m")
    assert lifecycle.rows() == []


def test_version_that_a_swap_leaves_out_is_unloaded(lifecycle: Lifecycle[Version], table: Table) -> None:
    old = Version("one")
    lifecycle.begin_load("m", [1])
    lifecycle.swap("m", {1: old})
    lifecycle.begin_load("m", [2])
    assert lifecycle.swap("m", {2: Version("two")}) == [old]
    assert state_of(lifecycle) == [("m", "1", ModelState.UNAVAILABLE, UNLOADED), ("m", "2", ModelState.READY, "")]
    assert lifecycle.is_ready
    assert table.ready == {"m": {2: "two"}}


def test_unload_goes_through_unloading_and_ends_unavailable(lifecycle: Lifecycle[Version], table: Table) -> None:
    version = Version("v")
    lifecycle.begin_load("m", [1])
    lifecycle.swap("m", {1: version})
    assert lifecycle.begin_unload("m") == {1: version}
    assert state_of(lifecycle) == [("m", "1", ModelState.UNLOADING, "")]
    assert table.ready == {"m": {1: "v"}}
    lifecycle.end_unload("m", [1])
    assert state_of(lifecycle) == [("m", "1", ModelState.UNAVAILABLE, UNLOADED)]
    assert lifecycle.is_ready
    assert table.ready == {}


def test_unload_of_unknown_model_does_nothing(lifecycle: Lifecycle[Version]) -> None:
    assert lifecycle.begin_unload("m") == {}


READY_A = IndexEntry("a", "1", ModelState.READY)
FAILED_B = IndexEntry("b", "1", ModelState.UNAVAILABLE, "broken")
UNLOADED_B = IndexEntry("b", "1", ModelState.UNAVAILABLE, "unloaded")
LOADING_B = IndexEntry("b", "1", ModelState.LOADING)
UNLOADING_B = IndexEntry("b", "1", ModelState.UNLOADING)
NO_VERSION_B = IndexEntry("b")


def put(lifecycle: Lifecycle[Version], row: IndexEntry) -> None:
    """Bring a model to the state of a row of the index."""
    if not row.version:
        lifecycle.fail_model(row.name, row.reason)
        return
    lifecycle.begin_load(row.name, [1])
    if row.state in (ModelState.READY, ModelState.UNLOADING):
        lifecycle.swap(row.name, {1: Version("loaded")})
    if row.state is ModelState.UNLOADING:
        lifecycle.begin_unload(row.name)
    if row.state is ModelState.UNAVAILABLE:
        lifecycle.fail_version(row.name, 1, row.reason)
    assert lifecycle.rows_named(row.name, has_namespaces=False) == [row]


@pytest.mark.parametrize(
    ("rule", "rows", "holds"),
    [
        ("all", [], True),
        ("all", [READY_A], True),
        ("all", [READY_A, UNLOADED_B], True),
        ("all", [READY_A, FAILED_B], False),
        ("all", [READY_A, LOADING_B], True),
        ("all", [READY_A, UNLOADING_B], True),
        ("all", [READY_A, NO_VERSION_B], False),
        ("any", [READY_A, FAILED_B], True),
        ("any", [FAILED_B], False),
        ("none", [FAILED_B, LOADING_B], True),
        ("a", [READY_A, FAILED_B], True),
        ("a", [READY_A, LOADING_B], True),
        ("b", [READY_A, LOADING_B], False),
        ("a, b", [READY_A, FAILED_B], False),
        ("c", [READY_A], False),
    ],
)
def test_ready_rule(rule: str, rows: list[IndexEntry], holds: bool) -> None:
    lifecycle: Lifecycle[Version] = Lifecycle(lambda ready, name: None, ReadyRule(rule))
    for row in rows:
        put(lifecycle, row)
    assert lifecycle.is_ready is holds


@pytest.mark.parametrize(
    ("rule", "ill", "holds"),
    [
        ("all", [], True),
        ("all", ["b"], False),
        ("any", ["b"], True),
        ("any", ["a", "b"], False),
        ("none", ["a", "b"], True),
        ("a", ["b"], True),
        ("a", ["a"], False),
    ],
)
def test_ready_rule_while_a_model_cannot_execute(rule: str, ill: list[str], holds: bool) -> None:
    assert ReadyRule(rule).holds({"a", "b"}, has_failed=False, ill=ill) is holds


def test_rows_named_belong_to_one_model(lifecycle: Lifecycle[Version]) -> None:
    for name in ("a", "ab", "b"):
        lifecycle.begin_load(name, [2, 1])
    lifecycle.fail_model("c", "no configuration")
    for name in ("a", "ab", "c", "absent"):
        expected = [row for row in lifecycle.rows() if row.name == name]
        assert lifecycle.rows_named(name, has_namespaces=False) == expected


def test_rows_named_in_namespaces_are_of_all_keys(lifecycle: Lifecycle[Version]) -> None:
    keys = [ModelKey("first", "m"), ModelKey("second", "m"), ModelKey("first", "n")]
    for key in keys:
        lifecycle.begin_load(key, [1])
    named = lifecycle.rows_named("m", has_namespaces=True)
    assert [(row.name, row.version) for row in named] == [(key, "1") for key in sorted(keys[:2])]
    assert all(isinstance(row.name, ModelKey) for row in named)
    assert [row.name for row in lifecycle.rows_named(str(keys[2]), has_namespaces=True)] == [keys[2]]
