"""Requests that concern all processes, with a simulated supervisor."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from naiad.cluster.channel import ClusterChannelError
from naiad.cluster.member.all_processes import AllProcesses, OwnAnswers
from naiad.cluster.member.recorded_response import RecordedGrpcCall, RecordedHttpContext
from naiad.cluster.member.sharing import ClusterRoutes
from naiad.cluster.messages import (
    AskIndex,
    AskStatistics,
    BroadcastRequest,
    ControlOutcome,
    GrpcControlCall,
    HttpControlCall,
    IsModelReady,
    IsReady,
)
from naiad.cluster.packed_statistics import PackedStatistics, pack
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.model import IndexEntry, ModelState
from naiad.core.slices import finish
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.router import JSON_HEADERS, Route, Router
from naiad.protocol import service_pb2 as pb
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.version import VersionStatistics

SERVICE = "/inference.GRPCInferenceService/"
ROWS = [IndexEntry("m", "1", ModelState.READY), IndexEntry("n", "1", ModelState.LOADING)]


class Catalog:
    """A repository without models that is ready."""

    namespaces = None

    @property
    def catalog(self) -> "Catalog":
        return self

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]:
        return []

    def rows_named(self, name: str) -> Sequence[IndexEntry]:
        return []

    def is_ready(self, ill: Collection[str] = ()) -> bool:
        return True

    def load_model(self, name: str, parameters: Mapping[str, object], *, is_owner: bool = True) -> None:
        raise unavailable("not here")


def engine(processes: AllProcesses) -> Engine:
    made = Engine(server_id="x", metrics=Registry(), processes=processes)
    made.attach(Catalog())  # type: ignore[arg-type]
    made.phase.is_starting = False
    return made


def sharing(answer: Callable[[object], object]) -> tuple[ClusterRoutes, list[object]]:
    asked: list[object] = []

    async def ask(query: object) -> object:
        asked.append(query)
        await asyncio.sleep(0)
        found = answer(query)
        if isinstance(found, Exception):
            raise found
        return found

    processes = AllProcesses()
    return ClusterRoutes(engine(processes), processes, ask), asked


def answering(status: int) -> Callable[[HttpContext, Mapping[str, str]], None]:
    return lambda context, arguments: context.respond(status, JSON_HEADERS, (b"local",))


def router(shared: ClusterRoutes) -> Router:
    def ready(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.respond(200 if shared.engine.views.is_ready() else 400, (), ())

    def statistics(context: HttpContext, arguments: Mapping[str, str]) -> None:
        shared.engine.views.statistics()
        context.respond(200, (), ())

    def routes() -> Router:
        return Router(
            [
                Route("/v2", "metadata", {"GET": answering(200)}),
                Route("/v2/health/ready", "health", {"GET": ready}),
                Route("/v2/models/stats", "statistics", {"GET": statistics}),
                Route("/v2/repository/models/m/load", "model-repository", {"POST": answering(200)}),
                Route("/v2/logging", "logging", {"GET": answering(200), "POST": answering(201)}),
            ]
        )

    made = routes()
    shared.share(made, routes())
    return made


def context(shared: ClusterRoutes, routes: Router, method: str, path: str, body: bytes = b"") -> ControlOutcome:
    async def run() -> ControlOutcome:
        made = RecordedHttpContext(HttpControlCall(method, path, ((b"a", b"b"),), body))
        routes.handle(made)
        return await made.outcome

    return asyncio.run(run())


def test_route_returns_merged_results() -> None:
    for says, status in ((True, 200), (False, 400)):
        shared, asked = sharing(lambda query, says=says: says)  # type: ignore[misc]
        assert context(shared, router(shared), "GET", "/v2/health/ready").status == status
        assert asked == [IsReady()]


def test_afterwards_the_engine_knows_only_itself_again() -> None:
    shared, _ = sharing(lambda query: False)
    assert context(shared, router(shared), "GET", "/v2/health/ready").status == 400
    assert shared.engine.views.is_ready()


def test_index_is_collected_on_another_thread() -> None:
    shared, asked = sharing(lambda query: ROWS)

    async def run() -> list[Sequence[IndexEntry]]:
        shared.connect()
        survey = shared.engine.views.survey_repository
        return [await asyncio.to_thread(survey), await asyncio.to_thread(survey, True)]

    assert asyncio.run(run()) == [ROWS, ROWS[:1]]
    assert asked == [AskIndex(), AskIndex()]


def test_index_without_results_is_error() -> None:
    shared, _ = sharing(lambda query: ClusterChannelError("gone"))

    async def run() -> None:
        shared.connect()
        with pytest.raises(InferError, match="could not be queried"):
            await asyncio.to_thread(shared.engine.views.survey_repository)

    asyncio.run(run())


def test_local_requests_are_not_distributed() -> None:
    shared, asked = sharing(lambda query: AssertionError())
    routes = router(shared)
    assert context(shared, routes, "GET", "/v2").body == b"local"
    assert context(shared, routes, "GET", "/v2/logging").body == b"local"
    assert context(shared, routes, "PUT", "/v2/health/ready").status == 405
    assert context(shared, routes, "GET", "/nowhere").status == 404
    assert asked == []


def test_control_calls_reach_all_processes() -> None:
    outcome = ControlOutcome(False, 418, b"all of us", ((b"X", b"y"),))
    shared, asked = sharing(lambda query: outcome)
    found = context(shared, router(shared), "POST", "/v2/repository/models/m/load", b"{}")
    assert found == outcome
    call = HttpControlCall("POST", "/v2/repository/models/m/load", ((b"a", b"b"),), b"{}")
    assert asked == [BroadcastRequest(call, ("model", "m"))]


def test_missing_processes_give_503() -> None:
    shared, _ = sharing(lambda query: ClusterChannelError("gone"))
    routes = router(shared)
    for method, path in (("GET", "/v2/health/ready"), ("POST", "/v2/logging")):
        found = context(shared, routes, method, path)
        assert found.status == 503
        assert b"the processes of this server could not be" in found.body


def test_a_defect_is_answered_too() -> None:
    shared, _ = sharing(lambda query: 5)
    found = context(shared, router(shared), "GET", "/v2/models/stats")
    assert found.status == 500


def test_a_member_carries_calls_out_for_itself_alone() -> None:
    shared, asked = sharing(lambda query: AssertionError())
    router(shared)
    call = HttpControlCall("POST", "/v2/logging", (), b"{}")
    assert asyncio.run(shared.execute(call)) == ControlOutcome(True, 201, b"local", JSON_HEADERS)
    assert asked == []


# --- gRPC -----------------------------------------------------------------------------------------------------------


def grpc(shared: ClusterRoutes, method: str, message: Buffer = b"") -> ControlOutcome:
    service = shared.grpc_service()

    async def run() -> ControlOutcome:
        call = RecordedGrpcCall(GrpcControlCall(SERVICE + method, (), bytes(message)))
        service.unary(call, message)
        return await call.outcome

    return asyncio.run(run())


def test_grpc_questions() -> None:
    shared, asked = sharing(lambda query: False)
    assert pb.ServerReadyResponse.FromString(grpc(shared, "ServerReady").body).ready is False
    assert asked == [IsReady()]
    shared, asked = sharing(lambda query: PackedStatistics(()))
    assert grpc(shared, "ModelStatistics").status == 0
    assert asked == [AskStatistics()]


def test_grpc_control_calls_go_everywhere() -> None:
    message = pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    for outcome in (
        ControlOutcome(True, 0, b"\x08\x01"),
        ControlOutcome(False, 9, text="no", headers=((b"a", b"b"),)),
    ):
        shared, asked = sharing(lambda query, outcome=outcome: outcome)  # type: ignore[misc]
        assert grpc(shared, "RepositoryModelLoad", message) == outcome
        assert asked == [
            BroadcastRequest(GrpcControlCall(SERVICE + "RepositoryModelLoad", (), message), ("model", "m"))
        ]


def test_grpc_failures() -> None:
    shared, _ = sharing(lambda query: ClusterChannelError("gone"))
    assert grpc(shared, "ServerReady").status == 14
    assert grpc(shared, "RepositoryModelUnload").status == 14
    assert grpc(shared, "RepositoryModelLoad", b"\xff").status != 0
    assert grpc(shared, "ModelReady", b"\xff").status != 0
    shared, _ = sharing(lambda query: 5)
    assert "internal error" in grpc(shared, "ModelStatistics").text


def test_grpc_calls_of_a_member_alone() -> None:
    shared, asked = sharing(lambda query: AssertionError())
    assert pb.ServerLiveResponse.FromString(grpc(shared, "ServerLive").body).live is True
    call = GrpcControlCall(
        SERVICE + "RepositoryModelLoad", (), pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    )
    assert not asyncio.run(shared.execute(call)).is_success
    assert asked == []


# --- the engine -----------------------------------------------------------------------------------------------------


def test_local_engine_not_ready_overrides_other_processes() -> None:
    processes = AllProcesses()
    one = engine(processes)
    one.phase.is_draining = True
    with processes.with_answer(IsReady(), True):
        assert not one.views.is_ready()


def test_results_with_different_keys_stay_separate() -> None:
    processes = AllProcesses()
    one = engine(processes)
    with processes.with_answer(IsReady(), False):
        assert one.views.statistics() == []
        assert b"naiad_build_info" in one.views.metrics_text()


def test_knowledge_ends_with_an_error_too() -> None:
    processes = AllProcesses()
    one = engine(processes)
    with pytest.raises(InferError), processes.with_answer(IsReady(), False):
        raise internal("x")
    assert one.views.is_ready()


def test_single_process_does_not_list_unknown_models() -> None:
    own = OwnAnswers(engine(AllProcesses()))
    answers: list[Any] = [own.answer(query) for query in (IsReady(), IsModelReady("m", ""), AskStatistics())]
    assert answers == [True, False, PackedStatistics(())]


def test_statistics_of_others_do_not_make_models_known() -> None:
    processes = AllProcesses()
    one = engine(processes)
    with processes.with_answer(AskStatistics(), finish(pack([VersionStatistics("m", "1")]))):
        assert one.views.statistics() == []
