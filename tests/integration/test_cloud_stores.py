"""Repositories in S3, as moto's server has it: loading, the cache, control modes, and all that can go wrong."""

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import numpy as np
import pytest
import tritonclient.http as httpclient
from moto import settings
from tritonclient.utils import InferenceServerException

from naiad.cli.check import check
from naiad.repository.cloud.objects.credentials import find_credential
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError
from naiad.repository.cloud.url import parse_cloud_url
from support import onnx_models
from support.model_repository import add_sub_config, scale_source, write_identity, write_model, write_scale
from support.object_stores import ENVIRONMENT, S3Server, error_body
from support.server_process import ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

BUCKET = "bucket"


@pytest.fixture(scope="module")
def shared_s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(shared_s3: S3Server, tmp_path: Path) -> Iterator[S3Server]:
    """S3 with models `add_sub` (ONNX), `identity` and `scale` (Python) below `models`."""
    root = tmp_path / "upload"
    write_model(root, "add_sub", add_sub_config("onnxruntime"), {"1/model.onnx": onnx_models.add_sub()})
    write_identity(root)
    write_scale(root, 2)
    shared_s3.upload(BUCKET, root)
    shared_s3.forget()
    yield shared_s3
    shared_s3.door = lambda method, path: None
    shared_s3.delete(BUCKET, "")


@pytest.fixture
def serve(s3: S3Server, start_server, tmp_path: Path) -> Callable[..., ServerProcess]:
    """A function that starts a server over the bucket and other repositories, with a cache of this test."""

    def start(*flags: str, url: str = "", environment: dict[str, str] | None = None) -> ServerProcess:
        return start_server(
            url or s3.url(BUCKET),
            f"--cloud-cache-directory={tmp_path / 'cache'}",
            *flags,
            environment={**ENVIRONMENT, "AWS_EC2_METADATA_DISABLED": "true", **(environment or {})},
        )

    return start


def scale(server: ServerProcess, name: str = "scale") -> float:
    with httpclient.InferenceServerClient(server.http_url) as client:
        given = httpclient.InferInput("IN", [1], "FP32")
        given.set_data_from_numpy(np.ones(1, np.float32))
        return float(client.infer(name, [given]).as_numpy("OUT")[0])


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def load(server: ServerProcess, name: str) -> None:
    with httpclient.InferenceServerClient(server.http_url) as client:
        client.load_model(name)


def is_ready(server: ServerProcess, name: str) -> bool:
    return server.get(f"/v2/models/{name}/ready").status == 200


def contents(cache: Path) -> list[Path]:
    return sorted((cache / "objects").glob("*/*"))


# --- the cache ------------------------------------------------------------------------------------------------------


def test_models_are_served_and_a_restart_downloads_nothing(s3: S3Server, serve) -> None:
    first = serve()
    first.wait_ready()
    assert scale(first) == 2
    assert is_ready(first, "add_sub")
    assert is_ready(first, "identity"), "its version directory is an object without content"
    assert len(s3.gets()) == 5, "every file is fetched once"
    first.stop()

    s3.forget()
    second = serve()
    second.wait_ready()
    assert scale(second) == 2
    assert s3.gets() == []
    assert len(s3.listings()) == 1


def test_a_damaged_copy_is_detected_and_downloaded_again(s3: S3Server, serve, tmp_path: Path) -> None:
    server = serve()
    server.wait_ready()
    server.stop()
    damaged = next(path for path in contents(tmp_path / "cache") if b"class TritonPythonModel" in path.read_bytes())
    content = damaged.read_bytes()
    damaged.chmod(0o644)
    damaged.write_bytes(content.replace(b"* 2", b"* 7"))
    s3.forget()
    server = serve()
    server.wait_ready()
    assert scale(server) == 2
    assert [each.partition("?")[0] for each in s3.gets()] == [f"GET /{BUCKET}/models/scale/1/model.py"]
    server.wait_log("is damaged; it is downloaded again")


@pytest.mark.long
def test_what_a_crash_leaves_does_not_harm(s3: S3Server, serve, tmp_path: Path) -> None:
    server = serve()
    server.wait_ready()
    server.process.kill()
    server.wait_exit()
    cache = tmp_path / "cache"
    (cache / "incoming" / "left").mkdir()
    (cache / "incoming" / "left" / "0").write_bytes(b"half")
    for manifest in cache.glob("models/*/manifest.json"):
        manifest.write_bytes(manifest.read_bytes()[:10])
    s3.forget()
    server = serve()
    server.wait_ready()
    assert scale(server) == 2
    assert s3.gets() == [], "contents are found by what they are"


@pytest.mark.long
def test_servers_share_a_cache(s3: S3Server, serve) -> None:
    servers = [serve(), serve()]
    for server in servers:
        server.wait_ready()
        assert scale(server) == 2
    assert len(s3.gets()) == 5


def test_full_cache_evicts_only_unserved_models(s3: S3Server, serve, tmp_path: Path) -> None:
    s3.put(BUCKET, "models/scale/1/weights", b"a" * 400_000)
    s3.put(BUCKET, "models/identity/1/weights", b"b" * 400_000)
    server = serve("--model-control-mode=explicit", "--load-model=scale", "--cloud-cache-max-bytes=1000000")
    server.wait_ready()
    load(server, "identity")
    with httpclient.InferenceServerClient(server.http_url) as client:
        client.unload_model("identity")
    s3.put(BUCKET, "models/add_sub/weights", b"c" * 400_000)
    load(server, "add_sub")
    held = {path.stat().st_size for path in contents(tmp_path / "cache")}
    assert sum(path.stat().st_size for path in contents(tmp_path / "cache")) <= 1_000_000
    assert 400_000 in held
    assert scale(server) == 2
    s3.put(BUCKET, "models/identity/1/weights", b"d" * 900_000)
    with pytest.raises(InferenceServerException, match=r"no room for .* --cloud-cache-max-bytes"):
        load(server, "identity")
    assert scale(server) == 2


# --- control modes --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_explicit_load_downloads_only_changed_files(s3: S3Server, serve) -> None:
    server = serve("--model-control-mode=explicit", "--load-model=scale")
    server.wait_ready()
    assert len(s3.gets()) == 2
    assert not is_ready(server, "add_sub")
    load(server, "add_sub")
    assert is_ready(server, "add_sub")

    s3.forget()
    load(server, "scale")
    assert s3.gets() == []
    s3.put(BUCKET, "models/scale/1/model.py", scale_source(5).encode())
    load(server, "scale")
    assert scale(server) == 5
    assert len(s3.gets()) == 1
    names = [row["name"] for row in server.post("/v2/repository/index").json]
    assert names == ["add_sub", "identity", "scale"]


def test_poll_follows_bucket_and_downloads_only_changes(s3: S3Server, serve, tmp_path: Path) -> None:
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0.6")
    server.wait_ready()
    s3.forget()
    until(lambda: len(s3.listings()) >= 3, "it looks again and again")
    assert s3.gets() == []
    assert all("prefix=models" in each and "delimiter" not in each for each in s3.listings()), "one listing for all"

    s3.put(BUCKET, "models/scale/1/model.py", scale_source(3).encode())
    until(lambda: scale(server) == 3, "the change is served")
    assert len(s3.gets()) == 1
    write_scale(tmp_path / "new", 4, name="more")
    s3.put(BUCKET, "models/more/.uploading", b"")
    s3.upload(BUCKET, tmp_path / "new")
    time.sleep(3)
    assert not is_ready(server, "more"), "a mark keeps it from being loaded"
    s3.delete(BUCKET, "models/more/.uploading")
    until(lambda: is_ready(server, "more"), "the new model is served")
    assert scale(server, "more") == 4
    s3.delete(BUCKET, "models/more/")
    until(lambda: not is_ready(server, "more"), "what is gone is unloaded")


def test_a_bucket_that_is_away_disturbs_nothing(s3: S3Server, serve, tmp_path: Path) -> None:
    local = tmp_path / "local"
    write_scale(local, 11, name="nearby")
    server = serve(
        f"--model-repository={local}",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        "--repository-settle-secs=0.6",
    )
    server.wait_ready()
    assert (scale(server), scale(server, "nearby")) == (2, 11)
    refusal = 503, error_body("SlowDown", "Please reduce your request rate.")
    s3.door = lambda method, path: refusal if method == "GET" else None
    server.wait_log(r"cannot be read, what is loaded stays: listing s3://.* failed 5 times .*503 SlowDown")
    assert scale(server) == 2
    write_scale(local, 12, name="nearby")
    until(lambda: scale(server, "nearby") == 12, "the other repository is still followed")
    s3.put(BUCKET, "models/scale/1/model.py", scale_source(6).encode())
    s3.door = lambda method, path: None
    server.wait_log("the model repositories can be read again")
    until(lambda: scale(server) == 6, "the bucket is followed again")


def test_unresponsive_bucket_delays_only_the_index(s3: S3Server, serve) -> None:
    server = serve("--model-control-mode=explicit", "--load-model=scale")
    server.wait_ready()
    asked, may_answer = threading.Semaphore(0), threading.Event()

    def hold(method: str, path: str) -> None:
        asked.release()
        may_answer.wait(120)

    with ThreadPoolExecutor(4) as pool:
        s3.door = hold
        try:
            found = [pool.submit(server.post, "/v2/repository/index") for _ in range(4)]
            assert asked.acquire(timeout=60)
            assert asked.acquire(timeout=60)
            with httpclient.InferenceServerClient(server.http_url) as client:
                given = httpclient.InferInput("IN", [1], "FP32")
                given.set_data_from_numpy(np.ones(1, np.float32))
                # Decompressed aside: the JSON before the tensor is long.
                answer = client.infer(
                    "scale", [given], request_compression_algorithm="gzip", parameters={"long": "x" * 200_000}
                )
            assert answer.as_numpy("OUT")[0] == 2
            assert not any(each.done() for each in found)
        finally:
            may_answer.set()
        assert all(each.result(60).status == 200 for each in found)


def test_processes_share_what_one_of_them_downloads(s3: S3Server, serve) -> None:
    server = serve("--processes=2")
    server.wait_ready()
    assert scale(server) == 2
    assert len(s3.gets()) == 5


def test_check_downloads_configurations_only(s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = s3.url(BUCKET)
    assert check.run([url]) == 0
    assert "0 errors, 0 warnings in 3 models" in capsys.readouterr().out
    assert len(s3.gets()) == 3
    assert all("config.pbtxt" in each for each in s3.gets())
    s3.put(BUCKET, "models/scale/config.pbtxt", b'backend: "python"\nmax_batch_sise: 4\n')
    assert check.run([url]) == 1
    assert f"{url}/scale/config.pbtxt:2:1: unknown field 'max_batch_sise'" in capsys.readouterr().out
    assert check.run([f"{url}/add_sub"]) == 0
    assert "add_sub: ok (onnxruntime, version 1)" in capsys.readouterr().out
    assert check.run([s3.url("other")]) == 1
    assert "it is not there (HTTP 404 NoSuchBucket" in capsys.readouterr().err


# --- credentials ----------------------------------------------------------------------------------------------------


@pytest.fixture
def user(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user with access to the bucket, of an S3 that checks signatures; its key as the credential file has it."""
    iam = boto3.client(
        "iam", endpoint_url=s3.endpoint, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    name = f"reader-{uuid.uuid4().hex[:8]}"
    iam.create_user(UserName=name)
    rights = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": ["*"]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rights]})
    iam.put_user_policy(UserName=name, PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    return {"key_id": key["AccessKeyId"], "secret_key": key["SecretAccessKey"], "region": "us-east-1"}


def test_the_key_of_the_environment(s3: S3Server, serve, user) -> None:
    right = {"AWS_ACCESS_KEY_ID": user["key_id"], "AWS_SECRET_ACCESS_KEY": user["secret_key"]}
    serve(environment=right).wait_ready()
    text = exit_text(serve(environment={**right, "AWS_SECRET_ACCESS_KEY": "wrong"}))
    assert "HTTP 403 SignatureDoesNotMatch" in text
    assert "wrong" not in text
    assert "HTTP 403 InvalidAccessKeyId" in exit_text(serve())


@pytest.mark.long
def test_the_credential_file(s3: S3Server, serve, user, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    other = {"key_id": "AKIAOTHER", "secret_key": "x", "region": "us-east-1"}
    path.write_text(json.dumps({"s3": {"": other, f"s3://{s3.endpoint}": user}}))
    # A token of the environment has nothing to do with the key of the file.
    serve(environment={"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AWS_SESSION_TOKEN": "stray"}).wait_ready()
    path.write_text(json.dumps({"s3": {"s3://elsewhere": user}}))
    text = exit_text(serve(environment={"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}))
    assert f"{path} has no credential for '{s3.url(BUCKET)}'" in text


@pytest.mark.long
def test_a_profile(s3: S3Server, serve, user, tmp_path: Path) -> None:
    path = tmp_path / "aws"
    keys = f"aws_access_key_id = {user['key_id']}\naws_secret_access_key = {user['secret_key']}\n"
    path.write_text(f"[team]\n{keys}")
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_CONFIG_FILE": str(path)}
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    serve(environment={**none, **files, "AWS_PROFILE": "team"}).wait_ready()
    text = exit_text(serve(environment={**none, **files, "AWS_PROFILE": "missing"}))
    assert "AWS profile 'missing' gives no credential" in text


def test_a_public_bucket_needs_no_credential(s3: S3Server, start_server, tmp_path: Path) -> None:
    for item in s3.client.list_objects_v2(Bucket=BUCKET)["Contents"]:
        s3.client.put_object_acl(Bucket=BUCKET, Key=item["Key"], ACL="public-read")
    no_credential = {"HOME": str(tmp_path), "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"}
    flags = s3.url(BUCKET), f"--cloud-cache-directory={tmp_path / 'cache'}"
    server = start_server(*flags, environment=no_credential)
    server.wait_ready()
    assert scale(server) == 2
    s3.door = lambda method, path: (403, error_body("AccessDenied", "Access Denied"))
    text = exit_text(start_server(*flags, environment=no_credential))
    assert "no credential was found (none of AWS_ACCESS_KEY_ID, AWS_PROFILE and AWS_WEB_IDENTITY_TOKEN_FILE" in text


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_object_changed_during_download_is_not_mixed(s3: S3Server, serve) -> None:
    server = serve("--model-control-mode=explicit")
    server.wait_started()
    left = ["once"]

    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("scale/1/model.py") and left:
            left.clear()
            s3.put(BUCKET, "models/scale/1/model.py", scale_source(9).encode())

    s3.door = change
    load(server, "scale")
    assert scale(server) == 9
    server.wait_log("has changed while it was downloaded")


@pytest.mark.long
def test_an_object_that_never_rests_is_refused(s3: S3Server, serve) -> None:
    server = serve("--model-control-mode=explicit", "--load-model=identity")
    server.wait_ready()
    counter = iter(range(100, 10_000))

    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("scale/1/model.py"):
            s3.put(BUCKET, "models/scale/1/model.py", scale_source(next(counter)).encode())

    s3.door = change
    with pytest.raises(InferenceServerException, match="has changed 3 times while it was downloaded"):
        load(server, "scale")
    assert is_ready(server, "identity")


def test_passing_failures_are_tried_again(s3: S3Server, serve) -> None:
    failures = {"list": 2, "get": 3}

    def fail(method: str, path: str) -> tuple[int, str] | None:
        kind = "get" if path.endswith("model.py") else "list"
        if method == "GET" and failures[kind]:
            failures[kind] -= 1
            return 503, error_body("InternalError", "We encountered an internal error.")
        return None

    s3.door = fail
    server = serve()
    server.wait_ready()
    assert scale(server) == 2
    assert failures == {"list": 0, "get": 0}
    assert server.log_text().count("trying again in") == 5


def test_failed_download_keeps_served_version_and_resumes(s3: S3Server, serve) -> None:
    server = serve("--model-control-mode=explicit", "--load-model=scale")
    server.wait_ready()
    s3.put(BUCKET, "models/scale/1/model.py", scale_source(8).encode())
    s3.put(BUCKET, "models/scale/1/extra", b"more")

    def deny(method: str, path: str) -> tuple[int, str] | None:
        return (403, error_body("AccessDenied", "Access Denied")) if path.endswith("extra") else None

    s3.door = deny
    with pytest.raises(InferenceServerException, match=r"downloading s3://.*scale/1/extra failed: access is denied"):
        load(server, "scale")
    assert scale(server) == 2
    s3.door = lambda method, path: None
    s3.forget()
    load(server, "scale")
    assert scale(server) == 8
    assert [each.partition("?")[0] for each in s3.gets()] == [f"GET /{BUCKET}/models/scale/1/extra"]


def test_key_without_valid_path_affects_one_model(s3: S3Server, serve) -> None:
    s3.put(BUCKET, "models/scale/" + "x" * 300, b"x")
    server = serve("--exit-on-error=false")
    server.wait_started()
    assert is_ready(server, "identity")
    reasons = {row["name"]: row.get("reason", "") for row in server.post("/v2/repository/index").json}
    assert "cannot be the path of a file" in reasons["scale"]


def test_a_key_that_leaves_its_model_is_refused(s3: S3Server, serve) -> None:
    s3.put(BUCKET, "models/scale/../../escape", b"x")
    text = exit_text(serve())
    assert "models/scale/../../escape" in text
    assert "remove or rename that object" in text


BAD_NAMES = ("../x", "/x", "identity/../../x", "zz\x01b/1/x", "n" * 300 + "/1/x")
"""Keys below the path of a repository that no file system has, before and behind the names of its models."""


def test_bad_names_beside_models_cost_nothing(s3: S3Server, serve) -> None:
    for key in BAD_NAMES:
        s3.put(BUCKET, f"models/{key}", b"x")
    server = serve("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    server.wait_started()
    s3.put(BUCKET, "models/scale/1/model.py", scale_source(4).encode())
    until(lambda: scale(server) == 4, "the poll goes on beside names that are no paths")
    assert is_ready(server, "add_sub")
    server.wait_log(r"the key .models/zz\\+x01b/. cannot be the path of a file")


def test_known_names_before_a_bad_one_stay(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naiad.repository.cloud.objects.objects.names_below", lambda *_, **__: None)  # no boto3
    url = parse_cloud_url(s3.url(BUCKET))
    objects = ObjectStore(url, find_credential(url, ENVIRONMENT), ENVIRONMENT)
    s3.put(BUCKET, "models/zz\x01b/1/x", b"x")
    assert objects.list_top(lambda: ["scale", "removed"])[0] == ["scale"]


def test_check_names_each_bad_key(s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for key in BAD_NAMES:
        s3.put(BUCKET, f"models/{key}", b"x")
    assert check.run([s3.url(BUCKET)]) == 1
    output = capsys.readouterr().out
    for part in ("'models/../'", "'models//'", "identity/../../x", "zz\\x01b", "n" * 100):
        assert part in output
    assert "scale: ok" in output
    assert "add_sub: ok" in output
    assert "identity: ok" not in output


def exit_text(server: ServerProcess) -> str:
    assert server.wait_exit() == 1
    return server.log_text()


def test_denied_bucket_is_reported_with_credential(s3: S3Server, serve) -> None:
    s3.door = lambda method, path: (403, error_body("AccessDenied", "Access Denied"))
    text = exit_text(serve())
    assert f"listing s3://{s3.endpoint}/{BUCKET}/models failed: access is denied (HTTP 403 AccessDenied" in text
    assert "AWS_ACCESS_KEY_ID ...0001 of the environment" in text
    assert "s3:ListBucket" in text


def test_absent_bucket_and_empty_path_are_reported(s3: S3Server, serve) -> None:
    assert "it is not there (HTTP 404 NoSuchBucket" in exit_text(serve(url=s3.url("other")))
    assert f"there is nothing below {s3.url(BUCKET, 'nowhere')}" in exit_text(serve(url=s3.url(BUCKET, "nowhere")))
    assert "is one model; give the repository" in exit_text(serve(url=s3.url(BUCKET, "models/scale")))


def test_absent_endpoint_is_reported(serve) -> None:
    text = exit_text(serve(url="s3://http://127.0.0.1:9/bucket/models"))
    assert "failed 5 times in" in text
    assert "check that http://127.0.0.1:9 can be reached" in text


def test_unusable_urls_and_caches_are_reported(serve, start_server, tmp_path: Path) -> None:
    assert "unknown scheme 'hdfs'" in exit_text(serve(url="hdfs://x/y"))
    blocked = tmp_path / "file"
    blocked.touch()
    server = start_server("s3://bucket/x", f"--cloud-cache-directory={blocked}/cache", environment=ENVIRONMENT)
    text = exit_text(server)
    assert f"{blocked}/cache" in text
    assert "choose another with --cloud-cache-directory" in text


def test_a_model_in_two_repositories_is_not_available(s3: S3Server, serve, tmp_path: Path) -> None:
    local = tmp_path / "local"
    write_scale(local, 11)
    write_scale(local, 12, name="nearby")
    server = serve(f"--model-repository={local}", "--exit-on-error=false", "--strict-readiness=false")
    server.wait_ready()
    assert is_ready(server, "nearby")
    assert is_ready(server, "add_sub")
    assert not is_ready(server, "scale")


def test_a_large_object_comes_in_parts(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    content = random.Random(7).randbytes(10_500)
    s3.put(BUCKET, "models/big/1/weights", content)
    url = parse_cloud_url(s3.url(BUCKET))
    store = ObjectStore(url, find_credential(url, ENVIRONMENT), {}, part_bytes=1000)
    (item,) = store.list_objects("big")
    store.fetch(item, tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == content
    assert len(s3.gets()) == 11
    s3.put(BUCKET, "models/big/1/weights", content[:-1])
    with pytest.raises(ObjectChangedError, match="big/1/weights"):
        store.fetch(item, tmp_path / "other")
