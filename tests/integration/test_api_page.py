"""The API page of a real server: its document is valid, and its examples are accepted."""

from collections.abc import Callable
from pathlib import Path

from openapi_spec_validator import validate

from support.model_repository import write_identity
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def test_examples_of_all_models_are_accepted(server: ServerProcess) -> None:
    document = server.get("/openapi.json").json
    validate(document)
    sent = set()
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        if "example" in content:
            answer = server.post(path, content["example"])
            assert answer.status == 200, (path, answer.body)
            sent.add(path)
    ready = {row["name"] for row in server.get("/v2/models").json["models"] if row["ready"]}
    assert {path.split("/")[3] for path in sent} >= ready - {"identity_fp16", "identity_bf16", "repeat"}


def test_page_and_one_model_over_http(server: ServerProcess) -> None:
    page = server.get("/docs")
    assert page.status == 200
    assert b"openapi.json" in page.body
    document = server.get("/v2/models/add_sub/openapi.json").json
    assert "/v2/models/add_sub/infer" in document["paths"]
    assert server.get("/v2/models/nothing/openapi.json").status == 404


def test_flag_turns_the_page_off(start_server: StartServer, tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", "--http-docs=false", "--processes=2")
    running.wait_ready()
    assert [running.get(path).status for path in ("/docs", "/openapi.json")] == [404, 404]
    assert [row["name"] for row in running.get("/v2/models").json["models"]] == ["identity"]
