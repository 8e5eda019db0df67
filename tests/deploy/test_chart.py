"""The Helm chart, rendered with Helm's own code.

`NAIAD_WRITE_GOLDEN=1` writes the golden files. Helm comes from a package of 75 MB, in the group `deploy`:
`.ci/deploy` runs these tests in an environment of its own.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import naiad
from support.kubernetes_manifests import DEPLOY, read_manifests, validate_strictly, workload

helm = pytest.importorskip("helm_python", reason="helm-python-sdk of the group deploy is missing: run .ci/deploy")

HERE = Path(__file__).parent
CHART = DEPLOY / "helm" / "naiad"
VALUE_SETS = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))


@pytest.fixture(scope="module")
def chart() -> Iterator[Any]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def rendered(chart: Any, values: dict[str, Any]) -> str:
    """The manifests of a release `demo` in the namespace `ml`, in the order of their files."""
    files = chart.render(values, name="demo", namespace="ml")
    texts = [files[name].strip() for name in sorted(files) if name.endswith(".yaml")]
    return "".join(f"---\n{text}\n" for text in texts if text)


def values_of(name: str) -> dict[str, Any]:
    content = yaml.safe_load((HERE / "values" / f"{name}.yaml").read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("name", VALUE_SETS)
def test_rendering_equals_golden_file(chart: Any, name: str) -> None:
    text = rendered(chart, values_of(name))
    golden = HERE / "golden" / f"{name}.yaml"
    if os.environ.get("NAIAD_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("name", VALUE_SETS)
def test_rendering_is_valid_for_kubernetes(chart: Any, name: str) -> None:
    for manifest in read_manifests(rendered(chart, values_of(name))):
        validate_strictly(manifest)


def test_lint_finds_no_error() -> None:
    report = helm.lint(str(CHART), strict=True)
    assert report["errors"] == []
    assert [message["error"] for message in report["messages"]] == ["icon is recommended"]


def test_default_image_is_this_version(chart: Any) -> None:
    assert chart.metadata["appVersion"] == naiad.__version__


def test_notes_name_the_services(chart: Any) -> None:
    notes = chart.render({}, name="demo", namespace="ml")["naiad/templates/NOTES.txt"]
    assert "dns:///demo-naiad-grpc:8001" in notes


@pytest.mark.parametrize(
    ("values", "field", "problem"),
    [
        ({"replicaCount": "two"}, "/replicaCount", "want integer"),
        ({"server": {"drainSeconds": "5s"}}, "/server/drainSeconds", "want integer"),
        ({"ports": {"http": 70000}}, "/ports/http", "want 65,535"),
        ({"kind": "DaemonSet"}, "/kind", "'Deployment', 'StatefulSet'"),
        ({"replicas": 2}, "at ''", "'replicas' not allowed"),
        ({"tls": {"secret": "a"}}, "/tls", "'secret' not allowed"),
        ({"modelRepository": {"source": "url", "url": "http://models"}}, "/modelRepository/url", "s3|gs|as"),
        ({"apiKeys": {"enabled": True, "lines": ["analytics all naiad_abc"]}}, "/apiKeys/lines/0", "pattern"),
        ({"server": {"extraArgs": ["log-verbose=1"]}}, "/server/extraArgs/0", "pattern"),
    ],
)
def test_value_of_wrong_type_is_named(chart: Any, values: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(helm.HelmError) as failure:
        rendered(chart, values)
    assert field in str(failure.value)
    assert problem in str(failure.value)


def test_values_with_signs_of_yaml_stay_whole(chart: Any) -> None:
    values = {
        "nameOverride": "123",
        "modelRepository": {"path": '/models #1: "a"'},
        "server": {"modelControlMode": "explicit", "loadModels": ["a: b", "c #d", "*"], "readyModels": "a: b,c #d"},
    }
    manifests = read_manifests(rendered(chart, {**values, "fullnameOverride": "scorer"}))
    for manifest in manifests:
        validate_strictly(manifest)
    pod = workload(manifests)["spec"]["template"]
    flags = pod["spec"]["containers"][0]["args"]
    assert '--model-repository=/models #1: "a"' in flags
    assert {"--load-model=a: b", "--load-model=c #d", "--load-model=*", "--ready-models=a: b,c #d"} <= set(flags)
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "123"


CONTRADICTIONS = [
    ({"fullnameOverride": "My.Naiad"}, "the objects would have the name My.Naiad, and names of services have small"),
    ({"nameOverride": "Models"}, "the objects would have the name demo-Models"),
    ({"server": {"drainSeconds": 60}}, "terminationGracePeriodSeconds is 45, but preStopSleepSeconds + "),
    ({"server": {"drainSeconds": 60}}, "set terminationGracePeriodSeconds to at least 91"),
    ({"preStopSleepSeconds": 10}, "set terminationGracePeriodSeconds to at least 46"),
    ({"modelRepository": {"source": "pvc"}}, "modelRepository.pvc.claimName is empty: name a PersistentVolumeClaim"),
    ({"modelRepository": {"source": "url"}}, "modelRepository.url is empty: set it to s3://bucket/path"),
    ({"modelRepository": {"url": "s3://a/b"}}, "modelRepository.source is image: set modelRepository.source=url"),
    ({"modelRepository": {"source": "init"}}, "modelRepository.init.image or modelRepository.init.command is empty"),
    ({"server": {"loadModels": ["a"]}}, "server.loadModels needs server.modelControlMode=explicit, which is none"),
    ({"server": {"extraArgs": ["--drain-seconds=9"]}}, "--drain-seconds, which the chart sets: use the value server"),
    ({"server": {"extraArgs": ["--model-store=/m"]}}, "use the value modelRepository instead"),
    ({"server": {"extraArgs": ["--allow-http=false"]}}, "server.extraArgs has --allow-http, but the probes"),
    ({"ports": {"grpc": 8000}}, "ports.http, ports.grpc and ports.metrics must be different"),
    ({"tls": {"enabled": True}}, "tls.secretName is empty: name a Secret with tls.crt and tls.key"),
    ({"tls": {"grpcMutual": True}}, "tls.grpcMutual needs tls.enabled=true"),
    ({"apiKeys": {"enabled": True}}, "kubectl create secret generic NAME --from-file=keys=FILE"),
    ({"apiKeys": {"secretName": "a"}}, "no key is required: set apiKeys.enabled=true"),
    ({"apiKeys": {"enabled": True, "secretName": "a", "lines": ["a all -"]}}, "exclude each other: remove one"),
    ({"autoscaling": {"enabled": True}, "keda": {"enabled": True, "serverAddress": "http://p"}}, "disable one"),
    ({"autoscaling": {"enabled": True, "minReplicas": 9}}, "autoscaling.minReplicas is 9, more than autoscaling.max"),
    ({"keda": {"enabled": True}}, "keda.serverAddress is empty: set it to the address of Prometheus"),
    ({"cache": {"persistent": True}}, "cache.persistent needs kind=StatefulSet"),
    ({"ingress": {"http": {"enabled": True}}}, "ingress.http.host is empty: name the host that clients use"),
    (
        {"ingress": {name: {"enabled": True, "host": "a.example"} for name in ("http", "grpc")}},
        "ingress.http.host and ingress.grpc.host are both a.example, but one host has one protocol: choose two hosts",
    ),
    (
        {
            "serviceMonitor": {"enabled": True},
            "apiKeys": {"enabled": True, "lines": ["probe health,metadata -", f"metrics all {'0' * 64}"]},
        },
        "serviceMonitor.keySecretName is empty, but apiKeys.lines let no client read the metrics without a key",
    ),
    (
        {"networkPolicy": {"enabled": True}, "ingress": {"http": {"enabled": True, "host": "a.example"}}},
        "networkPolicy.clients is empty, so that only pods of the namespace may connect, and the ingress controller",
    ),
    ({"rollingUpdate": {"maxSurge": 0}}, "rollingUpdate.maxSurge and rollingUpdate.maxUnavailable are both 0"),
]


@pytest.mark.parametrize(("values", "message"), CONTRADICTIONS)
def test_contradiction_names_value_and_fix(chart: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm.HelmError) as failure:
        rendered(chart, values)
    assert message in str(failure.value)


def test_all_contradictions_are_reported_at_once(chart: Any) -> None:
    with pytest.raises(helm.HelmError) as failure:
        rendered(chart, {"tls": {"enabled": True}, "cache": {"persistent": True}})
    assert "tls.secretName is empty" in str(failure.value)
    assert "cache.persistent needs" in str(failure.value)


def test_grace_period_above_drain_is_accepted(chart: Any) -> None:
    text = rendered(chart, {"server": {"drainSeconds": 60}, "terminationGracePeriodSeconds": 91})
    assert "terminationGracePeriodSeconds: 91" in text


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"podSecurityContext": {"runAsNonRoot": False}}, "pod", {"runAsNonRoot": False}),
        (
            {"containerSecurityContext": {"readOnlyRootFilesystem": False}},
            "container",
            {"readOnlyRootFilesystem": False},
        ),
        (
            {"containerSecurityContext": {"capabilities": {"add": ["A"]}}},
            "container",
            {"capabilities": {"add": ["A"]}},
        ),
    ],
)
def test_values_replace_security_defaults(
    chart: Any, values: dict[str, Any], field: str, expected: dict[str, Any]
) -> None:
    pod = workload(read_manifests(rendered(chart, values)))["spec"]["template"]["spec"]
    found = (pod if field == "pod" else pod["containers"][0])["securityContext"]
    assert expected.items() <= found.items()
    assert len(found) > 1


def test_recording_rules_come_without_alerts(chart: Any) -> None:
    text = rendered(chart, {"prometheusRule": {"enabled": True, "alerts": False}})
    (rules,) = [each for each in read_manifests(text) if each["kind"] == "PrometheusRule"]
    assert {"record"} == {
        key for group in rules["spec"]["groups"] for rule in group["rules"] for key in rule if key != "expr"
    }


@pytest.mark.parametrize("line", ["prometheus metrics -", "all health,metrics -", "open all -"])
def test_open_metrics_need_no_key(chart: Any, line: str) -> None:
    text = rendered(chart, {"serviceMonitor": {"enabled": True}, "apiKeys": {"enabled": True, "lines": [line]}})
    assert "ServiceMonitor" in text


_PROTOCOL = "nginx.ingress.kubernetes.io/backend-protocol"


@pytest.mark.parametrize(
    ("annotations", "has_tls", "http", "grpc"),
    [
        ({}, False, None, "GRPC"),
        ({}, True, "HTTPS", "GRPCS"),
        ({"example.com/a": "b"}, True, "HTTPS", "GRPCS"),
        ({_PROTOCOL: "AUTO_HTTP"}, True, "AUTO_HTTP", "AUTO_HTTP"),
    ],
)
def test_ingress_speaks_the_protocol_of_the_ports(
    chart: Any, annotations: dict[str, str], has_tls: bool, http: str | None, grpc: str
) -> None:
    ingress = {
        name: {"enabled": True, "host": f"{name}.example", "annotations": annotations} for name in ("http", "grpc")
    }
    tls = {"enabled": True, "secretName": "a"} if has_tls else {}
    manifests = read_manifests(rendered(chart, {"tls": tls, "ingress": ingress}))
    found = {each["metadata"]["name"]: each["metadata"] for each in manifests if each["kind"] == "Ingress"}
    for name, wanted in (("http", http), ("grpc", grpc)):
        given = found[f"demo-naiad-{name}"].get("annotations", {})
        assert given.get(_PROTOCOL) == wanted
        assert given.items() >= {key: text for key, text in annotations.items() if key != _PROTOCOL}.items()
