"""A store that cannot be reached at the start: the cache serves, and the server goes on trying. And bad keys."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from naiad.core.errors import InferError
from naiad.repository.open_repository import CacheSettings, open_repository
from support.long_run import mostly_long
from support.model_repository import scale_source, write_identity, write_scale
from support.object_stores import ENVIRONMENT, S3Server
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
BUCKET = "away"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
EXPLICIT = ("--model-control-mode=explicit", "--load-model=scale")
PATTERN = ("--model-control-mode=explicit", "--load-model=*")


@pytest.fixture(scope="module")
def shared_s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(shared_s3: S3Server, tmp_path: Path) -> Iterator[S3Server]:
    root = tmp_path / "upload"
    write_identity(root)
    write_scale(root, 2)
    shared_s3.upload(BUCKET, root)
    yield shared_s3
    shared_s3.door = lambda method, path: None
    shared_s3.delete(BUCKET, "")


@pytest.fixture
def serve(s3: S3Server, start_server, tmp_path: Path) -> Callable[..., ServerProcess]:
    def start(*flags: str) -> ServerProcess:
        return start_server(
            s3.url(BUCKET),
            f"--cloud-cache-directory={tmp_path / 'cache'}",
            *flags,
            environment={**ENVIRONMENT, "AWS_EC2_METADATA_DISABLED": "true"},
        )

    return start


def scale(server: ServerProcess) -> float:
    with httpclient.InferenceServerClient(server.http_url) as client:
        given = httpclient.InferInput("IN", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
        return float(client.infer("scale", [given]).as_numpy("OUT")[0])


def is_up(server: ServerProcess) -> bool:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    (row,) = [line for line in text.splitlines() if line.startswith("naiad_model_repository_away{")]
    return row.endswith(" 0")


def break_store(s3: S3Server) -> None:
    s3.door = lambda method, path: (503, "<Error><Code>SlowDown</Code></Error>") if method == "GET" else None


def mend_store(s3: S3Server) -> None:
    s3.door = lambda method, path: None


@pytest.mark.parametrize("mode", mostly_long([(), POLL, EXPLICIT], POLL.__eq__), ids=["none", "poll", "explicit"])
def test_warm_cache_serves_while_the_store_is_away(s3: S3Server, serve, mode: tuple[str, ...]) -> None:
    first = serve(*mode)
    first.wait_ready()
    assert scale(first) == 2
    assert is_up(first)
    first.stop()
    break_store(s3)
    second = serve(*mode)
    second.wait_ready()
    assert scale(second) == 2
    second.wait_log("IS NOT REACHED: its . models are served as they were when it could be read last")
    assert not is_up(second)
    s3.put(BUCKET, "models/scale/1/model.py", scale_source(5).encode())
    mend_store(s3)
    wait_until(lambda: scale(second) == 5, "the change was never loaded", timeout_s=60)
    assert is_up(second)
    assert second.get("/v2/health/ready").status == 200


def test_store_that_hangs_delays_a_start_by_seconds(s3: S3Server, serve) -> None:
    first = serve()
    first.wait_ready()
    first.stop()
    may_answer = threading.Event()

    def hang(method: str, path: str) -> None:
        may_answer.wait(300)

    s3.door = hang
    try:
        second = serve()
        # Without the short limit a request alone may take 30 s, and there are five attempts.
        second.wait_log("IS NOT REACHED: its . models are served as they were", timeout_s=45)
        second.wait_ready()
        assert scale(second) == 2
        assert not is_up(second)
    finally:
        mend_store(s3)
        may_answer.set()
    wait_until(lambda: is_up(second), "the store was never reached", timeout_s=90)


@pytest.mark.parametrize(
    "mode",
    mostly_long([(), POLL, EXPLICIT, PATTERN], ((), PATTERN).__contains__),
    ids=["none", "poll", "explicit", "pattern"],
)
def test_cold_cache_ends_the_start_or_waits(s3: S3Server, serve, mode: tuple[str, ...]) -> None:
    break_store(s3)
    if not mode:
        server = serve(*mode)
        assert server.wait_exit() == 1
        assert "503" in server.log_text()
    server = serve(*mode, "--exit-on-error=false")
    server.wait_started()
    assert server.get("/v2/health/ready").status != 200
    assert server.get("/v2/health/live").status == 200
    mend_store(s3)
    server.wait_ready(timeout_s=60)
    wait_until(lambda: server.get("/v2/models/scale/ready").status == 200, "it was never loaded")
    assert scale(server) == 2


def test_denied_store_ends_the_start_despite_the_cache(s3: S3Server, serve) -> None:
    first = serve()
    first.wait_ready()
    first.stop()
    s3.door = lambda method, path: (403, "<Error><Code>AccessDenied</Code></Error>")
    second = serve()
    assert second.wait_exit() == 1
    assert "access is denied" in second.log_text()


# --- keys that are no paths -----------------------------------------------------------------------------------------


def _models(s3: S3Server, tmp_path: Path) -> dict[str, str]:
    """Return the models of the bucket with the reasons why they cannot be opened."""
    store = open_repository(s3.url(BUCKET), cache=CacheSettings(str(tmp_path / "cache")))
    found: dict[str, str] = {}
    for name, listing in store.look().items():
        try:
            listing.open().release()
            found[name] = ""
        except InferError as error:
            found[name] = error.message
    assert store.list_models() == sorted(found)
    return found


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ENVIRONMENT, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    "key",
    [
        "models/bad/../x",
        "models/bad/../../x",
        "models/bad//x",
        "models/bad/./x",
        "models/bad/1/a\tb",
        "models/bad/1/" + "x" * 300,
        "models/bad/1",
        "models/bad/config.pbtxt/x",
    ],
)
def test_one_bad_key_costs_one_model(s3: S3Server, tmp_path: Path, key: str) -> None:
    s3.put(BUCKET, "models/bad/1/model.py", b"x")
    s3.put(BUCKET, "models/bad/config.pbtxt", b"x")
    s3.put(BUCKET, "models/bad-twin/1/model.py", b"x")
    s3.put(BUCKET, key, b"x")
    found = _models(s3, tmp_path)
    assert found.pop("bad")
    assert found == {"bad-twin": "", "identity": "", "scale": ""}


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    "key", ["models/../x", "models//x", "models/./x", "models/\x02/x", "models/..", "models/a\x02/x"]
)
def test_bad_name_of_a_model_costs_no_other(s3: S3Server, tmp_path: Path, key: str) -> None:
    s3.put(BUCKET, key, b"x")
    assert {"identity": "", "scale": ""}.items() <= _models(s3, tmp_path).items()


def test_server_serves_beside_a_bad_key(s3: S3Server, serve) -> None:
    s3.put(BUCKET, "models/identity/../../x", b"x")
    s3.put(BUCKET, "models/../x", b"x")
    server = serve("--exit-on-error=false")
    server.wait_started()
    assert scale(server) == 2
    reasons = {row["name"]: row.get("reason", "") for row in server.post("/v2/repository/index").json}
    assert "cannot be the path of a file" in reasons["identity"]
