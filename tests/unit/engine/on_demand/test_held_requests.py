"""Requests that are held: their bounds, their order, their end."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.engine.on_demand.held_inference import hold_request
from naiad.engine.on_demand.held_requests import ColdModelError, HeldRequests, HoldLimits
from naiad.repository.control.on_demand.resident import Ask, LoadRefusal

if TYPE_CHECKING:
    from naiad.core.response import InferResponse


class Timer:
    def __init__(self, delay_s: float, act: Callable[[], object]) -> None:
        self.delay_s, self.act = delay_s, act

    def cancel(self) -> None:
        self.act = lambda: None


class Loop:
    """Callbacks run when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.timers: list[Timer] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        self.timers.append(Timer(delay, lambda: callback(*args)))
        return self.timers[-1]

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Models:
    """All models are on demand, except "other"."""

    def __init__(self) -> None:
        self.on_settled: Callable[[str, InferError | None], object] = lambda key, failure: None
        self.answer: Ask | LoadRefusal = Ask.BEGIN
        self.urgent: list[bool] = []
        self.released: list[str] = []

    def find(self, name: str) -> str | None:
        return None if name == "other" else name

    def ask(self, key: str, *, is_urgent: bool = False) -> Ask | LoadRefusal:
        self.urgent.append(is_urgent)
        return self.answer

    def is_answerable(self, key: str) -> bool:
        return True

    def versions_of(self, key: str) -> Sequence[int]:
        return (1, 2)

    def is_decoupled(self, key: str) -> bool:
        return False

    def release(self, key: str) -> None:
        self.released.append(key)


class Scene:
    def __init__(self, **limits: Any) -> None:
        self.loop, self.models = Loop(), Models()
        self.held = HeldRequests(self.models, self.loop, HoldLimits(**limits))  # type: ignore[arg-type]  # its parts
        self.events: list[str] = []

    def cold(self, name: str = "m") -> ColdModelError:
        cold = self.held.cold(name)
        assert cold is not None
        return cold

    def hold(self, label: str, name: str = "m", size: int = 1, **options: Any) -> Any:
        def refuse(error: InferError) -> None:
            self.events.append(f"{label}: {error.message}")

        return self.held.hold(self.cold(name), size, lambda: self.events.append(label), refuse, **options)


def test_requests_are_resumed_in_their_order() -> None:
    scene = Scene()
    for label in ("first", "second", "third"):
        scene.hold(label)
    scene.hold("another", "n")
    assert scene.held.count == 4
    scene.models.on_settled("m", None)
    scene.loop.run()
    assert scene.events == ["first", "second", "third"]
    assert scene.models.released == ["m"]
    assert (scene.held.count, scene.held.size_bytes) == (1, 1)


def test_failure_reaches_each_request_once() -> None:
    scene = Scene()
    scene.hold("first")
    scene.hold("second")
    scene.models.on_settled("m", unavailable("no such file"))
    scene.models.on_settled("m", None)
    scene.loop.run()
    assert scene.events == ["first: no such file", "second: no such file"]


def test_request_after_a_failure_is_not_held() -> None:
    scene = Scene()
    scene.models.answer = LoadRefusal("no such file", 1.5)
    with pytest.raises(InferError, match=r"no such file; the next attempt is in 1\.5 s"):
        scene.hold("late")
    scene.models.answer = LoadRefusal("Server exiting", 0.0)
    with pytest.raises(InferError, match=r"^Server exiting$"):
        scene.hold("last")
    assert scene.held.count == 0


def test_request_for_a_withdrawn_model_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    cold = scene.cold()
    again: list[str] = []

    def ask(key: str, *, is_urgent: bool = False) -> Ask:
        raise KeyError(key)

    monkeypatch.setattr(scene.models, "ask", ask)
    scene.held.hold(cold, 1, lambda: again.append("look"), lambda error: None)
    scene.loop.run()
    assert again == ["look"], "it was pinned meanwhile, or it is not there"
    assert scene.held.count == 0


def test_model_that_was_loaded_meanwhile_resumes_at_once() -> None:
    scene = Scene()
    scene.models.answer = Ask.READY
    scene.hold("now")
    scene.loop.run()
    assert scene.events == ["now"]


@pytest.mark.parametrize(
    ("limits", "name", "size", "reason"),
    [
        ({"count_of_model": 1}, "m", 1, "--max-held-requests-per-model"),
        ({"count": 1}, "n", 1, "--max-held-requests"),
        ({"size_bytes_of_model": 10}, "m", 11, "bytes"),
        ({"size_bytes": 10}, "n", 11, "bytes"),
    ],
)
def test_requests_beyond_a_bound_are_refused(limits: dict[str, int], name: str, size: int, reason: str) -> None:
    scene = Scene(**limits)
    scene.hold("first", "m")
    with pytest.raises(InferError, match=reason) as raised:
        scene.hold("second", name, size)
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert scene.held.rejected_count == 1
    assert scene.held.count == 1


def test_request_ends_at_its_timeout() -> None:
    scene = Scene(hold_s=60.0)
    request = scene.hold("long")
    assert 59.0 < scene.loop.timers[-1].delay_s <= 60.0
    scene.hold("short", since_ns=0, deadline_ns=1)
    assert scene.loop.timers[-1].delay_s == 0.0
    scene.loop.timers[-1].act()
    assert scene.events == ["short: the model 'm' was not loaded within the timeout of the request"]
    assert request.cancel()
    assert not request.cancel()
    scene.models.on_settled("m", None)
    scene.loop.run()
    assert len(scene.events) == 1


def test_defect_leaves_the_next_request_alone() -> None:
    scene = Scene()
    scene.held.hold(scene.cold(), 1, lambda: 1 / 0, lambda error: None)
    scene.hold("second")
    scene.models.on_settled("m", None)
    scene.loop.run()
    assert scene.events == ["second"]
    assert scene.models.released == ["m"]


def test_exit_refuses_what_is_held() -> None:
    scene = Scene()
    scene.hold("first")
    scene.hold("second", "n")
    scene.held.abort("the server exits")
    assert scene.events == ["first: the server exits", "second: the server exits"]
    assert scene.held.count == 0


def test_ten_thousand_requests_take_several_turns() -> None:
    scene = Scene(count_of_model=10_000)
    for number in range(10_000):
        scene.hold(str(number))
    with pytest.raises(InferError):
        scene.hold("one more")
    scene.models.on_settled("m", None)
    scene.loop.soon.pop(0)()
    assert 0 < len(scene.events) < 10_000
    scene.loop.run()
    assert scene.events == [str(number) for number in range(10_000)]


def test_decoded_request_is_submitted_later_or_cancelled() -> None:
    scene = Scene()
    responses: list[InferResponse] = []
    submitted: list[InferRequest] = []

    def new_request() -> InferRequest:
        header = RequestHeader(model_name="m", inputs=(), outputs=(), timeout_us=2_000_000)
        return InferRequest(header, [b"1234"], lambda request, response: responses.append(response), arrival_ns=1)

    first, second = new_request(), new_request()
    hold_request(first, scene.cold(), submitted.append)
    hold_request(second, scene.cold(), submitted.append)
    assert scene.held.size_bytes == 8
    assert first.model.is_waiting(first)
    assert first.model.cancel(first)
    assert not first.model.cancel(first)
    assert [response.error and response.error.code for response in responses] == [ErrorCode.CANCELLED]
    scene.models.on_settled("m", None)
    scene.loop.run()
    assert submitted == [second]
    assert second.model is None


def test_model_that_was_never_loaded_has_empty_counts() -> None:
    scene = Scene()
    assert [(each.model, each.version) for each in scene.held.new_counts("m")] == [("m", "1"), ("m", "2")]
    assert scene.held.cold("other") is None
