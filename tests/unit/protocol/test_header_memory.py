from naiad.core.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader
from naiad.protocol.header_memory import HeaderMemory


def cache(**changes):
    return BoundedCache(**{"max_entries": 100, "max_bytes": 1000, "max_entry_bytes": 100, **changes})


def proposal(memory, target, name, size=10, *, is_admitted=True):
    header = RequestHeader(model_name=name)
    memory.propose(header, target, name, header, size)
    header.admission = "admitted" if is_admitted else None
    return header


def test_admitted_headers_are_remembered_when_settled():
    memory, target = HeaderMemory(), cache()
    header = proposal(memory, target, "a")
    assert target.get("a") is None
    memory.settle()
    assert target["a"] is header


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
