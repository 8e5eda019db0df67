"""The playground in a real browser, against a real server: what it sends, shows and copies as code.

What is checked is in `dashboard/tests/playground/browser.test.mjs`, because the code of the page runs there, too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import needs_browser
from support.long_run import is_long
from support.page_tests import LIMIT_S, needs_modules, needs_node, run_page_tests
from support.playground_models import classifier, write_playground_models
from support.server_process import ServerProcess, serving

RIGHT = "x-key=secret"

pytestmark = [needs_node, needs_modules, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("playground")
    write_playground_models(home / "models")
    with serving(home / "log", f"--model-repository={home / 'models'}") as running:
        yield running


def run_node(file: str, work: Path, **environment: str) -> None:
    run_page_tests(f"playground/{file}", WORK=str(work), **environment)


@pytest.mark.parametrize("name", ["tensors", "forms", "code"])
def test_logic_of_playground(name: str, tmp_path: Path) -> None:
    run_node(f"{name}.test.mjs", tmp_path)


@needs_browser
def test_models_are_tried_in_a_browser(served: ServerProcess, tmp_path: Path) -> None:
    run_node("browser.test.mjs", tmp_path, NAIAD_URL=f"http://{served.http_url}/")


@needs_browser
def test_playground_is_accessible(served: ServerProcess, tmp_path: Path) -> None:
    every = {"EVERY_MODEL": "yes"} if is_long() else {}
    run_node("accessibility.test.mjs", tmp_path, NAIAD_URL=f"http://{served.http_url}/", **every)


@needs_browser
def test_a_bare_file_needs_three_clicks(tmp_path: Path) -> None:
    (tmp_path / "photo.onnx").write_bytes(classifier())
    with serving(tmp_path / "log", str(tmp_path / "photo.onnx")) as running:
        run_node("first_minute.test.mjs", tmp_path, NAIAD_URL=f"http://{running.http_url}/")


@needs_browser
def test_a_client_without_the_right_sees_why(tmp_path: Path) -> None:
    (tmp_path / "photo.onnx").write_bytes(classifier())
    restricted = f"--http-restricted-api=inference:{RIGHT}"
    with serving(tmp_path / "log", str(tmp_path / "photo.onnx"), restricted) as running:
        run_node("no_right.test.mjs", tmp_path, NAIAD_URL=f"http://{running.http_url}/")
