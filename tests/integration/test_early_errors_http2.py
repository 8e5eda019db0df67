"""Errors of REST over HTTP/2 reach curl, which loses a response that comes with a reset before its body is sent."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from naiad.options.network.access_options import format_line
from support.model_repository import write_identity
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
TRIES = 20
SMALL, MIDDLE, LARGE, HUGE = 300, 300_000, 3_000_000, 20_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("early")
    write_identity(root / "models")
    (root / "keys").write_text(format_line("me", ["all"], "my-key") + "\nprobes health -\n")
    for size in (SMALL, MIDDLE, LARGE, HUGE):
        (root / str(size)).write_bytes(b"0" * size)
    flags = ("--http-max-body-size=2000000", f"--api-key-file={root / 'keys'}")
    with serving(root / "log", f"--model-repository={root / 'models'}", *flags) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "size", "key", "status"),
    [
        ("/v2/models/none/infer", SMALL, "my-key", "404"),
        ("/v2/models/none/infer", MIDDLE, "my-key", "404"),
        ("/v3/none", SMALL, "my-key", "404"),
        ("/v3/none", HUGE, "my-key", "404"),
        ("/v2/models/identity/infer", SMALL, "wrong", "401"),
        ("/v2/models/identity/infer", MIDDLE, "wrong", "401"),
        ("/v2/models/identity/infer", LARGE, "my-key", "413"),
        ("/v2/models/identity/config", MIDDLE, "my-key", "405"),
    ],
)
def test_curl_reads_every_error_over_http2(
    server: ServerProcess, path: str, size: int, key: str, status: str
) -> None:
    body = server.log.parent / str(size)
    command = ["curl", "-s", "-m", "30", "--http2-prior-knowledge", f"http://{server.http_url}{path}"]
    command += ["-H", f"Authorization: Bearer {key}", "-H", "Expect:", "--data-binary", f"@{body}"]
    command += ["-w", "\n%{http_code}"]
    seen = set()
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        text, _, code = done.stdout.rpartition("\n")
        seen.add((done.returncode, code, "error" in text))
    assert seen == {(0, status, True)}
