"""The dashboard's page in a real browser: its views with a real server under load, and with a scripted one."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import PROGRAM, needs_browser
from support.dashboard_scene import traffic, write_scene
from support.server_process import ServerProcess

DASHBOARD = Path(__file__).resolve().parents[2] / "dashboard"
MODULES = DASHBOARD / "node_modules"
NODE = shutil.which("node")
LIMIT_S = 900
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
needs_modules = pytest.mark.skipif(not MODULES.is_dir(), reason="run `npm ci` in dashboard/ first")
pytestmark = [needs_node, needs_modules, pytest.mark.timeout(LIMIT_S + 60)]


def run_tests(name: str, **variables: str) -> None:
    """Run a test file of the dashboard with Node.js; its report is the message of a failure."""
    assert NODE is not None
    command = [NODE, "--test", "--test-reporter=spec", f"--test-timeout={LIMIT_S * 1000}", f"tests/{name}"]
    environment = {**os.environ, **variables, **({"CHROMIUM": PROGRAM} if PROGRAM else {})}
    found = subprocess.run(
        command, cwd=DASHBOARD, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


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
    run_tests("state.test.mjs")


def test_connection_of_page() -> None:
    run_tests("connection.test.mjs")


@needs_browser
def test_page_with_bad_input() -> None:
    run_tests("bad_input.test.mjs")


@needs_browser
def test_views_under_load(server: ServerProcess) -> None:
    with traffic(server.http_url):
        run_tests("views.test.mjs", NAIAD_URL=f"http://{server.http_url}/")


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
