from naiad.cluster.supervisor.scatter_gather import merge_index
from naiad.core.model import IndexEntry, ModelState

READY = IndexEntry("m", "1", ModelState.READY)
FAILED = IndexEntry("m", "1", ModelState.UNAVAILABLE, "no memory")


def test_processes_that_agree_make_their_index() -> None:
    rows = [
        IndexEntry("a", "2", ModelState.READY),
        IndexEntry("a", "10", ModelState.UNAVAILABLE, "unloaded"),
        IndexEntry("b"),
    ]
    assert merge_index([rows, rows, rows]) == rows


def test_versions_are_ordered_as_numbers() -> None:
    rows = [IndexEntry("m", version, ModelState.READY) for version in ("10", "9", "1")]
    assert [row.version for row in merge_index([rows])] == ["1", "9", "10"]


def test_version_is_ready_only_if_all_agree() -> None:
    expected = IndexEntry("m", "1", ModelState.UNAVAILABLE, "in 1 of 3 processes: no memory")
    assert merge_index([[READY], [FAILED], [READY]]) == [expected]


def test_a_version_that_some_are_loading_is_loading() -> None:
    loading = IndexEntry("m", "1", ModelState.LOADING)
    assert merge_index([[READY], [loading]]) == [IndexEntry("m", "1", ModelState.LOADING, "in 1 of 2 processes")]


def test_version_unknown_to_one_process_is_unavailable() -> None:
    expected = IndexEntry("m", "1", ModelState.UNAVAILABLE, "in 1 of 2 processes: not loaded")
    assert merge_index([[READY], []]) == [expected]


def test_failure_without_versions_applies_to_each_version() -> None:
    bare = IndexEntry("m", "", ModelState.UNAVAILABLE, "config.pbtxt is wrong")
    expected = IndexEntry("m", "1", ModelState.UNAVAILABLE, "in 1 of 2 processes: config.pbtxt is wrong")
    assert merge_index([[bare], [READY]]) == [expected]


def test_without_processes_there_is_nothing() -> None:
    assert merge_index([]) == []
