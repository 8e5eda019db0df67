"""The dashboard's page in a real browser: its views with a real server under load, and with a scripted one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import needs_browser
from support.dashboard_scene import traffic, write_scene
from support.page_tests import DASHBOARD, LIMIT_S, needs_modules, needs_node, run_page_tests
from support.server_process import ServerProcess

pytestmark = [needs_node, needs_modules, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    repository = tmp_path / "models"
    repository.mkdir()
    write_scene(repository)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
    running = ServerProcess(tmp_path / "log", f"--model-repository={repository}", *flags)
    try:
        running.wait_started()
        yield running
    finally:
        running.stop()


def test_state_of_page() -> None:
    run_page_tests("state.test.mjs")


def test_connection_of_page() -> None:
    run_page_tests("connection.test.mjs")


@needs_browser
def test_page_with_bad_input() -> None:
    run_page_tests("bad_input.test.mjs")


@needs_browser
def test_views_under_load(server: ServerProcess) -> None:
    with traffic(server.http_url):
        run_page_tests("views.test.mjs", NAIAD_URL=f"http://{server.http_url}/")


def test_completed_fields_are_those_that_the_page_marks(server: ServerProcess) -> None:
    explained = server.get("/v2/models/detect/explain").json
    assert "dynamic_batching.preferred_batch_size" in explained["completed_fields"]
    assert "max_batch_size" not in explained["completed_fields"]
    written_nothing = server.get("/v2/models/plain/explain").json["completed_fields"]
    assert {"input", "output", "max_batch_size", "backend"} <= set(written_nothing)


def test_versions_of_packages_are_exact() -> None:
    packages = json.loads((DASHBOARD / "package.json").read_text())
    for name, version in packages["devDependencies"].items():
        assert version[0].isdigit(), f"{name}: {version}"
