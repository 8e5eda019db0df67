from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader
from naiad.protocol.header_memory import SIGHTINGS, HeaderMemory


def cache(**changes):
    return BoundedCache(**{"max_entries": 100, "max_bytes": 1000, "max_entry_bytes": 100, **changes})


def proposal(memory, target, name, size=10, *, is_admitted=True):
    """Propose a header that was met often enough."""
    header = RequestHeader(model_name=name)
    for _ in range(SIGHTINGS - 1):
        memory.propose(RequestHeader(model_name=name), target, name, None, size)
    memory.propose(header, target, name, header, size)
    header.admission = "admitted" if is_admitted else None
    return header


def test_admitted_headers_are_remembered_when_settled():
    memory, target = HeaderMemory(), cache()
    header = proposal(memory, target, "a")
    assert target.get("a") is None
    memory.settle()
    assert target["a"] is header


def test_unique_headers_do_not_push_out_frequent_ones():
    memory, target = HeaderMemory(), cache(max_entries=3)
    header = proposal(memory, target, "often")
    for number in range(10_000):
        unique = RequestHeader(model_name=f"once {number}")
        unique.admission = "admitted"
        memory.propose(unique, target, unique.model_name, unique, 10)
        memory.settle()
    assert list(target.values()) == [header]
    assert len(memory._seen) <= 4096


def test_sightings_are_counted_apart_for_each_cache():
    memory, target, other = HeaderMemory(), cache(), cache()
    header = RequestHeader(model_name="a")
    header.admission = "admitted"
    for each in [target, other] * (SIGHTINGS - 1):
        memory.propose(header, each, "a", header, 10)
    memory.settle()
    assert not target
    assert not other


def test_refused_headers_are_never_remembered():
    memory, target = HeaderMemory(), cache()
    for i in range(1000):
        proposal(memory, target, f"m{i}", is_admitted=False)
        memory.settle()
    assert not target
    assert len(memory._proposals) <= 16


def test_a_header_admitted_late_is_remembered():
    memory, target = HeaderMemory(), cache()
    header = proposal(memory, target, "a", is_admitted=False)
    memory.settle()
    header.admission = "admitted"
    memory.settle()
    assert target["a"] is header


def test_a_large_header_is_not_even_proposed():
    memory, target = HeaderMemory(), cache()
    proposal(memory, target, "a", size=101)
    assert not memory._proposals


def test_cache_is_bounded_in_bytes_and_entries():
    target = cache(max_entries=5, max_bytes=100)
    for i in range(50):
        target.remember(i, "value", 30)
        assert len(target) <= 3
        assert target.used_bytes == 30 * len(target)
    assert list(target) == [47, 48, 49]
    for i in range(50):
        target.remember(f"s{i}", "value", 1)
    assert len(target) == 5


def test_an_entry_that_is_replaced_is_counted_once():
    target = cache()
    target.remember("a", 1, 30)
    target.remember("a", 2, 40)
    assert (target["a"], target.used_bytes) == (2, 40)
    target.clear()
    assert (len(target), target.used_bytes) == (0, 0)
