"""Metrics that Python models define, read at /metrics with Prometheus' own parser."""

import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from prometheus_client.parser import text_string_to_metric_families

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

CONFIG = """
backend: "python"
input [ { name: "CODE", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "RESULT", data_type: TYPE_STRING, dims: [ 1 ] } ]
instance_group [ { count: %d, kind: KIND_CPU } ]
"""
MODEL = """
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

Family = pb_utils.MetricFamily


class TritonPythonModel:
    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.requests = Family(name=NAME + "_requests_total", description="Requests", kind=Family.COUNTER)
        self.count = self.requests.Metric(labels=labels)
        self.sizes = Family(name=NAME + "_sizes", description="Sizes", kind=Family.HISTOGRAM)
        self.size = self.sizes.Metric(labels=labels, buckets=[1, 2.5, 10])
        self.levels = Family(name=NAME + "_level", description="Level", kind=Family.GAUGE)
        self.level = self.levels.Metric()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        code = request.inputs()[0].as_numpy()[0].decode()
        self.count.increment(1)
        try:
            result = eval(code, {**globals(), "self": self})
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([str(result)], np.object_))])
"""

Ask = Callable[..., str]


def write_counting(root: Path, name: str, *, instances: int = 1) -> None:
    source = f"NAME = {name!r}\n" + textwrap.dedent(MODEL)
    write_model(root, name, CONFIG % instances, {"1/model.py": source})


def ask(server: ServerProcess, code: str, model: str = "counting") -> str:
    """Have the model evaluate an expression; return what comes of it."""
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        tensor = httpclient.InferInput("CODE", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([code], np.object_))
        return str(client.infer(model, [tensor]).as_numpy("RESULT")[0].decode())


def scrape(server: ServerProcess) -> dict[str, float]:
    """Return the series at /metrics."""
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def text_of(server: ServerProcess) -> str:
    return server.get("/metrics", url=server.metrics_url).body.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_counting(root, "counting")
    write_counting(root, "pair", instances=2)
    write_counting(root, "mortal")
    with serving(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=*",
    ) as running:
        yield running


LABELS = "{model=%s,version=1}"


def test_metrics_are_there_at_zero_from_the_start(server):
    values = scrape(server)
    labels = LABELS % "pair"
    assert values[f"pair_requests_total{labels}"] == 0
    assert values[f"pair_sizes_count{labels}"] == 0
    assert values[f"pair_sizes_sum{labels}"] == 0
    assert values["pair_sizes_bucket{model=pair,version=1,le=+Inf}"] == 0
    assert values["pair_level{}"] == 0
    assert "# HELP pair_level Level\n# TYPE pair_level gauge\n" in text_of(server)


def test_what_a_model_counts_is_shown(server):
    before = scrape(server).get("counting_requests_total" + LABELS % "counting", 0.0)
    assert ask(server, "self.level.set(2.5), self.level.increment(-4), self.level.value()") == "(None, None, -1.5)"
    assert ask(server, "[self.size.observe(size) for size in (0.5, 1, 2.5, 11)]") == "[None, None, None, None]"
    values = scrape(server)
    assert values["counting_requests_total" + LABELS % "counting"] == before + 2
    assert values["counting_level{}"] == -1.5
    buckets = [
        values[f"counting_sizes_bucket{{model=counting,version=1,le={bound}}}"]
        for bound in ("1", "2.5", "10", "+Inf")
    ]
    assert buckets == [2, 3, 3, 4]
    assert values["counting_sizes_sum" + LABELS % "counting"] == 15


def test_instances_count_together_and_see_the_same_value(server):
    pids: set[str] = set()
    asked = 0
    deadline = time.monotonic() + 60
    with ThreadPoolExecutor(4) as threads:
        while len(pids) < 2:
            assert time.monotonic() < deadline, "one instance executed everything for 60 s"
            pids.update(threads.map(lambda _: ask(server, "time.sleep(0.05) or os.getpid()", "pair"), range(4)))
            asked += 4
    assert scrape(server)["pair_requests_total" + LABELS % "pair"] == asked
    assert ask(server, "self.count.value()", "pair") == f"{asked + 1}.0"


def test_threads_of_a_model_lose_no_count(server):
    code = (
        "[t.start() or t for t in [threading.Thread(target=lambda: [self.other.increment(1) for _ in range(500)])"
        " for _ in range(4)]]"
    )
    ask(server, "setattr(self, 'others', Family('counting_threads_total', '', Family.COUNTER))")
    ask(server, "setattr(self, 'other', self.others.Metric(labels={'kind': 'threads'}))")
    assert ask(server, f"[t.join() for t in {code}] and self.other.value()") == "2000.0"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("self.count.increment(-1)", "can only be incremented monotonically by non-negative values"),
        ("self.count.increment(float('nan'))", "can only be incremented monotonically by non-negative values"),
        ("self.count.increment('x')", "TypeError: Metric: expected value to increment to be a number, found str"),
        ("self.count.set(1)", "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        ("self.count.observe(1)", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        ("self.level.observe(1)", "TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
        ("self.size.value()", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
        ("self.size.increment(1)", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        ("self.size.set(1)", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
        ("self.size.observe(float('nan'))", "NaN belongs to no bucket"),
        ("Family('counting_level', '', Family.COUNTER)", "Family name already exists with different type"),
        ("Family('no name', '', Family.GAUGE)", "Error when creating MetricFamily: Invalid metric name 'no name'"),
        ("Family('', '', Family.GAUGE)", "Invalid metric name ''"),
        ("Family('nv_inference_count', '', Family.COUNTER)", "has a metric family 'nv_inference_count' of its own"),
        ("Family('nv_cpu_utilization', '', Family.GAUGE)", "use another name"),
        ("Family('x', chr(0xd800), Family.GAUGE)", "is not valid Unicode"),
        ("Family('x', 'd' * 5000, Family.GAUGE)", "has 5000 bytes; 4096 are the most"),
        ("Family('x', '', 'gauge')", "TypeError: MetricFamily: expected kind to be a MetricKind, found str"),
        ("self.levels.Metric(labels={'a b': '1'})", "Error when creating Metric: Invalid label name 'a b'"),
        ("self.levels.Metric(labels={'__a': '1'})", "Invalid label name '__a'"),
        ("self.levels.Metric(labels={'a': 1})", "label 'a' is 1; names and values must be strings"),
        ("self.levels.Metric(labels={'a': chr(0xdfff)})", "the value of label 'a' is not valid Unicode"),
        ("self.levels.Metric(labels={'a': '1'}, buckets=[1])", "Failed to create metric. Unexpected buckets found."),
        ("self.sizes.Metric(labels={})", "Failed to create metric."),
        ("self.sizes.Metric(labels={}, buckets=[2, 1])", "bucket bounds must ascend, each once, not [2.0, 1.0]"),
        ("self.sizes.Metric(labels={}, buckets=[1, 1])", "bucket bounds must ascend"),
        ("self.sizes.Metric(labels={}, buckets=[float('nan')])", "bucket bounds must ascend"),
        ("self.sizes.Metric(labels={}, buckets=[float('inf')])", "every histogram has a bucket +Inf"),
        ("self.sizes.Metric(labels={'le': '1'}, buckets=[1])", "label 'le' is the one of the histogram's buckets"),
        ("self.sizes.Metric(labels={}, buckets=list(range(300)))", "300 buckets; 256 are the most"),
        ("self.sizes.Metric(labels={}, buckets=range(3))", "Buckets must be a list"),
        ("self.levels.Metric(labels={f'l{i}': '' for i in range(40)})", "40 labels; 32 are the most"),
    ],
)
def test_misuse_is_said_and_breaks_nothing(server, code, said):
    assert said in ask(server, code)
    assert "counting_level{}" in scrape(server)


def test_equal_labels_share_metric_and_first_description(server):
    code = (
        "(lambda a, b: (a.Metric(labels={'x': 'y', 'z': ''}).increment(7.5), b.Metric(labels={'z': '', 'x': 'y'})"
        ".value(), setattr(self, 'kept', b)))"
        "(Family('counting_twin', 'first', Family.GAUGE), Family('counting_twin', 'second', Family.GAUGE))[1]"
    )
    assert ask(server, code) == "7.5"
    text = text_of(server)
    assert "# HELP counting_twin first\n" in text
    assert "counting_twin second" not in text
    assert 'counting_twin{z="",x="y"} 7.5' in text or 'counting_twin{x="y",z=""} 7.5' in text


def test_family_that_is_deleted_goes_with_its_metrics(server):
    ask(server, "setattr(self, 'gone', Family('counting_gone', 'g', Family.GAUGE))")
    ask(server, "setattr(self, 'left', self.gone.Metric(labels={'a': 'say \"hi\"\\n'}))")
    ask(server, "self.left.set(3)")
    assert 'counting_gone{a="say \\"hi\\"\\n"} 3' in text_of(server)
    ask(server, "delattr(self, 'gone')")
    said = "TritonModelException: Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
    assert ask(server, "self.left.set(4)") == said
    assert ask(server, "self.left.value()") == said
    _await(lambda: "counting_gone" not in text_of(server))


def test_worker_that_dies_takes_no_counts_with_it(server):
    ask(server, "self.level.set(7)", "mortal")
    count = scrape(server)["mortal_requests_total" + LABELS % "mortal"]
    with pytest.raises(httpclient.InferenceServerException):
        ask(server, "os._exit(3)", "mortal")
    values = scrape(server)
    assert values["mortal_requests_total" + LABELS % "mortal"] == count + 1
    assert values["mortal_level{}"] == 7
    _await(lambda: server.get("/v2/models/mortal/ready").status == 200)
    assert ask(server, "self.count.value()", "mortal") == f"{count + 2:.1f}"


def test_an_unloaded_model_takes_its_metrics_along(server, tmp_path):
    assert server.post("/v2/repository/models/pair/unload").status == 200
    _await(lambda: "pair_" not in text_of(server))
    assert server.post("/v2/repository/models/pair/load").status == 200
    assert scrape(server)["pair_requests_total" + LABELS % "pair"] == 0


def test_processes_are_summed(tmp_path, start_server):
    write_counting(tmp_path / "models", "counting")
    server = start_server(tmp_path / "models", "--processes=2")
    server.wait_ready()
    pids: list[str] = []
    deadline = time.monotonic() + 60
    while len(set(pids)) < 2:
        assert time.monotonic() < deadline, "one process answered everything for 60 s"
        pids.append(ask(server, "os.getppid()"))
    ask(server, "self.size.observe(1)")
    values = scrape(server)
    assert values["counting_requests_total" + LABELS % "counting"] == len(pids) + 1
    assert values["counting_sizes_count" + LABELS % "counting"] == 1


def test_models_that_count_are_served_without_metrics_too(tmp_path, start_server):
    write_counting(tmp_path / "models", "counting")
    server = start_server(tmp_path / "models", "--allow-metrics=false")
    server.wait_started()
    _await(lambda: server.get("/v2/health/ready").status == 200)
    assert ask(server, "self.count.value()") == "1.0"


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it within 60 s"
        time.sleep(0.02)
