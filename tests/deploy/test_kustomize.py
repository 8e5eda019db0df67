"""The base and the overlays of kustomize."""

import copy
import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from naiad.options.sources.command_line import parse_options
from support.kubernetes_manifests import DEPLOY, Manifest, container, read_manifests, validate_strictly, workload

KUSTOMIZE = DEPLOY / "kustomize"
OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
CHART_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("instance", "version", "managed-by"))


@functools.cache
@functools.cache
def built(overlay: str) -> list[Manifest]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing, which has kustomize")
    command = ["kubectl", "kustomize", str(KUSTOMIZE / "overlays" / overlay)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return read_manifests(finished.stdout)


def without_release(value: Any) -> Any:
    """The content without what a release of the chart adds: the prefix of names, and labels."""
    if isinstance(value, dict):
        left_out = (*CHART_LABELS, "helm.sh/chart")
        return {key: without_release(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return [without_release(each) for each in value]
    return value.removeprefix("demo-") if isinstance(value, str) else value


def test_base_equals_the_default_chart() -> None:
    golden = Path(__file__).parent / "golden" / "defaults.yaml"
    chart = [without_release(copy.deepcopy(each)) for each in read_manifests(golden.read_text())]
    files = sorted(path for path in (KUSTOMIZE / "base").glob("*.yaml") if path.name != "kustomization.yaml")
    base = [each for path in files for each in read_manifests(path.read_text())]

    def key(manifest: Manifest) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    assert sorted(base, key=key) == sorted(chart, key=key)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_valid_for_kubernetes(overlay: str) -> None:
    for manifest in built(overlay):
        validate_strictly(manifest)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_keeps_grace_period_above_drain(overlay: str) -> None:
    manifests = built(overlay)
    options = parse_options(container(manifests)["args"])
    grace_s = workload(manifests)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options.drain_s + options.exit_timeout_s


def test_cpu_and_gpu_mount_the_models() -> None:
    for overlay in ("cpu", "gpu"):
        mounts = {mount["name"]: mount["mountPath"] for mount in container(built(overlay))["volumeMounts"]}
        assert mounts == {"models": "/models", "temporary": "/tmp", "cache": "/cache"}


def test_gpu_overlay_asks_for_a_gpu() -> None:
    server = container(built("gpu"))
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert server["image"] == "naiad:0.1.0-gpu"


def test_s3_overlay_reads_a_bucket() -> None:
    server = container(built("s3"))
    options = parse_options(server["args"])
    assert list(options.repository.paths) == ["s3://models/production"]
    assert options.repository.cloud_cache_max_bytes == 20 * 2**30 * 9 // 10
    assert server["envFrom"] == [{"secretRef": {"name": "models-s3"}}]
