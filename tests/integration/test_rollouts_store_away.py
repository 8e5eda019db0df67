"""Rollouts of a bucket that cannot be written for a while: decisions apply at once, other servers follow later."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.model_repository import write_scale
from support.object_stores import ENVIRONMENT, S3Server, error_body
from support.server_process import ServerProcess
from support.waiting import wait_until

BUCKET = "verdicts"
RECORD = "models/.scale.rollout.json"
REQUEST = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server()
    for version in (1, 2):
        write_scale(tmp_path / "models", version, version=version)
    server.upload(BUCKET, tmp_path / "models")
    yield server
    server.stop()


def stored(s3: S3Server) -> dict[str, Any]:
    found = s3.client.list_objects_v2(Bucket=BUCKET, Prefix=RECORD).get("Contents")
    if not found:
        return {}
    document = json.loads(s3.client.get_object(Bucket=BUCKET, Key=RECORD)["Body"].read())
    assert isinstance(document, dict)
    return document


def test_decisions_reach_the_bucket_later(
    s3: S3Server, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server(
        s3.url(BUCKET),
        "--model-control-mode=explicit",
        "--load-model=*",
        environment={**ENVIRONMENT, "NAIAD_CACHE": str(tmp_path / "cache"), "AWS_EC2_METADATA_DISABLED": "true"},
    )
    server.wait_ready()

    def change(**fields: Any) -> Any:
        answer = server.request("POST", "/v2/models/scale/rollout", json.dumps(fields).encode())
        assert answer.status == 200, answer.json
        return answer.json

    def is_shared() -> bool:
        return not server.get("/v2/models/scale/rollout").json["unshared"]

    denied = (403, error_body("AccessDenied", "no PutObject"))
    s3.door = lambda method, path: denied if method == "PUT" and path.endswith(".json") else None
    document = change(stable=1, canary=2, weight=100)
    assert document["unstored"] == ""
    assert "allow it s3:PutObject" in document["unshared"]
    assert document["record"].startswith(str(tmp_path / "cache" / "rollouts"))
    assert not stored(s3)
    s3.door = lambda method, path: None
    wait_until(is_shared, "it was never stored in the bucket", timeout_s=90)
    assert stored(s3)["rollout"]["canary"] == 2

    s3.door = lambda method, path: (503, error_body("SlowDown", "Reduce your request rate."))
    document = change(action="rollback")
    assert "SlowDown" in document["unshared"]
    assert server.post("/v2/models/scale/infer", REQUEST).json["model_version"] == "1"
    s3.door = lambda method, path: None
    wait_until(is_shared, "the verdict was never stored in the bucket", timeout_s=90)
    assert [each["version"] for each in stored(s3)["refusals"]] == [2]
    assert not list((tmp_path / "cache" / "rollouts").iterdir())
