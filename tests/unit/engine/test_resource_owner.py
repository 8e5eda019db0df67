"""Resources that processes share: what the owner grants, and what becomes of the claims of a process that ends."""

import pytest

from naiad.config.rate_limit import ResourceAmount
from naiad.core.errors import InferError
from support.sharing_processes import Server, model


def test_an_instance_executes_when_the_owner_says_so() -> None:
    server = Server()
    claims, (driver,) = server.processes[0].load(model(1))
    assert not claims.acquire(0)
    assert claims.is_waiting(0)
    assert driver.woken == 0
    server.settle()
    assert driver.woken == 1
    assert claims.acquire(0)
    claims.start(0)
    claims.release(0)
    server.settle()
    assert (server.held(), driver.woken) == (0, 1)


def test_instances_of_processes_exclude_each_other() -> None:
    server = Server()
    (one, first), (other, second) = (process.load(model(1)) for process in server.processes)
    assert not one.acquire(0)
    server.settle()
    assert not other.acquire(0)
    server.settle()
    assert (first[0].woken, second[0].woken) == (1, 0)
    one.start(0)
    assert not one.acquire(0)  # it gives back and asks again, behind the one that waits
    server.settle()
    assert (first[0].woken, second[0].woken) == (1, 1)


def test_a_process_that_ends_gives_back_what_it_held() -> None:
    server = Server()
    holding, waiting = server.processes
    one, _ = holding.load(model(1))
    other, (driver,) = waiting.load(model(1))
    assert not one.acquire(0)
    server.settle()
    one.start(0)
    assert not other.acquire(0)
    server.settle()
    assert driver.woken == 0
    server.end(holding)
    server.settle()
    assert driver.woken == 1
    assert other.acquire(0)


def test_a_process_that_ends_while_it_waits_is_not_waited_for() -> None:
    server = Server(ResourceAmount("R", 2), process_count=3)
    (one, _), (greedy, _), (other, (driver,)) = (
        process.load(model(count)) for process, count in zip(server.processes, (1, 2, 1), strict=True)
    )
    for claims in (one, greedy, other):
        assert not claims.acquire(0)
        server.settle()
    assert driver.woken == 0  # what an earlier one waits for is kept for it
    server.end(server.processes[1])
    server.settle()
    assert driver.woken == 1


def test_a_grant_that_crosses_a_withdrawal_is_nobodys() -> None:
    server = Server()
    process = server.processes[0]
    claims, (driver,) = process.load(model(1))
    assert not claims.acquire(0)
    process.deliver()
    assert claims.withdraw(0)
    assert not claims.acquire(0)  # a new question; the answer to the old one is on its way
    process.receive()
    assert driver.woken == 0
    server.settle()
    assert driver.woken == 1
    assert claims.acquire(0)
    claims.release(0)
    server.settle()
    assert server.held() == 0


def test_turns_count_executions_of_all_processes() -> None:
    server = Server()
    often, seldom = (
        process.load(model(1, priority=priority)) for process, priority in zip(server.processes, (1, 3), strict=True)
    )
    executed = [0, 0]
    for claims, _ in (often, seldom):
        claims.acquire(0)
    for _ in range(40):
        server.settle()
        for number, (claims, _) in enumerate((often, seldom)):
            if claims.acquire(0):
                executed[number] += 1
                claims.start(0)
                assert not claims.acquire(0)
                break
    assert executed == [30, 10]


def test_what_an_unloaded_model_held_is_given_back() -> None:
    server = Server()
    one, _ = server.processes[0].load(model(1))
    assert not one.acquire(0)
    server.settle()
    one.start(0)
    one.close()
    server.settle()
    assert server.held() == 0
    assert server.owner.usage() == []
    assert not one.acquire(0)  # an instance that is late gets nothing


def test_what_can_never_be_granted_is_refused_before_the_owner_is_asked() -> None:
    server = Server(ResourceAmount("R", 3))
    with pytest.raises(InferError, match='Resource count for "R" is limited to 3'):
        server.processes[0].load(model(4))
    assert server.owner.usage() == []


def test_what_does_not_fit_to_another_process_is_refused_and_leaves_nothing() -> None:
    server = Server()
    one, other = server.processes
    one.load(model(1))
    with pytest.raises(InferError, match='Resource "R" is present as both global and device-specific'):
        other.load(model(1, is_global=False))
    other.load(model(2))


def test_what_own_callers_hold_bars_a_claim() -> None:
    server = Server(ResourceAmount("R", 2))
    process = server.processes[0]
    caller, (held,) = process.load(model(2))
    called, _ = process.load(model(1))
    assert not caller.acquire(0)
    server.settle()
    caller.start(0)
    assert not called.acquire(0)
    server.settle()
    assert called.is_barred(0, {id(held)})
    assert not called.is_barred(0, set())
