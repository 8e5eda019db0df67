"""docs/endpoints.md lists exactly the served endpoints."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2

from naiad.core.request_limits import unlimited
from naiad.frontend.rest.routes import RestApi
from naiad.memory.regions import SharedMemory

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?:`([^`]+)` )?\| (?:`([^`]+)` )?\| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = [match.groups(default="") for match in ROW.finditer((ROOT / "docs/endpoints.md").read_text())]
SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def readable(pattern):
    """Return a route's pattern in the form of the page."""
    path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern).replace(r"\.", ".")
    return re.sub(r"\(\?:([^()]*)\)\?", r"[\1]", path)


def test_the_page_lists_every_route_and_no_other():
    served = {
        f"{method} {readable(pattern)}"
        for pattern, method in RestApi(engine=SimpleNamespace(shared_memory=SharedMemory(), request_limits=unlimited))
        .router()
        .endpoints()
    }
    listed = {endpoint for endpoint, *_ in ROWS if " /" in endpoint and endpoint != "GET /metrics"}
    assert served == listed, "keep docs/endpoints.md in step with the routes"


def test_the_page_lists_every_rpc_and_no_other():
    listed = {rpc for _, rpc, *_ in ROWS if rpc}
    assert listed == {method.name for method in SERVICE.methods} | {"grpc.health.v1.Health/Check"}


@pytest.mark.parametrize("described", [row[3] for row in ROWS], ids=[row[0] or row[1] for row in ROWS])
def test_described_pages_exist(described):
    pages = re.findall(r"\]\(([\w-]+\.md)", described)
    assert pages
    for page in pages:
        assert (ROOT / "docs" / page).is_file()
