"""Measured points whose figures come from a simulation: a server with known costs."""

import json

from google.protobuf import json_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.simulation.fitted import load_of
from naiad.tools.analyze.simulation.simulated_system import simulate
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.measure.result import ClientFigures, GeneratorFigures, Interval, Latency, Row, ServerFigures


def config_of(
    name="m", *, instances=1, max_batch_size=8, delay_us=0, is_dynamic=True, threads=1, backend="onnxruntime"
):
    """A complete configuration."""
    config = ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    config.instance_group.add(count=instances)
    config.parameters["intra_op_thread_count"].string_value = str(threads)
    if is_dynamic:
        config.dynamic_batching.max_queue_delay_microseconds = delay_us
    return config


def point_of(*configs, **load):
    """A point with these configurations."""
    return Point(tuple(_variant(config) for config in configs), **load)


def _variant(config):
    text = json_format.MessageToJson(config)
    return Variant(config.name, f"{config.name}_config", json.loads(text), text)


def _exactly(value):
    return Interval(value, value, value)


def _figures(name, executions):
    requests = max(1, executions.requests)
    return ServerFigures(
        model=name,
        version="1",
        inference_count=executions.requests,
        execution_count=executions.batches,
        success_count=executions.requests,
        failure_count=0,
        queue_us=executions.queue_ns / requests / 1e3,
        compute_input_us=0.0,
        compute_infer_us=executions.duration_ns / requests / 1e3,
        compute_output_us=0.0,
    )


def measure(truth, point, seed=7, *, knows_loop=False):
    """Measure a point on a server that has the costs of `truth`, a Fitted, with one model under load.

    `knows_loop`: the CPU time of the event loop is measured.
    """
    run = simulate(truth.system(point)[0], load_of(point), seed)
    (model,) = truth.loaded
    client_ns = truth.requests[model, point.batch_size].client_ns
    parts = [_figures(name, each) for name, each in run.executions.items()]
    figures = parts[0]
    if parts[0].model != model:
        figures = ServerFigures(model, "1", 0, 0, 1, 0, 0.0, 0.0, 0.0, 0.0, composing=parts)
    latencies_us = run.latencies_ns / 1e3
    latency = Latency(
        _exactly(float(latencies_us.mean())),
        float(latencies_us.std()),
        float(latencies_us.min()),
        float(latencies_us.max()),
        {rank: _exactly(run.percentile_us(rank)) for rank in (50, 90, 95, 99)},
    )
    row = Row(
        mode="request_rate" if point.request_rate else "concurrency",
        value=point.request_rate or point.concurrency,
        model=model,
        batch_size=point.batch_size,
        duration_s=run.span_ns / 1e9,
        request_count=len(latencies_us),
        throughput=_exactly(run.throughput),
        goodput=_exactly(run.throughput),
        response_throughput=run.throughput,
        sequences_per_s=0.0,
        latency=latency,
        service=latency,
        first_response=None,
        between_responses=None,
        client=ClientFigures(0.0, 0.0, 0.0),
        server=figures,
        generator=GeneratorFigures(1, client_ns * run.throughput / 1e9, 1e5, 0.0, 0.0, 0.0, "server"),
        errors=(),
        is_stable=True,
        verdict="",
    )
    metrics = {model: {"cpu_utilization": _exactly(run.cpu_cores)}}
    return Measured(point, {model: row}, metrics, loop_cores=run.loop_ns / run.span_ns if knows_loop else 0.0)
