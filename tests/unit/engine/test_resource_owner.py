"""Resources that processes share: what the owner grants, and what becomes of the claims of a process that ends."""

import pytest

from naiad.core.errors import InferError
from naiad.options.limits import ResourceAmount
from support.sharing_processes import Server, model


def test_an_instance_executes_when_the_owner_says_so() -> None:
    server = Server()
    claims, (runner,) = server.processes[0].load(model(1))
    assert not claims.acquire(0)
    assert claims.is_waiting(0)
    assert runner.woken == 0
    server.settle()
    assert runner.woken == 1
    assert claims.acquire(0)
    claims.start(0)
    claims.release(0)
    server.settle()
    assert (server.held(), runner.woken) == (0, 1)


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
    other, (runner,) = waiting.load(model(1))
    assert not one.acquire(0)
    server.settle()
    one.start(0)
    assert not other.acquire(0)
    server.settle()
    assert runner.woken == 0
    server.end(holding)
    server.settle()
    assert runner.woken == 1
    assert other.acquire(0)


def test_a_process_that_ends_while_it_waits_is_not_waited_for() -> None:
    server = Server(ResourceAmount("R", 2), process_count=3)
    (one, _), (greedy, _), (other, (runner,)) = (
        process.load(model(count)) for process, count in zip(server.processes, (1, 2, 1), strict=True)
    )
    for claims in (one, greedy, other):
        assert not claims.acquire(0)
        server.settle()
    assert runner.woken == 0  # what an earlier one waits for is kept for it
    server.end(server.processes[1])
    server.settle()
    assert runner.woken == 1


def test_a_grant_that_crosses_a_withdrawal_is_nobodys() -> None:
    server = Server()
    process = server.processes[0]
    claims, (runner,) = process.load(model(1))
    assert not claims.acquire(0)
    process.deliver()
    assert claims.withdraw(0)
    assert not claims.acquire(0)  # a new question; the answer to the old one is on its way
    process.receive()
    assert runner.woken == 0
    server.settle()
    assert runner.woken == 1
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
    # Loading counts as two executions of each, so that the one of priority 1 has 4 before the turns are equal.
    assert executed == [31, 9]


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


# --- calls that wait for each other in several processes ------------------------------------------------------------


class Caller:
    """A process of which one instance executes and holds, while a model that it calls waits for as much."""

    def __init__(self, server: Server, number: int, needs: int = 1) -> None:
        self.process = server.processes[number]
        (self.holding, (self.holder,)), (self.asking, (self.asker,)) = (
            self.process.load(model(count)) for count in (1, needs)
        )
        assert not self.holding.acquire(0)
        server.settle()
        self.holding.start(0)

    def suspects(self) -> int:
        """Tell what is stuck; return how often the process was told to refuse a call by now."""
        self.process.resources.suspect({id(self.holder)}, {id(self.asker)})
        self.process.deliver()
        return self.process.refused


def calling(server: Server, count: int = 2) -> list[Caller]:
    """Instances of so many processes execute; then each calls a model that needs as much as they hold."""
    callers = [Caller(server, number) for number in range(count)]
    for caller in callers:
        assert not caller.asking.acquire(0)
    server.settle()
    return callers


def test_calls_that_wait_for_each_other_in_two_processes_are_found_when_both_have_told_so_again() -> None:
    server = Server(ResourceAmount("R", 2))
    one, other = calling(server)
    assert one.process.resources.waiting() == {id(one.asker)}
    assert [one.suspects(), one.suspects()] == [0, 0], "the other may go on"
    assert other.suspects() == 0, "what the first has told is older"
    assert one.suspects() == 0, "the other has told it only once"
    assert other.suspects() == 1, "one of them has to give way"
    assert one.suspects() == 0, "not both"


def test_after_a_refusal_everybody_has_to_tell_again() -> None:
    server = Server(ResourceAmount("R", 3), process_count=3)
    callers = calling(server, 3)
    found = [caller.suspects() for _ in range(3) for caller in callers]
    assert found == [0, 0, 0, 0, 0, 1, 0, 0, 2]
    # The call is refused, its caller ends, and one of the others gets what it waits for.
    callers[2].asking.release(0)
    callers[2].holding.release(0)
    server.settle()
    assert [caller.asker.woken for caller in callers] == [1, 0, 0]
    assert [caller.suspects() for _ in range(3) for caller in callers[:2]] == [0] * 6


def test_a_process_that_waits_for_somebody_who_goes_on_is_not_stuck() -> None:
    server = Server(ResourceAmount("R", 3), process_count=3)
    busy, _ = server.processes[2].load(model(1))
    assert not busy.acquire(0)
    server.settle()
    busy.start(0)
    callers = calling(server)
    assert server.held() == 3
    assert [caller.suspects() for _ in range(4) for caller in callers] == [0] * 8


def test_who_changes_its_mind_has_to_tell_again() -> None:
    server = Server(ResourceAmount("R", 2))
    one, other = calling(server)
    one.suspects()
    other.suspects()
    one.process.resources.suspect((), ())
    one.process.deliver()
    assert [other.suspects(), one.suspects(), other.suspects()] == [0, 0, 0]
    assert one.suspects() == 1


def test_nothing_is_told_while_nothing_is_suspected() -> None:
    server = Server(ResourceAmount("R", 2))
    one, _ = calling(server)
    one.process.resources.suspect((), ())
    assert not one.process.sent
    one.process.resources.suspect({id(one.holder)}, ())
    assert not one.process.sent


def test_what_a_process_that_ends_has_suspected_is_forgotten() -> None:
    server = Server(ResourceAmount("R", 2))
    one, other = calling(server)
    for _ in range(2):
        one.suspects()
    server.end(one.process)
    assert [other.suspects() for _ in range(4)] == [0] * 4
    server.settle()
    assert other.asker.woken == 1
