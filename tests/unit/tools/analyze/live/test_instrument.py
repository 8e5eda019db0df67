"""The instrument without a server: what a measurement becomes when variants fail and servers die."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.support.analyze_simulation import MODELS, SimulatedInstrument

from naiad.client import ConnectionFailedError, ErrorCode, InferError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.live import instrument as module
from naiad.tools.analyze.live.configurations import NO_CONTROL
from naiad.tools.analyze.live.instrument import LiveInstrument
from naiad.tools.analyze.point_measurement import Measured, ServerLostError
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.measure.result import Errors, Row
from naiad.tools.perf.perf_plan import Concurrency, Load, ModelLoad, Plan, RequestRate, ServerTarget
from naiad.tools.perf.perf_plan import Protocol as Transport
from naiad.tools.values.tensor import InputError

DEFAULT = Variant("m", "m_config_default", {})
LARGE = Variant("m", "m_config_0", {"max_batch_size": 8}, '{"name": "m", "max_batch_size": 8}')


def row(point: Point) -> Row:
    return asyncio.run(SimulatedInstrument(MODELS["python"]).measure(point, 1.0)).rows["m"]


ROW = row(Point((DEFAULT,), 1))
EMPTY = replace(ROW, request_count=0)


@dataclass
class Scene:
    """What the server and the load generator do, and what they were asked for."""

    is_alive: bool = True
    rows: list[Row] = field(default_factory=list)
    """Of the next loads; afterwards every load gives figures."""
    raises: BaseException | None = None
    refuses: BaseException | None = None
    """When the models are read for the first time."""
    starts: int = 0
    stops: int = 0
    sent: list[tuple[Load, int]] = field(default_factory=list)
    applied: list[tuple[Variant, ...]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    def begin_to_read(self) -> None:
        if self.refuses is not None:
            raise self.refuses


class FakeServer:
    service = ServerTarget("http://127.0.0.1:1", Transport.HTTP)
    metrics_url = ""
    pid = 0
    output = "the last lines"

    def __init__(self, scene: Scene, *, is_own: bool) -> None:
        self.scene, self.is_own = scene, is_own

    async def start(self) -> None:
        self.scene.starts += 1
        self.scene.is_alive = True

    async def is_alive(self) -> bool:
        return self.scene.is_alive

    async def stop(self) -> None:
        self.scene.stops += 1


class FakeClient:
    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()

    class FakeConfigurations:
        def __init__(self, client: object, url: str, journal: object) -> None:
            self.configs: dict[str, ModelConfig] = {}

        async def read(self, models: Sequence[str]) -> None:
            made.begin_to_read()
            self.configs = {"m": ModelConfig(name="m", max_batch_size=4)}

        async def apply(self, variants: tuple[Variant, ...]) -> None:
            made.applied.append(variants)
            if made.raises is not None:
                raise made.raises

        async def restore(self) -> None:
            made.applied.append(())

    class FakeSession:
        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        async def open(self) -> None:
            made.opened += 1

        async def close(self) -> None:
            made.closed += 1

        async def measure(self, load: Load) -> list[Row]:
            made.sent.append((load, self.plan.measuring.window_ms))
            return [made.rows.pop(0) if made.rows else ROW]

    monkeypatch.setattr(module, "Configurations", FakeConfigurations)
    monkeypatch.setattr(module, "Session", FakeSession)
    monkeypatch.setattr(module, "make_client", lambda service, timeout_s: FakeClient())
    return made


def measured(scene: Scene, points: Sequence[Point], *, is_own: bool = True, **steps: Any) -> list[Measured]:
    """Measure points one after the other; `before` of a step changes the scene."""
    before: Mapping[int, Callable[[], None]] = steps.get("before", {})

    async def run() -> list[Measured]:
        found: list[Measured] = []
        async with LiveInstrument(FakeServer(scene, is_own=is_own), [ModelLoad("m")]) as instrument:
            for number, point in enumerate(points):
                before.get(number, lambda: None)()
                found.append(await instrument.measure(point, 0.5))
        return found

    return asyncio.run(run())


def test_point_is_applied_and_gets_its_load(scene: Scene) -> None:
    (found,) = measured(scene, [Point((LARGE,), 8)])
    assert scene.applied == [(LARGE,)]
    assert scene.sent == [(Concurrency(8), 500)]
    assert found.error == ""
    assert found.metrics["m"]["perf_throughput"].value == ROW.throughput.value
    assert (scene.starts, scene.stops) == (1, 1)


def test_rate_is_an_open_loop(scene: Scene) -> None:
    measured(scene, [Point((DEFAULT,), 0, 20.0)])
    assert [load for load, _ in scene.sent] == [RequestRate(20.0)]


def test_requests_that_take_longer_get_more_time(scene: Scene) -> None:
    scene.rows = [EMPTY]
    (found,) = measured(scene, [Point((DEFAULT,), 1)])
    assert [window_ms for _, window_ms in scene.sent] == [500, 5000]
    assert found.error == ""


def test_point_without_any_request_fails(scene: Scene) -> None:
    scene.rows = [EMPTY, EMPTY]
    (found,) = measured(scene, [Point((DEFAULT,), 1)])
    assert found.error == "model 'm': no request has ended in time"
    assert found.metrics == {}


def test_session_is_kept_for_the_same_requests(scene: Scene) -> None:
    measured(scene, [Point((DEFAULT,), 1), Point((DEFAULT,), 2), Point((DEFAULT,), 2, batch_size=4)])
    assert (scene.opened, scene.closed) == (2, 2)


def test_requests_beyond_the_batch_are_refused_without_load(scene: Scene) -> None:
    small, large = measured(scene, [Point((DEFAULT,), 1, batch_size=8), Point((LARGE,), 1, batch_size=8)])
    assert small.error == "requests of batch size 8 exceed max_batch_size 4"
    assert large.error == ""
    assert scene.applied == [(LARGE,)]


def test_failed_load_is_an_error_of_the_point(scene: Scene) -> None:
    scene.raises = InferError(ErrorCode.INTERNAL, "no memory")
    found = measured(scene, [Point((LARGE,), 1)])
    assert [each.error for each in found] == ["no memory"]
    assert scene.sent == []


def test_data_that_do_not_fit_end_the_analysis(scene: Scene) -> None:
    scene.raises = InputError("no input 'x'")
    with pytest.raises(InputError):
        measured(scene, [Point((DEFAULT,), 1)])
    assert [each.error for each in measured(scene, [Point((LARGE,), 1)])] == ["no input 'x'"]


def test_server_without_control_ends_the_analysis(scene: Scene) -> None:
    scene.raises = InferError(ErrorCode.UNAVAILABLE, NO_CONTROL)
    with pytest.raises(InferError, match="explicit model load"):
        measured(scene, [Point((LARGE,), 1)])


# --- servers that die -------------------------------------------------------------------------------------------


def dying(scene: Scene) -> Callable[[], None]:
    def die() -> None:
        scene.is_alive = False
        scene.rows = [replace(EMPTY, errors=[Errors("CONNECTION", 3, "connection reset")])]

    return die


def test_own_server_that_died_is_started_again(scene: Scene) -> None:
    points = [Point((LARGE,), 1), Point((DEFAULT,), 1)]
    first, second = measured(scene, points, before={0: dying(scene)})
    assert first.error == "the server died: model 'm': connection reset"
    assert second.error == ""
    assert scene.starts == 2


def test_own_server_that_dies_twice_is_lost(scene: Scene) -> None:
    points = [Point((LARGE,), 1), Point((LARGE,), 2)]
    with pytest.raises(ServerLostError, match=r"connection reset(?s:.*)the last lines"):
        measured(scene, points, before={0: dying(scene), 1: dying(scene)})
    assert scene.starts == 2
    assert scene.stops == 1


def test_a_measurement_between_deaths_resets_them(scene: Scene) -> None:
    points = [Point((LARGE,), 1), Point((DEFAULT,), 1), Point((LARGE,), 2), Point((DEFAULT,), 1)]
    found = measured(scene, points, before={0: dying(scene), 2: dying(scene)})
    assert [bool(each.error) for each in found] == [True, False, True, False]
    assert scene.starts == 3


def test_foreign_server_that_died_is_lost_at_once(scene: Scene) -> None:
    with pytest.raises(ServerLostError):
        measured(scene, [Point((LARGE,), 1)], is_own=False, before={0: dying(scene)})
    assert scene.starts == 1


def test_server_that_cannot_be_reached_is_lost(scene: Scene) -> None:
    scene.refuses = ConnectionFailedError("connection refused")
    with pytest.raises(ServerLostError, match="is lost: connection refused"):
        measured(scene, [Point((LARGE,), 1)])
    assert (scene.starts, scene.stops, scene.sent) == (1, 1, [])


def test_model_that_is_missing_ends_the_server(scene: Scene) -> None:
    scene.refuses = InferError(ErrorCode.NOT_FOUND, "unknown model 'm'")
    with pytest.raises(InferError, match="unknown model"):
        measured(scene, [Point((LARGE,), 1)])
    assert (scene.starts, scene.stops) == (1, 1)


def test_errors_of_a_living_server_are_no_death(scene: Scene) -> None:
    scene.rows = [replace(EMPTY, errors=[Errors("UNAVAILABLE", 3, "queue is full")])]
    (found,) = measured(scene, [Point((LARGE,), 1)])
    assert found.error == "model 'm': queue is full"
    assert scene.starts == 1


def test_configurations_of_a_foreign_server_are_restored(scene: Scene) -> None:
    measured(scene, [Point((LARGE,), 1)], is_own=False)
    assert scene.applied == [(LARGE,), ()]
