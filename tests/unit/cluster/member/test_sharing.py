"""Requests that concern all processes, with a simulated supervisor."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from naiad.cluster.member.all_processes import AllProcesses, OwnAnswers
from naiad.cluster.member.sharing import ClusterOperations
from naiad.cluster.messages import (
    AskIndex,
    AskStatistics,
    BroadcastRequest,
    ControlOutcome,
    IsModelReady,
    IsReady,
    OperationCall,
)
from naiad.cluster.packed_statistics import PackedStatistics, pack
from naiad.cluster.process_channel import ClusterChannelError
from naiad.core.errors import InferError, internal, not_found, unavailable
from naiad.core.model import IndexEntry, ModelState
from naiad.core.slices import finish
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.routes import RestApi
from naiad.operations.requests import CommandOrder, LoadRequest
from naiad.options.options import LogOptions
from naiad.protocol import service_pb2 as pb
from naiad.telemetry.logs import log
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.statistics.version_statistics import VersionStatistics
from naiad.wire.header_fields import Headers
from support.http_context import KeptResponse, response_of

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


class SharedServer:
    """One process of several, with a simulated supervisor."""

    def __init__(self, answer: Callable[[object], object]) -> None:
        """`answer` answers the queries to the supervisor; an exception is raised."""
        self.asked: list[object] = []
        self._answer = answer
        processes = AllProcesses()
        self.engine = engine(processes)
        self.operations = ClusterOperations(self.engine, processes, self._ask)
        self.calls = ControlCalls(self.engine, distribution=self.operations)
        self.operations.control_calls = self.calls

    async def _ask(self, query: object) -> object:
        self.asked.append(query)
        await asyncio.sleep(0)
        found = self._answer(query)
        if isinstance(found, Exception):
            raise found
        return found

    def request(self, method: str, path: str, body: bytes = b"") -> KeptResponse:
        """Return the response to a request over REST."""
        router = RestApi(self.engine, calls=self.calls).router()
        return asyncio.run(response_of(router, method, path, body))

    def call(self, method: str, message: bytes = b"") -> "KeptCall":
        """Return a finished call over gRPC."""
        service = InferenceGrpcService(self.engine, calls=self.calls)

        async def run() -> KeptCall:
            call = KeptCall(SERVICE + method)
            service.unary(call, message)  # type: ignore[arg-type]  # the part of a call that control operations use
            await call.finished.wait()
            return call

        return asyncio.run(run())


class KeptCall:
    """A unary call whose response is kept."""

    metadata = ()
    client: object = None
    deadline_ns = 0

    def __init__(self, path: str) -> None:
        self.path = path
        self.status, self.text, self.body = -1, "", b""
        self.finished = asyncio.Event()

    def respond(self, parts: Sequence[Buffer]) -> None:
        self.body = b"".join(parts)
        self.finish(0)

    def finish(self, status: int, message: str = "", trailers: Headers = ()) -> None:
        self.status, self.text = status, message
        self.finished.set()


def test_route_returns_merged_results() -> None:
    for says, status in ((True, 200), (False, 400)):
        shared = SharedServer(lambda query, says=says: says)  # type: ignore[misc]
        assert shared.request("GET", "/v2/health/ready").status == status
        assert shared.asked == [IsReady()]


def test_afterwards_the_engine_knows_only_itself_again() -> None:
    shared = SharedServer(lambda query: False)
    assert shared.request("GET", "/v2/health/ready").status == 400
    assert shared.engine.views.is_ready()


def test_paths_of_a_model_name_it() -> None:
    shared = SharedServer(lambda query: False)
    for path in ("/v2/models/m/ready", "/v2/models/m/versions/007/ready", "/v2/models/m/versions/stable/ready"):
        assert shared.request("GET", path).body == b'{"error":"Model version not ready"}'
    assert shared.asked == [IsModelReady("m", ""), IsModelReady("m", "7"), IsModelReady("m", "stable")]


def test_index_is_collected_on_another_thread() -> None:
    shared = SharedServer(lambda query: ROWS)

    async def run() -> list[Sequence[IndexEntry]]:
        shared.operations.connect()
        survey = shared.engine.views.survey_repository
        return [await asyncio.to_thread(survey), await asyncio.to_thread(survey, True)]

    assert asyncio.run(run()) == [ROWS, ROWS[:1]]
    assert shared.asked == [AskIndex(), AskIndex()]


def test_index_without_results_is_error() -> None:
    shared = SharedServer(lambda query: ClusterChannelError("gone"))

    async def run() -> None:
        shared.operations.connect()
        with pytest.raises(InferError, match="could not be queried"):
            await asyncio.to_thread(shared.engine.views.survey_repository)

    asyncio.run(run())


def test_local_requests_are_not_distributed() -> None:
    shared = SharedServer(lambda query: AssertionError())
    assert shared.request("GET", "/v2").status == 200
    assert shared.request("GET", "/v2/logging").status == 200
    assert shared.request("PUT", "/v2/health/ready").status == 405
    assert shared.request("GET", "/nowhere").status == 404
    assert shared.asked == []


LOAD_PATH = "/v2/repository/models/m/load"


def test_decoded_command_reaches_all_processes() -> None:
    shared = SharedServer(lambda query: ControlOutcome(True))
    body = b'{"parameters": {"config": "{}", "force": true}}'
    assert shared.request("POST", LOAD_PATH, body) == KeptResponse(200, b"", JSON_HEADERS)
    call = OperationCall("load", LoadRequest("m", {"config": "{}", "force": True}))
    assert shared.asked == [BroadcastRequest(call, CommandOrder(("model", "m")))]


def test_settings_are_changed_in_all_processes() -> None:
    settings = LogOptions(verbose=3)
    shared = SharedServer(lambda query: ControlOutcome(True, settings))
    found = shared.request("POST", "/v2/logging", b'{"log_verbose_level": 3}')
    assert json.loads(found.body)["log_verbose_level"] == 3
    (asked,) = shared.asked
    assert isinstance(asked, BroadcastRequest)
    assert asked.call == OperationCall("change_log_settings", {"verbose": 3})


def test_failure_of_a_command_has_its_code() -> None:
    outcome = ControlOutcome.of(not_found("no such model"))
    shared = SharedServer(lambda query: outcome)
    assert shared.request("POST", LOAD_PATH) == KeptResponse(404, b'{"error":"no such model"}', JSON_HEADERS)


def test_wrong_command_is_refused_where_it_arrives() -> None:
    shared = SharedServer(lambda query: AssertionError())
    assert shared.request("POST", LOAD_PATH, b"[]").status == 400
    assert shared.request("POST", LOAD_PATH, b'{"parameters": {"file:1/model.py": "eA=="}}').status == 403
    assert shared.asked == []


def test_missing_processes_give_503() -> None:
    shared = SharedServer(lambda query: ClusterChannelError("gone"))
    for method, path, body in (("GET", "/v2/health/ready", b""), ("POST", "/v2/logging", b'{"log_info": true}')):
        found = shared.request(method, path, body)
        assert found.status == 503
        assert b"the processes of this server could not be" in found.body


def test_a_defect_is_answered_too() -> None:
    shared = SharedServer(lambda query: 5)
    assert shared.request("GET", "/v2/models/stats").status == 500
    assert shared.request("POST", LOAD_PATH).status == 500


def test_a_member_carries_calls_out_for_itself_alone() -> None:
    shared = SharedServer(lambda query: AssertionError())
    before = log.settings()
    outcome = asyncio.run(shared.operations.execute_here(OperationCall("change_log_settings", {"verbose": 3})))
    log.change(before)
    assert outcome == ControlOutcome(True, replace(before, verbose=3))
    outcome = asyncio.run(shared.operations.execute_here(OperationCall("load", LoadRequest("m", {}))))
    assert outcome == ControlOutcome.of(unavailable("not here"))
    assert shared.asked == []


# --- gRPC -----------------------------------------------------------------------------------------------------------


def test_grpc_queries() -> None:
    shared = SharedServer(lambda query: False)
    assert pb.ServerReadyResponse.FromString(shared.call("ServerReady").body).ready is False
    assert shared.asked == [IsReady()]
    shared = SharedServer(lambda query: PackedStatistics(()))
    assert shared.call("ModelStatistics").status == 0
    assert shared.asked == [AskStatistics()]
    shared = SharedServer(lambda query: False)
    shared.call("ModelReady", pb.ModelReadyRequest(name="m", version="2").SerializeToString())
    assert shared.asked == [IsModelReady("m", "2")]


def test_grpc_commands_go_everywhere() -> None:
    message = pb.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    for outcome, status in ((ControlOutcome(True), 0), (ControlOutcome.of(not_found("no")), 5)):
        shared = SharedServer(lambda query, outcome=outcome: outcome)  # type: ignore[misc]
        found = shared.call("RepositoryModelLoad", message)
        assert (found.status, found.text) == (status, outcome.text)
        call = OperationCall("load", LoadRequest("m", {}))
        assert shared.asked == [BroadcastRequest(call, CommandOrder(("model", "m")))]


def test_grpc_method_without_changes_asks_no_process() -> None:
    shared = SharedServer(lambda query: AssertionError())
    assert shared.call("LogSettings").status == 0
    assert shared.asked == []


def test_grpc_failures() -> None:
    shared = SharedServer(lambda query: ClusterChannelError("gone"))
    assert shared.call("ServerReady").status == 14
    assert shared.call("RepositoryModelUnload").status == 14
    assert shared.call("RepositoryModelLoad", b"\xff").status != 0
    assert shared.call("ModelReady", b"\xff").status != 0
    shared = SharedServer(lambda query: 5)
    assert "internal error" in shared.call("ModelStatistics").text


def test_grpc_calls_of_a_member_alone() -> None:
    shared = SharedServer(lambda query: AssertionError())
    assert pb.ServerLiveResponse.FromString(shared.call("ServerLive").body).live is True
    assert shared.asked == []


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
