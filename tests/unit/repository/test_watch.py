"""When a change in a repository counts."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.repository.control.poll import Watch


def test_a_model_is_loaded_when_it_has_stood_for_the_settle_time() -> None:
    watch = Watch(2.0)
    assert watch.look({"m": b"1"}, (), 0.0) == ({}, [])
    assert watch.is_unsettled
    assert watch.look({"m": b"1"}, (), 1.9) == ({}, [])
    assert watch.look({"m": b"1"}, (), 2.0) == ({"m": b"1"}, [])
    assert not watch.is_unsettled
    assert watch.look({"m": b"1"}, (), 3.0) == ({}, [])


def test_a_model_that_goes_on_changing_is_not_loaded() -> None:
    watch = Watch(2.0)
    for second in range(20):
        assert watch.look({"m": str(second).encode(), "other": b""}, (), second)[0].get("m") is None
    assert watch.look({"m": b"19"}, (), 21)[0] == {"m": b"19"}


def test_one_that_changes_does_not_hold_up_another() -> None:
    watch = Watch(2.0)
    watch.look({"bad": b"0", "good": b"1"}, (), 0)
    assert watch.look({"bad": b"1", "good": b"1"}, (), 2)[0] == {"good": b"1"}


def test_a_change_back_to_what_is_loaded_is_no_change() -> None:
    watch = Watch(2.0)
    watch.note("m", b"1")
    watch.look({"m": b"2"}, (), 0)
    assert watch.look({"m": b"1"}, (), 5) == ({}, [])
    assert not watch.is_unsettled


def test_a_model_that_says_it_is_incomplete_is_not_loaded() -> None:
    watch = Watch(2.0)
    for second in range(5):
        assert watch.look({"m": b"1"}, ["m"], second) == ({}, [])
    assert watch.look({"m": b"1"}, (), 5) == ({}, [])
    assert watch.look({"m": b"1"}, (), 7) == ({"m": b"1"}, [])


def test_a_model_is_unloaded_when_it_has_been_gone_for_the_settle_time() -> None:
    watch = Watch(2.0)
    watch.note("m", b"1")
    assert watch.look({}, (), 0) == ({}, [])
    assert watch.look({"m": b"1"}, (), 1) == ({}, [])
    assert watch.look({}, (), 2) == ({}, [])
    assert watch.look({}, (), 4) == ({}, ["m"])
    assert watch.look({}, (), 9) == ({}, [])
    assert not watch.is_unsettled


def test_a_model_that_is_gone_is_unloaded_only_when_nobody_works_on_it() -> None:
    watch = Watch(2.0)
    watch.note("m", b"1")
    for second in range(5):
        assert watch.look({}, ["m"], second) == ({}, [])
    assert watch.is_unsettled
    assert watch.look({}, (), 5) == ({}, ["m"])
    assert not watch.is_unsettled


def test_one_that_comes_and_goes_before_it_settled_is_forgotten() -> None:
    watch = Watch(2.0)
    watch.look({"m": b"1"}, (), 0)
    watch.look({}, (), 1)
    assert not watch.is_unsettled


def test_what_failed_is_not_tried_again_until_it_changes() -> None:
    watch = Watch(0.0)
    assert watch.look({"m": b"bad"}, (), 0)[0] == {"m": b"bad"}
    assert watch.look({"m": b"bad"}, (), 15) == ({}, [])
    assert watch.look({"m": b"good"}, (), 30)[0] == {"m": b"good"}


states = st.dictionaries(st.sampled_from("abc"), st.sampled_from([b"1", b"2"]))


@given(st.lists(st.tuples(states, st.floats(0.1, 3.0)), max_size=40))
def test_whatever_happens_what_stands_is_what_is_acted_upon(looks: list[tuple[dict[str, bytes], float]]) -> None:
    watch = Watch(2.0)
    loaded: dict[str, bytes] = {}
    now_s = 0.0
    for seen, passed_s in [*looks, *[(looks[-1][0] if looks else {}, 1.0)] * 4]:
        now_s += passed_s
        to_load, to_unload = watch.look(seen, (), now_s)
        assert all(seen[name] == fingerprint for name, fingerprint in to_load.items())
        assert all(name in loaded and name not in seen for name in to_unload)
        loaded |= to_load
        for name in to_unload:
            del loaded[name]
    assert loaded == (looks[-1][0] if looks else {})
    assert not watch.is_unsettled
