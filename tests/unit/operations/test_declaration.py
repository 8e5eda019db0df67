"""An operation is declared in one place: router, gRPC service, access rules and OpenAPI read the declaration."""

import asyncio
import json
from typing import Any

import pytest

from naiad.core.errors import not_found
from naiad.engine.engine import Engine
from naiad.frontend.access.access import Restrictions
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.rest.routes import RestApi
from naiad.operations.operation import (
    AnyOperation,
    GrpcForm,
    Operation,
    PathTemplate,
    RestForm,
    by_grpc_path,
    decode_version,
    json_reply,
)
from naiad.operations.requests import ModelVersion
from naiad.operations.table import OPERATIONS, operations_of
from naiad.options.network.access_options import RequiredHeader
from naiad.telemetry.metrics.metrics import Registry
from support.http_context import KeptResponse, response_of

PATH = "/v2/models/m/labels"
KNOWN = {"m": ["cat", "dog"]}


def labels(engine: object, request: ModelVersion) -> list[str]:
    if request.model not in KNOWN:
        raise not_found(f"Request for unknown model: '{request.model}' is not found")
    return KNOWN[request.model]


LABELS: AnyOperation = Operation(
    name="model_labels",
    category="metadata",
    kind="query",
    group="Models",
    summary="Labels of a model",
    rest=[
        RestForm(
            "GET",
            "/v2/models/{model}[/versions/{version}]/labels",
            decode_version,
            json_reply(lambda found: json.dumps(found).encode()),
        )
    ],
    grpc=GrpcForm(
        "ModelLabels", lambda message: ModelVersion(bytes(message).decode()), lambda found: ",".join(found).encode()
    ),
    call=labels,
)
DECLARED = (*OPERATIONS, LABELS)


def get(path: str, restricted: str = "") -> KeptResponse:
    async def run() -> KeptResponse:
        router = RestApi(Engine(server_id="x", metrics=Registry()), operations=DECLARED).router()
        if restricted:
            router.restrict(Restrictions({restricted: RequiredHeader("key", "secret")}, "API"))
        return await response_of(router, "GET", path)

    return asyncio.run(run())


def test_declared_operation_has_a_route() -> None:
    assert get(PATH)[:2] == (200, b'["cat", "dog"]')
    assert get("/v2/models/m/versions/1/labels").status == 200
    assert get("/v2/models/other/labels").status == 404


def test_declared_operation_has_an_access_rule() -> None:
    assert get(PATH, restricted="metadata").status == 403
    assert get(PATH, restricted="statistics").status == 200


def test_declared_operation_is_documented() -> None:
    document = json.loads(get("/openapi.json").body)
    for path in ("/v2/models/{model}/labels", "/v2/models/{model}/versions/{version}/labels"):
        operation = document["paths"][path]["get"]
        assert (operation["tags"], operation["summary"]) == (["Models"], "Labels of a model")


def test_declared_operation_has_a_grpc_method() -> None:
    class LabelsCall:
        path = "/inference.GRPCInferenceService/ModelLabels"
        client = None
        responses: tuple[Any, ...] = ()

        def respond(self, parts: object) -> None:
            self.responses = (*self.responses, parts)

    service = InferenceGrpcService(Engine(server_id="x", metrics=Registry()), operations=DECLARED)
    call = LabelsCall()
    service.unary(call, b"m")  # type: ignore[arg-type]  # the part of a call that it uses
    assert call.responses == ([b"cat,dog"],)
    assert service.rejection(call.path) is None


def test_incomplete_declaration_is_an_error() -> None:
    incomplete: AnyOperation = Operation(
        name="x", category="metadata", kind="query", group="Models", summary="x", rest=[RestForm("GET", "/v2/x")]
    )
    with pytest.raises(ValueError, match="x: GET /v2/x has no action"):
        RestApi(Engine(server_id="x", metrics=Registry()), operations=[incomplete]).router()


def test_command_without_an_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no order"):
        Operation(name="x", category="metadata", kind="command", group="", summary="", call=labels)


def test_operations_of_a_path_share_a_category() -> None:
    change: AnyOperation = Operation(
        name="change",
        category="logging",
        kind="query",
        group="",
        summary="",
        rest=[RestForm("POST", "/v2", decode_version, str)],  # type: ignore[list-item]  # not used
        call=labels,
    )
    with pytest.raises(ValueError, match="/v2 has the categories metadata and logging"):
        RestApi(Engine(server_id="x", metrics=Registry()), operations=[*OPERATIONS, change]).router()


def test_grpc_method_belongs_to_one_operation() -> None:
    other: AnyOperation = Operation(
        name="other", category="metadata", kind="query", group="", summary="", grpc=GrpcForm("ModelLabels")
    )
    with pytest.raises(ValueError, match="model_labels and other are both"):
        by_grpc_path([LABELS, other])


@pytest.mark.parametrize("text", ["v2", "/v2/{model", "/v2/}x", ""])
def test_wrong_template_of_a_path(text: str) -> None:
    with pytest.raises(ValueError, match="is not the template of a path"):
        PathTemplate(text)


def test_path_is_filled_without_its_optional_part() -> None:
    assert PathTemplate("/v2/models/{model}[/versions/{version}]/infer").fill(model="a{b}") == "/v2/models/a{b}/infer"


def test_path_has_operations_by_method() -> None:
    assert {method: each.name for method, each in operations_of("/v2/models/m/rollout").items()} == {
        "GET": "rollout",
        "POST": "change_rollout",
        "DELETE": "end_rollout",
    }
    assert operations_of("/v2/models/stats")["GET"].name == "statistics"
    assert operations_of("/nowhere") == {}
