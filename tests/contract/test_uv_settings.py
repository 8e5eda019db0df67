"""`.ci/uv_settings.py` gives uv what pip's settings say about indexes, or refuses."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def settings(**variables: str) -> "subprocess.CompletedProcess[str]":
    """Run it with variables of pip, without files of pip's configuration."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    command = [sys.executable, ROOT / ".ci/uv_settings.py"]
    environment = {**others, "PIP_CONFIG_FILE": os.devnull, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_uv_gets_the_indexes_of_pip() -> None:
    found = settings(PIP_INDEX_URL="https://a/simple", PIP_FIND_LINKS="/b /c", PIP_TIMEOUT="9")
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [
        "export UV_DEFAULT_INDEX=https://a/simple",
        "export UV_FIND_LINKS=/b,/c",
    ]


def test_setting_that_uv_lacks_is_named() -> None:
    found = settings(PIP_NO_BINARY="onnx")
    assert found.returncode == 1
    assert "uv has no setting for pip's :env:.no-binary='onnx'" in found.stderr
