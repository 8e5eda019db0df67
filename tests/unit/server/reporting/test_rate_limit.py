"""The rate limiter's metrics, and the measured resources of the machine."""

from naiad.backend.cores import usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.options.execution_limits import RateLimitOptions, ResourceAmount
from naiad.server.reporting.server_metrics import measured_amounts, open_resources
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.process_resources import read_memory


def test_off_there_is_nothing() -> None:
    registry = Registry()
    assert open_resources(RateLimitOptions(), registry) is None
    assert b"rate_limiter" not in registry.render()


def test_resources_are_shown() -> None:
    registry = Registry()
    resources = open_resources(RateLimitOptions("execution_count"), registry)
    assert resources is not None
    config = ModelConfig(name="m")
    group = config.instance_group.add(count=2)
    group.rate_limiter.resources.add(name="R", count=3, **{"global": True})
    group.rate_limiter.resources.add(name="S", count=1)
    claims = resources.register(config)
    assert claims.acquire(0)
    assert not claims.acquire(1)
    text = registry.render().decode()
    for line in (
        'naiad_rate_limiter_limit{device="",resource="R"} 3',
        'naiad_rate_limiter_held{device="",resource="R"} 3',
        'naiad_rate_limiter_waiting{device="",resource="R"} 1',
        'naiad_rate_limiter_limit{device="0",resource="S"} 1',
    ):
        assert line in text.splitlines()


def test_auto_is_what_the_machine_has() -> None:
    amounts = [ResourceAmount("cpu", None), ResourceAmount("memory_mb", None), ResourceAmount("R", 4, 1)]
    memory = read_memory()
    megabytes = 0 if memory is None else memory.total_bytes >> 20
    assert measured_amounts(amounts) == [
        ResourceAmount("cpu", usable_cores()),
        ResourceAmount("memory_mb", megabytes),
        ResourceAmount("R", 4, 1),
    ]
