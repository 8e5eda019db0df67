"""Which calls wait for each other for ever: hold and wait in a circle, and nothing that could still end."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.model_call import ModelCall
from naiad.core.request import InferRequest, RequestHeader
from naiad.engine.calls.cycles import describe, find_stuck, is_waiting
from support.model_call_parts import FakeServed, make_call


def client_request(model: FakeServed) -> InferRequest:
    """Return a request of a client that `model` executes."""
    request = InferRequest(RequestHeader(model_name=model.name), (), lambda request, response: None)
    request.model = model
    return request


def test_a_model_with_one_instance_that_calls_itself():
    a = FakeServed("a")
    call = make_call(a, a, parents=[client_request(a)])
    assert find_stuck([call]) == [call]
    assert describe(call, [call]) == ["a", "a"]


def test_a_free_instance_ends_the_wait():
    a = FakeServed("a", count=2)
    call = make_call(a, a)
    assert find_stuck([call]) == []
    second = make_call(a, a, instance=1)
    assert find_stuck([call, second]) == [call, second]


def test_a_call_that_executes_is_not_stuck_and_neither_is_who_waits_for_its_instance():
    a, b, c = FakeServed("a"), FakeServed("b"), FakeServed("c")
    outer = make_call(a, b, is_queued=False)
    waiting = make_call(c, a)
    assert find_stuck([outer, waiting]) == []


def test_a_circle_through_other_models():
    a, b = FakeServed("a"), FakeServed("b")
    request = client_request(a)
    first = make_call(a, b, parents=[request], is_queued=False)
    second = make_call(b, a, parents=[first])
    assert find_stuck([first, second]) == [first, second]
    assert describe(second, [first, second]) == ["b", "a", "b"]
    assert is_waiting(second)
    assert not is_waiting(first)


def test_two_models_that_call_each_other_at_the_same_time():
    a, b = FakeServed("a"), FakeServed("b")
    ab, ba = make_call(a, b, parents=[client_request(a)]), make_call(b, a, parents=[client_request(b)])
    assert find_stuck([ab, ba]) == [ab, ba]
    assert describe(ab, [ab, ba]) == ["a", "b", "a"]


def test_a_circle_through_an_ensemble():
    a, wrapped = FakeServed("a"), FakeServed("wrapped", count=0)
    call = make_call(a, wrapped, is_queued=False)
    step = client_request(a)
    step.lane = "queue"
    wrapped.blocking[call] = [step]
    assert find_stuck([call]) == [call]
    assert is_waiting(call)
    assert describe(call, [call]) == ["a", "wrapped", "a"]
    step.lane = None  # it executes: then it ends
    assert find_stuck([call]) == []


def test_a_bystander_in_a_full_queue_is_stuck_with_the_circle_but_names_it():
    a, b = FakeServed("a"), FakeServed("b")
    call = make_call(a, a, parents=[client_request(a)])
    bystander = make_call(b, a, parents=[client_request(b)])
    stuck = find_stuck([call, bystander])
    assert stuck == [call, bystander]
    assert describe(bystander, stuck) == ["a", "a"]


def test_an_instance_that_waits_for_resources_of_the_caller():
    a, b = FakeServed("a"), FakeServed("b")
    call = make_call(a, b, parents=[client_request(a)])
    assert find_stuck([call]) == []
    b.barred_by = a.instances[0]
    assert find_stuck([call]) == [call]
    b.barred_by = object()  # somebody else holds them, and ends
    assert find_stuck([call]) == []


def test_a_request_of_a_sequence_waits_for_the_instance_that_has_it():
    a = FakeServed("a", count=2)
    call = make_call(a, a, parents=[client_request(a)])
    a.instance_of[call] = 0
    assert find_stuck([call]) == [call]
    assert describe(call, [call]) == ["a", "a"]
    a.instance_of[call] = 1
    assert find_stuck([call]) == []


def test_a_call_that_waits_for_the_answer_to_what_its_caller_was_asked():
    a = FakeServed("a", count=2)
    asked = client_request(a)
    call = make_call(a, a, parents=[asked], is_queued=False)
    assert not is_waiting(call)
    a.blocking[call] = a.holding_back[call] = [asked]
    assert find_stuck([call]) == [call]
    assert is_waiting(call)
    assert describe(call, [call]) == ["a", "a"]
    elsewhere = make_call(FakeServed("b"), a, parents=[client_request(a)], is_queued=False)
    a.blocking[elsewhere] = a.holding_back[elsewhere] = [client_request(a)]
    assert find_stuck([elsewhere]) == []


def test_a_circle_through_an_ensemble_without_room():
    a, narrow = FakeServed("a", count=3), FakeServed("narrow", count=0)
    step = client_request(a)
    call = make_call(a, narrow, parents=[step], is_queued=False)
    assert find_stuck([call]) == []
    narrow.holding_back[call] = [step]
    assert find_stuck([call]) == [call]
    assert is_waiting(call)
    assert describe(call, [call]) == ["a", "narrow", "a"]
    narrow.holding_back[call] = [step, client_request(a)]  # the room of another, which ends
    assert find_stuck([call]) == []


def test_models_without_a_request_yet():
    call = make_call(FakeServed("a"), FakeServed("b"))
    call.model = None
    assert find_stuck([call]) == []
    assert not is_waiting(make_call(FakeServed("a"), FakeServed("b"), is_queued=False))


# --- invariants -----------------------------------------------------------------------------------------------------

_COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[FakeServed], list[ModelCall]]:
    """Models and calls between them: an instance makes one call at most, and executes one at most."""
    models = [FakeServed(f"m{index}", count) for index, count in enumerate(draw(_COUNTS))]
    places = [(model, number) for model in models for number in range(len(model.instances))]
    calls: list[ModelCall] = []
    running: set[int] = set()
    for model, number in draw(st.permutations(places)):
        if draw(st.booleans()):
            continue
        executed = [call for call in calls if call.model is model and id(call) not in running]
        parents: list[InferRequest] = [client_request(model)]
        if executed and draw(st.booleans()):
            parents = [executed[0]]
            executed[0].lane = None
            running.add(id(executed[0]))
        calls.append(make_call(model, draw(st.sampled_from(models)), instance=number, parents=parents))
    return models, calls


def simulate(models: list[FakeServed], calls: list[ModelCall]) -> set[int]:
    """Let instances that are free execute what waits until nothing moves; return what is left."""
    left = {id(call): call for call in calls}
    while True:
        held = {id(call.caller) for call in left.values()}
        parents = {id(parent) for call in left.values() for parent in call.parents}
        ended = [
            key
            for key, call in left.items()
            if (
                any(id(instance) not in held for instance in call.model.instances)
                if call.lane is not None
                else id(call) not in parents
            )
        ]
        if not ended:
            return set(left)
        for key in ended:
            del left[key]


@given(worlds())
def test_stuck_are_exactly_those_that_never_end(world):
    models, calls = world
    assert {id(call) for call in find_stuck(calls)} == simulate(models, calls)


@given(worlds())
def test_every_circle_has_a_call_to_refuse_and_a_description(world):
    _, calls = world
    stuck = find_stuck(calls)
    waiting = [call for call in stuck if is_waiting(call)]
    assert bool(waiting) == bool(stuck)
    for call in waiting:
        circle = describe(call, stuck)
        assert len(circle) >= 2
        assert circle[0] == circle[-1]
