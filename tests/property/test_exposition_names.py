"""Prometheus reads every metric of every model with any names of models and tags."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from naiad.backend.custom_metrics import CustomMetrics
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.validate.model import validate
from naiad.core.errors import InferError, encodable
from naiad.options.network.endpoints import MetricsOptions
from naiad.telemetry.metrics.exposition import add, parse
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import ModelMetricSource
from naiad.telemetry.statistics.model_statistics import ModelStatistics

HOSTILE = [
    "my-team",
    "a\nfake_metric 1",
    'x"} 1\n# TYPE y counter',
    "1",
    "é",
    "",
    "_name__",
    "le",
    "a b",
    "\\",
    "\r",
    "\ud800",
]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.characters(), max_size=12))
TAGS = st.dictionaries(NAMES, NAMES, max_size=3)


def source(name: str, tags: Mapping[str, str], namespace: str = "") -> ModelMetricSource:
    statistics = ModelStatistics(name, "1", namespace=namespace)
    return ModelMetricSource(statistics, pending=lambda: 0, executing=lambda: 0, tags=tags)


def registry(custom: CustomMetrics) -> Registry:
    made = Registry(MetricsOptions(allow_gpu=False, settings={"histogram_latencies": "true"}))
    made.add_families(custom.render)
    made.add_model(source("neighbour", {"team": "b"}))
    return made


def successes(text: bytes) -> list[Mapping[str, str]]:
    """Return the labels of all models in one family, as Prometheus reads them."""
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    return [sample.labels for sample in families["nv_inference_request_success"].samples]


@given(NAMES, TAGS, NAMES)
def test_no_name_of_a_model_breaks_the_exposition(name: str, tags: Mapping[str, str], namespace: str):
    metrics = registry(CustomMetrics())
    metrics.add_model(source(name, tags, namespace))
    text = metrics.render()
    for rendered in (text, add([parse(text), parse(text)]).render()):
        shown = successes(rendered)
        assert {"model": "neighbour", "version": "1", "_team": "b"} in shown
        assert encodable(name) in [labels["model"] for labels in shown]
        assert len(shown) == 2


@given(TAGS)
def test_accepted_tags_are_labels_with_their_values(tags: Mapping[str, str]):
    try:
        config = ModelConfig(name="m", platform="ensemble", metric_tags=tags)
    except (UnicodeEncodeError, ValueError):
        return  # no configuration can hold it
    problems = [p for p in validate(config, complete=False) if p.is_error and "metric_tags" in p.path]
    metrics = registry(CustomMetrics())
    metrics.add_model(source("m", tags))
    (labels,) = [labels for labels in successes(metrics.render()) if labels["model"] == "m"]
    expected = {"model": "m", "version": "1", **{f"_{key}": value for key, value in tags.items()}}
    assert problems or labels == expected


@given(st.lists(st.tuples(NAMES, NAMES, st.sampled_from(["counter", "gauge", "histogram"]), TAGS), max_size=4))
def test_no_custom_metric_breaks_the_exposition(wanted):
    custom = CustomMetrics()
    holder = custom.holder()
    try:
        for name, help_text, kind, labels in wanted:
            try:
                number = holder.new_family(name, help_text, kind)
                holder.new_metric(number, labels, [1.0, 2.0] if kind == "histogram" else None)
            except InferError:
                continue
        text = registry(custom).render()
        assert {"model": "neighbour", "version": "1", "_team": "b"} in successes(text)
    finally:
        holder.close()
        custom.close()
