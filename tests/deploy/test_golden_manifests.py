"""The rendered manifests of several value sets, as committed: these tests need no Helm."""

import json
from pathlib import Path
from typing import Any

import pytest

from naiad.options.network.access_options import parse_api_keys
from naiad.options.sources.command_line import parse_options
from support.custom_resources import validate_custom
from support.kubernetes_manifests import DEPLOY, Manifest, container, read_manifests, validate_strictly, workload

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return read_manifests(request.param.read_text())


def one(name: str, kind: str) -> Any:
    path = Path(__file__).parent / "golden" / f"{name}.yaml"
    (found,) = [manifest for manifest in read_manifests(path.read_text()) if manifest["kind"] == kind]
    return found


def test_manifests_are_valid_for_kubernetes(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        validate_strictly(manifest)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("s3-gpu-keda", "ScaledObject"), ("s3-gpu-keda", "ServiceMonitor"), ("monitoring-ingress", "PrometheusRule")],
)
def test_custom_resource_is_valid_for_its_definition(name: str, kind: str) -> None:
    validate_custom(one(name, kind))


def test_validation_rejects_an_unknown_field() -> None:
    broken = {**one("defaults", "PodDisruptionBudget"), "spec": {"maxUnavaliable": 1}}
    with pytest.raises(Exception, match="maxUnavaliable"):
        validate_strictly(broken)


def test_naiad_accepts_the_arguments(manifests: list[Manifest]) -> None:
    server = container(manifests)
    assert server["command"] == ["naiad", "serve"]
    options = parse_options(server["args"])
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert (options.http.port, options.grpc.port, options.metrics.port) == tuple(ports.values())


def test_grace_period_covers_drain_and_exit(manifests: list[Manifest]) -> None:
    options = parse_options(container(manifests)["args"])
    grace_s = workload(manifests)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options.drain_s + options.exit_timeout_s


def test_loading_models_restarts_nothing(manifests: list[Manifest]) -> None:
    server = container(manifests)
    paths = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/v2/health/live", "liveness": "/v2/health/live", "readiness": "/v2/health/ready"}


def test_pods_run_with_any_user_id(manifests: list[Manifest]) -> None:
    pod = workload(manifests)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert "runAsUser" not in pod["securityContext"]
    assert "runAsUser" not in pod["containers"][0]["securityContext"]
    for each in [*pod["containers"], *pod.get("initContainers", ())]:
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_mount_has_its_volume(manifests: list[Manifest]) -> None:
    spec = workload(manifests)["spec"]
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
    pod = spec["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]} | set(claims)
    mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
    assert mounted == volumes


def test_selectors_match_the_pods(manifests: list[Manifest]) -> None:
    labels = workload(manifests)["spec"]["template"]["metadata"]["labels"]
    for manifest in manifests:
        spec = manifest.get("spec", {})
        selectors = {
            "Service": lambda spec=spec: spec["selector"],
            "PodDisruptionBudget": lambda spec=spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec=spec: spec["podSelector"]["matchLabels"],
        }
        if manifest["kind"] in selectors:
            assert selectors[manifest["kind"]]().items() <= labels.items()


def test_service_monitor_selects_the_headless_service() -> None:
    wanted = one("s3-gpu-keda", "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    path = Path(__file__).parent / "golden" / "s3-gpu-keda.yaml"
    services = [each for each in read_manifests(path.read_text()) if each["kind"] == "Service"]
    (found,) = [each for each in services if wanted.items() <= each["metadata"]["labels"].items()]
    assert found["spec"]["clusterIP"] == "None"


def test_gpus_are_limits_of_the_container() -> None:
    resources = one("s3-gpu-keda", "Deployment")["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == 2


def test_key_file_opens_health_to_probes() -> None:
    keys = parse_api_keys(one("tls-keys-hpa", "Secret")["stringData"]["keys"])
    assert keys.open_categories == {"health"}
    assert [key.name for key in keys.keys] == ["analytics"]


def test_probes_follow_tls() -> None:
    server = one("tls-keys-hpa", "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert server["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    options = parse_options(server["args"])
    assert options.http_tls.use_ssl
    assert options.grpc_tls.use_ssl_mutual


def test_cloud_cache_is_smaller_than_its_volume() -> None:
    options = parse_options(one("s3-gpu-keda", "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"])
    assert options.repository.cloud_cache_max_bytes == 20 * 2**30 * 9 // 10


def test_init_container_may_run_as_root() -> None:
    (init,) = one("monitoring-ingress", "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert (init["securityContext"]["runAsNonRoot"], init["securityContext"]["runAsUser"]) == (False, 0)
    assert init["securityContext"]["readOnlyRootFilesystem"]
    (init,) = one("init-container", "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert "runAsUser" not in init["securityContext"]


def test_ingresses_reach_ports_of_the_service() -> None:
    path = Path(__file__).parent / "golden" / "monitoring-ingress.yaml"
    manifests = read_manifests(path.read_text())
    services = {each["metadata"]["name"]: each for each in manifests if each["kind"] == "Service"}
    hosts = {}
    for ingress in [each for each in manifests if each["kind"] == "Ingress"]:
        (rule,) = ingress["spec"]["rules"]
        (target,) = rule["http"]["paths"]
        backend = target["backend"]["service"]
        assert backend["port"]["name"] in {port["name"] for port in services[backend["name"]]["spec"]["ports"]}
        hosts[rule["host"]] = backend["port"]["name"]
        assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "scoring-tls"}]
    assert hosts == {"scoring.example.com": "http", "grpc.scoring.example.com": "grpc"}


def test_dashboards_equal_files_of_the_repository() -> None:
    path = Path(__file__).parent / "golden" / "monitoring-ingress.yaml"
    maps = [each for each in read_manifests(path.read_text()) if each["kind"] == "ConfigMap"]
    content = {name.removeprefix("naiad-"): json.loads(text) for each in maps for name, text in each["data"].items()}
    files = (DEPLOY / "grafana" / "dashboards").glob("*.json")
    assert content == {file.name: json.loads(file.read_text()) for file in files}
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
