import pytest

from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options
from naiad.options.trace import OpenTelemetryOptions, TraceOptions


def parse(*arguments: str) -> ServerOptions:
    return parse_options(["--model-repository=/m", *arguments])


def test_nothing_is_traced_by_default() -> None:
    assert parse().trace == TraceOptions()
    assert not TraceOptions().is_on


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "--trace-config=level=TENSORS",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=rate=5",
            "--trace-config=count=7",
            "--trace-config=mode=triton",
            "--trace-config=triton,file=/t=1,2",
            "--trace-config=triton,log-frequency=3",
        ),
        (
            "--trace-level=TENSORS",
            "--trace-level=MIN",
            "--trace-rate=5",
            "--trace-count=7",
            "--trace-file=/t=1,2",
            "--trace-log-frequency=3",
        ),
    ],
)
def test_both_spellings(arguments: tuple[str, ...]) -> None:
    trace = parse(*arguments).trace
    assert trace == TraceOptions(("TIMESTAMPS", "TENSORS"), 5, 7, 3, "/t=1,2")
    assert trace.is_on


def test_trace_config_wins() -> None:
    assert parse("--trace-rate=5", "--trace-config=rate=6").trace.rate == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["level=TIMESTAMPS"], "needs a file as well"),
        (["level=LOUD"], "got: LOUD; known levels are OFF"),
        (["level=OFF", "level=TENSORS"], "Expect only one trace level 'OFF'"),
        (["rate=x"], "Unable to parse 'trace_rate', got: x"),
        (["rate=0"], "sample rate must be non-zero"),
        (["count=-2"], "Expecting value >= -1, got:-2"),
        (["count=99999999999"], "out of range [ -1, 2147483647 ]"),
        (["triton,log-frequency=99999999999"], "out of range [ 0, 4294967295 ]"),
        (["file=/x"], "unknown setting 'file'; known are level, rate, count, mode"),
        (["triton,url=x"], "unknown setting 'url'; known are file, log-frequency"),
        (["jaeger,url=x"], "unknown mode 'jaeger'; known are triton, opentelemetry"),
        (["mode=jaeger"], "unknown mode 'jaeger'"),
        (["mode="], "unknown mode ''"),
        (["opentelemetry,file=x"], "unknown setting 'file'; known are url, resource"),
        (["opentelemetry,resource=name"], "write resource=<key>=<value>"),
        (["opentelemetry,bsp_max_queue_size=0"], "expected a number above 0"),
        (["opentelemetry,bsp_schedule_delay=soon"], "Unable to parse 'bsp_schedule_delay', got: soon"),
        (["opentelemetry,bsp_max_export_batch_size=4096"], "is more than bsp_max_queue_size, 2048"),
        (["rate"], "has no value"),
    ],
)
def test_mistakes_are_named(arguments: list[str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(*[f"--trace-config={argument}" for argument in arguments])
    assert text in str(caught.value)


def test_opentelemetry() -> None:
    trace = parse(
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
        "--trace-config=opentelemetry,url=localhost:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=mine",
        "--trace-config=opentelemetry,resource=a=b=c",
        "--trace-config=opentelemetry,bsp_max_queue_size=100",
        "--trace-config=opentelemetry,bsp_schedule_delay=7",
        "--trace-config=opentelemetry,bsp_max_export_batch_size=50",
    ).trace
    assert trace.is_on
    assert (trace.mode, trace.rate, trace.file) == ("opentelemetry", 0, "")
    assert trace.open_telemetry == OpenTelemetryOptions(
        "http://localhost:4318/v1/traces", (("service.name", "mine"), ("a", "b=c")), 100, 7, 50
    )


def test_opentelemetry_uses_environment_for_missing_settings() -> None:
    trace = parse("--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=https://c").trace
    assert trace.open_telemetry == OpenTelemetryOptions("https://c")
    assert not trace.is_on
