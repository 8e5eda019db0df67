"""The manifests of consumers and scheduled predictions in deploy/jobs."""

from pathlib import Path
from typing import Any

import pytest

from naiad.cli.models import consume, predict
from naiad.tools.consume.queues.queue_address import parse_queue_address
from naiad.tools.predict.since.selection import state_of
from support.custom_resources import validate_custom
from support.kubernetes_manifests import DEPLOY, Manifest, read_manifests, validate_strictly

JOBS = DEPLOY / "jobs"
SCALED = sorted(JOBS.glob("scale-*.yaml"))
GROUPS = {"consumerGroup", "consumer"}


def manifest_of(path: Path) -> Manifest:
    (manifest,) = read_manifests(path.read_text())
    return manifest


def pod_of(manifest: Manifest) -> dict[str, Any]:
    spec = manifest["spec"]
    template = spec["template"] if "template" in spec else spec["jobTemplate"]["spec"]["template"]
    found: dict[str, Any] = template["spec"]
    return found


def arguments(manifest: Manifest) -> list[str]:
    (server,) = pod_of(manifest)["containers"]
    return [*server["command"], *server["args"]]


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_have_only_fields_that_exist(path: Path) -> None:
    validate_strictly(manifest_of(path))


def test_the_consumer_has_time_for_an_ordered_end() -> None:
    manifest = manifest_of(JOBS / "consume.yaml")
    words = arguments(manifest)
    assert words[:2] == ["naiad", "consume"]
    job = consume.read_job(consume.make_parser().parse_args(words[2:]))
    job.check()
    assert parse_queue_address(job.source).name == "requests"
    assert pod_of(manifest)["terminationGracePeriodSeconds"] > 25 + 10


@pytest.mark.parametrize("path", SCALED, ids=lambda path: path.stem)
def test_scaling_counts_what_the_consumers_read(path: Path) -> None:
    manifest, target = manifest_of(path), manifest_of(JOBS / "consume.yaml")
    assert manifest["spec"]["scaleTargetRef"]["name"] == target["metadata"]["name"]
    words = arguments(target)
    job = consume.read_job(consume.make_parser().parse_args(words[2:]))
    (trigger,) = manifest["spec"]["triggers"]
    values = trigger["metadata"]
    assert [values[name] for name in GROUPS & values.keys()] == [job.group]
    assert (values.get("stream") or values["topic"]) == parse_queue_address(job.source).name
    assert all(isinstance(value, str) for value in values.values())


@pytest.mark.parametrize("path", SCALED, ids=lambda path: path.stem)
def test_scaled_objects_match_their_definition(path: Path) -> None:
    validate_custom(manifest_of(path))


def test_predictions_of_new_files_have_names_by_job() -> None:
    manifest = manifest_of(JOBS / "predict-new.yaml")
    job = predict.read_job(predict.make_parser().parse_args(arguments(manifest)[2:]))
    assert job.since == "last"
    assert "$(JOB)" in job.output
    assert state_of(job) == "s3://rows/out/ranker.since.json"
    spec = manifest["spec"]
    assert spec["concurrencyPolicy"] == "Forbid", "runs that overlap would take the files of each other"
    (rule,) = spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert set(rule["onExitCodes"]["values"]) == {2, 3}
    (volume,) = pod_of(manifest)["volumes"]
    assert "emptyDir" in volume


def test_a_scheduled_prediction_continues_under_one_name(tmp_path: Path) -> None:
    manifest = manifest_of(JOBS / "predict.yaml")
    words = arguments(manifest)
    assert words[:2] == ["naiad", "predict"]
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").touch()
    here = [each.replace("/data/", f"{tmp_path}/") for each in words[2:]]
    job = predict.read_job(predict.make_parser().parse_args(here))
    assert job.output == f"{tmp_path}/out/$(JOB).parquet"
    (server,) = pod_of(manifest)["containers"]
    (name,) = [each for each in server["env"] if each["name"] == "JOB"]
    assert name["valueFrom"]["fieldRef"]["fieldPath"].endswith("job-name']")
    (rule,) = manifest["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert set(rule["onExitCodes"]["values"]) == {2, 3}
    assert manifest["spec"]["concurrencyPolicy"] == "Forbid"
