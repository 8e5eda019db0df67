"""docs/endpoints.md lists exactly the served endpoints."""

import re
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from naiad.operations.table import OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?:`([^`]+)` )?\| (?:`([^`]+)` )?\| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = [match.groups(default="") for match in ROW.finditer((ROOT / "docs/endpoints.md").read_text())]
SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
OTHER_SERVICES = {
    *(f"grpc.health.v1.Health/{name}" for name in ("Check", "Watch")),
    *(f"grpc.reflection.{name}.ServerReflection/ServerReflectionInfo" for name in ("v1", "v1alpha")),
}


def test_the_page_lists_every_route_and_no_other():
    served = {f"{form.method} {form.path.text}" for operation in OPERATIONS for form in operation.rest}
    listed = {endpoint for endpoint, *_ in ROWS if " /" in endpoint and endpoint != "GET /metrics"}
    assert served == listed, "keep docs/endpoints.md in step with the routes"


def test_the_page_lists_every_rpc_and_no_other():
    listed = {rpc for _, rpc, *_ in ROWS if rpc}
    declared = {operation.grpc.path for operation in OPERATIONS if operation.grpc}
    assert {rpc if "/" in rpc else f"inference.GRPCInferenceService/{rpc}" for rpc in listed} == {
        path.removeprefix("/") for path in declared
    }
    assert listed == {method.name for method in SERVICE.methods} | OTHER_SERVICES


@pytest.mark.parametrize("described", [row[3] for row in ROWS], ids=[row[0] or row[1] for row in ROWS])
def test_described_pages_exist(described):
    pages = re.findall(r"\]\(([\w-]+\.md)", described)
    assert pages
    for page in pages:
        assert (ROOT / "docs" / page).is_file()
