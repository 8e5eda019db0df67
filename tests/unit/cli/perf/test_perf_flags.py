"""Flags of `naiad perf`: perf_analyzer's command lines give the plan that they mean; wrong ones name flag and fix."""

import shlex
import sys
from pathlib import Path

import pytest

from naiad.cli.perf.command import FAILED, run
from naiad.cli.perf.perf_flags import BAD_OPTION, parse
from naiad.cli.perf.planning import FlagError, make_plan
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Mode,
    PeriodicConcurrency,
    Phase,
    Plan,
    Protocol,
    Ramp,
    Search,
    Stop,
)
from naiad.tools.perf.report.perf_text import settings_text


def plan_of(*arguments: str, is_perf_analyzer: bool = False) -> Plan:
    return make_plan(parse(["-m", "resnet", *arguments]), is_perf_analyzer=is_perf_analyzer)


def test_defaults_are_one_outstanding_http_request() -> None:
    plan = plan_of()
    assert plan.loads == Concurrency(1)
    assert plan.service.url == "http://localhost:8000"
    assert plan.measuring.stop is Stop.CONFIDENCE
    assert plan.models[0].inputs.sources == ("random",)


def test_perf_analyzer_defaults_to_time_windows() -> None:
    assert plan_of(is_perf_analyzer=True).measuring.stop is Stop.TIME_WINDOWS
    assert plan_of("--measurement-mode", "count_windows", is_perf_analyzer=True).measuring.stop is Stop.COUNT_WINDOWS


def test_model_analyzer_command_line_is_accepted() -> None:
    arguments = shlex.split(
        "-b 4 -u 127.0.0.1:8001 -i grpc -f resnet-results.csv --verbose-csv --concurrency-range 8 "
        "--measurement-mode count_windows --collect-metrics --metrics-url http://127.0.0.1:8002/metrics "
        "--metrics-interval 1000 --shape INPUT0:3,224,224 --max-threads 16 --async"
    )
    plan = plan_of(*arguments)
    assert plan.service.url == "grpc://127.0.0.1:8001"
    assert plan.service.protocol is Protocol.GRPC
    assert plan.loads == Search(8, 8, 1)
    assert plan.metrics_url == "http://127.0.0.1:8002/metrics"
    assert plan.models[0].batch_size == 4
    assert plan.models[0].inputs.shapes == {"INPUT0": (3, 224, 224)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", Search(4, 4, 1)), ("1:8", Search(1, 8, 1)), ("1:8:2", Search(1, 8, 2))],
)
def test_concurrency_ranges(text: str, expected: Search) -> None:
    assert plan_of("--concurrency-range", text).loads == expected


def test_rates_may_have_fractions() -> None:
    plan = plan_of("--request-rate-range", "0.5:2.5:0.5", "--request-distribution", "poisson")
    assert plan.loads == Search(0.5, 2.5, 0.5, is_rate=True, is_poisson=True)


def test_ramp_phases() -> None:
    plan = plan_of("--ramp", "30s:0-500,500ms:2000,1m:500")
    assert plan.loads == Ramp((Phase(30.0, 0.0, 500.0), Phase(0.5, 2000.0, 2000.0), Phase(60.0, 500.0, 500.0)))


def test_intervals_are_read_as_microseconds(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("100\n\n2500\n")
    assert plan_of("--request-intervals", str(file)).loads == Intervals((100_000, 2_500_000))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("10:100:30",), PeriodicConcurrency(10, 100, 30, 10)),
        (("2:5", "--request-period", "3"), PeriodicConcurrency(2, 5, 1, 3)),
    ],
)
def test_periodic_concurrency(arguments: tuple[str, ...], expected: PeriodicConcurrency) -> None:
    assert plan_of("-i", "grpc", "--streaming", "--periodic-concurrency-range", *arguments).loads == expected


def test_endpoint_is_kept_for_the_export() -> None:
    assert plan_of("--endpoint", "v1/chat/completions").endpoint == "v1/chat/completions"


def test_old_flags_mean_what_they_meant() -> None:
    assert plan_of("-t", "8").loads == Search(8, 8, 1)
    assert plan_of("-z").models[0].inputs.sources == ("zero",)


def test_several_models_share_by_weight() -> None:
    plan = make_plan(parse(["-m", "a=3", "-m", "b"]))
    assert [(model.name, model.weight) for model in plan.models] == [("a", 3.0), ("b", 1.0)]


def test_tls_and_streaming() -> None:
    plan = plan_of(
        "-i", "grpc", "--streaming", "--ssl-grpc-use-ssl", "true", "--ssl-grpc-root-certifications-file", "ca"
    )
    assert plan.service.url == "grpcs://localhost:8001"
    assert plan.service.ca_file == "ca"
    assert plan.service.mode is Mode.STREAM


def test_parameters_have_their_types() -> None:
    plan = plan_of("--request-parameter", "n:3:int", "--request-parameter", "s:a:b:string")
    assert plan.models[0].inputs.parameters == {"n": 3, "s": "a:b"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--concurrency-range", "8:1"), "--concurrency-range is '8:1': the concurrency range ends at 1, below"),
        (("--concurrency-range", "a"), "START:END:STEP with whole numbers"),
        (("--concurrency-range", "0"), "--concurrency-range is '0': concurrency is 0; expected 1 to 100000"),
        (("--concurrency-range", "1:200000:1"), "ends at 200000; expected at most 100000"),
        (("--concurrency-range", ""), "--concurrency-range is empty; give it a value"),
        (("--concurrency-range", "8", "--ramp", ""), "--ramp is empty"),
        (("--request-rate-range", "1:nan"), "ends at nan; expected at most"),
        (("--request-rate-range", "1:-5"), "ends at -5; expected 0 or more"),
        (("--request-rate-range", "1:8:0"), "the step of the request rate range is 0"),
        (("--concurrency-range", "1:0"), "give -l MS"),
        (("--concurrency-range", "1:8:1:1"), "4 parts"),
        (("--concurrency-range", "1", "--ramp", "1s:5"), "--concurrency-range and --ramp exclude each other"),
        (("--binary-search", "--concurrency-range", "1:8"), "latency limit"),
        (("--binary-search", "--concurrency-range", "8", "-l", "5"), "needs the end of the concurrency range"),
        (("--periodic-concurrency-range", "5"), "use START:END:STEP"),
        (("--periodic-concurrency-range", "5:1"), "an end from the start to 100000"),
        (("--periodic-concurrency-range", "1:10:4"), "a multiple of the step"),
        (("--periodic-concurrency-range", "1:9:4"), "add -i grpc --streaming"),
        (("--periodic-concurrency-range", "1:9:4", "--request-period", "0"), "--request-period is 0"),
        (("--async", "--sync"), "--async and --sync exclude each other"),
        (("--ramp", "5s"), "phase '5s'"),
        (("--ramp", "5x:5"), "phase '5x:5'"),
        (("--ramp", "5s:0"), "sends nothing"),
        (("--request-intervals", "/missing"), "cannot be read"),
        (("-i", "carrier"), "use http or grpc"),
        (("--streaming",), "add -i grpc"),
        (("--shape", "INPUT"), "--shape is 'INPUT'"),
        (("--shape", "INPUT:3,-1"), "above 0"),
        (("--input-bound", "ids:0"), "--input-bound is 'ids:0'; use NAME:N with N above 0"),
        (("--request-parameter", "a:b"), "NAME:VALUE:TYPE"),
        (("--request-parameter", "a:b:int"), "'b' is no int"),
        (("--sequence-id-range", "5:5"), "START < END"),
        (("-b", "0"), "-b is 0"),
        (("--percentile", "100"), "use 1 to 99"),
        (("-p", "0"), "-p is 0; use 1 to 8640000000"),
        (("--slo", "nan"), "--slo is nan"),
        (("--slo", "inf"), "--slo is inf"),
        (("-l", "inf"), "-l is inf; use 0 to"),
        (("-l", "-1"), "-l is -1"),
        (("-p", "1e300"), "-p is 1000"),
        (("--duration", "0"), "--duration is 0; use 0.001 to 8640000"),
        (("--duration", "0.0001"), "--duration is 0.0001"),
        (("--duration", "inf"), "--duration is inf"),
        (("--request-timeout", "inf"), "--request-timeout is inf"),
        (("--request-timeout", "0"), "--request-timeout is 0; use a number above 0"),
        (("--request-count", "-1"), "--request-count is -1; use 0 to 1000000000"),
        (("--request-count", "9" * 30), "--request-count is 999"),
        (("--warmup-request-count", "9" * 30), "--warmup-request-count is 999"),
        (("--measurement-request-count", "0"), "--measurement-request-count is 0; use 1 to"),
        (("-s", "inf"), "-s is inf"),
        (("-s", "0"), "-s is 0; use a number above 0"),
        (("-r", "9" * 400), "-r is 999"),
        (("-b", "2000000000"), "-b is 2000000000; use 1 to 1000000"),
        (("--processes", "100000"), "--processes is 100000; use 0 to 256"),
        (("--repeat", "0"), "--repeat is 0"),
        (("--replay-speed", "nan"), "--replay-speed is nan"),
        (("--replay-speed", "inf"), "--replay-speed is inf"),
        (("--timing-share", "1.5"), "--timing-share is 1.5; use 0 to 1"),
        (("--metrics-interval", "0"), "--metrics-interval is 0; use 10 to"),
        (("--sequence-length", "0"), "--sequence-length is 0; use 1 to 1000000000"),
        (("--sequence-length-variation", "101"), "--sequence-length-variation is 101; use 0 to 100"),
        (("--sequence-length-variation", "nan"), "--sequence-length-variation is nan"),
        (("--num-of-sequences", "0"), "--num-of-sequences is 0; use 1 to 100000"),
        (("--sequence-id-range", "0:5"), "0 < START < END"),
        (("--sequence-id-range", f"1:{1 << 70}"), f"at most {1 << 64}"),
        (("--sequence-id-range", "²"), "0 < START < END"),
        (("--string-length", "-1"), "--string-length is -1"),
        (("--string-length", "9999999999999"), "--string-length is 9999999999999"),
        (("--output-shared-memory-size", "0"), "--output-shared-memory-size is 0"),
        (("--validation-tolerance", "inf"), "--validation-tolerance is inf; use 0 to 1"),
        (("--image-scale", "nan"), "--image-scale is nan"),
        (("--image-scale", "0"), "--image-scale is 0"),
        (("--random-seed", "-1"), "--random-seed is -1"),
        (("--request-parameter", f"n:{1 << 63}:int"), f"'{1 << 63}' is no int"),
        (("--request-parameter", "n:nan:float"), "'nan' is no float"),
        (("-m", "b=inf"), "the weight is inf"),
        (("--concurrency-range", "9" * 400), "START:END:STEP with whole numbers"),
        (("--request-rate-range", "1e-300"), "request rate is 1e-300/s; expected 1e-06 to 1e+07"),
        (("--request-rate-range", "1:2:inf"), "the step of the request rate range is inf"),
        (("--request-rate-range", "1:10:0.00001"), "which makes over 100000 loads"),
        (("-t", "0"), "concurrency is 0"),
        (("--service-kind", "triton_c_api"), "--model-repository"),
        (("-H", "key"), "NAME:VALUE"),
    ],
)
def test_wrong_values_name_flag_and_fix(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(FlagError, match=r".") as failure:
        plan_of(*arguments)
    assert words in str(failure.value)


def test_values_of_perf_analyzer_for_its_defaults() -> None:
    assert plan_of("--request-count", "0").measuring.stop is Stop.CONFIDENCE
    plan = plan_of("--sequence-length", "0", "--percentile", "-1", is_perf_analyzer=True)
    assert (plan.models[0].sequences.length, plan.models[0].sequences.has_length) == (20, False)
    assert plan.measuring.percentile is None


def test_missing_model_is_an_error() -> None:
    with pytest.raises(FlagError, match="-m is missing"):
        make_plan(parse([]))


def test_unknown_flag_has_perf_analyzers_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["-m", "a", "--concurency-range", "4"])
    assert end.value.code == BAD_OPTION
    assert "--concurency-range" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "-f", "--html", "--profile-export-file"])
def test_report_that_cannot_be_written_is_rejected_first(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, why in ((tmp_path, "it is a folder"), (tmp_path / "no" / "file", "there is no folder")):
        assert run(["-m", "resnet", "-u", "127.0.0.1:1", flag, str(path)]) == BAD_OPTION
        output = capsys.readouterr()
        assert output.err.startswith(f"naiad perf: {flag} {path} cannot be written: {why}")
        assert not output.out


def test_missing_matplotlib_is_reported_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["-m", "resnet", "--html", str(tmp_path / "report.html")]) == BAD_OPTION
    assert "pip install 'naiad[report]'" in capsys.readouterr().err


def test_missing_server_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-m", "resnet", "-u", "127.0.0.1:1"]) == FAILED
    assert capsys.readouterr().err == (
        "naiad perf: no connection to http://127.0.0.1:1: Connection refused; "
        "give the address of a running server with -u\n"
    )


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        (("--replay-url", "h:1"), "grpc://h:1"),
        (("-i", "grpc", "--replay-url", "h:1"), "http://h:1"),
        (("-u", "https://h:2", "--replay-url", "h:1"), "grpcs://h:1"),
        (("--replay-url", "grpc+unix:///tmp/s"), "grpc+unix:///tmp/s"),
    ],
)
def test_replay_has_an_address_for_each_protocol(flags: tuple[str, ...], url: str) -> None:
    plan = plan_of("--replay", "traffic.jsonl", "-H", "key:value", *flags)
    assert plan.replay_service is not None
    assert (plan.replay_service.url, plan.replay_service.headers) == (url, {"key": "value"})
    assert plan.replay_service.protocol is not plan.service.protocol


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--replay-url", "h:1"), "leave it out"),
        (("--replay", "f", "--replay-url", "grpc://h:1", "-i", "grpc", "--streaming"), "leave it out"),
        (("--replay", "f", "--replay-url", "http://h:1"), "use an address for grpc"),
    ],
)
def test_useless_address_of_a_replay_is_refused(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(FlagError, match=problem):
        plan_of(*flags)


def test_load_of_a_schedule_is_described() -> None:
    replayed = settings_text(plan_of("--replay", "traffic.jsonl", "--replay-speed", "2"))
    assert replayed.endswith("Load: the recorded requests at their times, speed 2")
    assert settings_text(plan_of("--fixed-schedule")).endswith("Load: each entry of the input data at its timestamp")
