import pytest

from naiad.cli.serve import format_help, format_help_all
from naiad.options.execution_limits import ResourceAmount
from naiad.options.flags import GROUPS, all_flags
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import OptionError, parse_options

TRITON_FLAGS = """
id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file model-repository model-store
exit-on-error disable-auto-complete-config strict-readiness model-control-mode repository-poll-secs load-model
model-config-name model-load-thread-count model-load-retry-count model-namespacing enable-peer-access allow-http
http-address http-port reuse-http-port http-header-forward-pattern http-thread-count http-max-input-size
http-restricted-api allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern
grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual
grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time
grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
grpc-max-connection-age-grace grpc-restricted-protocol allow-sagemaker sagemaker-port sagemaker-safe-port-range
sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model allow-metrics
allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config trace-config
trace-file trace-level trace-rate trace-count trace-log-frequency backend-directory backend-config
repoagent-directory cache-config cache-directory response-cache-byte-size strict-model-config rate-limit
rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
min-supported-compute-capability buffer-manager-thread-count host-policy model-load-gpu-limit allow-client-shm
"""


def parse(*arguments: str) -> ServerOptions:
    return parse_options(["--model-repository=/m", *arguments])


def test_every_flag_of_triton_is_known() -> None:
    assert set(TRITON_FLAGS.split()) <= {flag.name for flag in all_flags()}


def test_flags_are_declared_once_with_one_effect() -> None:
    names = [flag.name for flag in all_flags()]
    assert len(names) == len(set(names))
    for flag in all_flags():
        # A flag with a target may also be limited to some values.
        assert [bool(flag.target) or flag.only is not None, flag.no_effect].count(True) == 1, flag.name


def test_every_target_is_a_field_of_the_options() -> None:
    options = parse()
    for flag in all_flags():
        if flag.target:
            value: object = options
            for part in flag.target.split("."):
                value = getattr(value, part)


def test_defaults_are_tritons() -> None:
    options = parse()
    assert (options.http.port, options.grpc.port, options.metrics.port) == (8000, 8001, 8002)
    assert options.http.address == options.grpc.address == "0.0.0.0"
    assert (options.exit_timeout_s, options.drain_s) == (30, 0.0)
    assert options.repository.exit_on_error
    assert options.repository.auto_complete
    assert options.repository.ready_rule == "all"
    assert options.repository.load_thread_count == 4
    assert options.http.max_input_bytes == 67108864
    assert options.metrics.interval_ms == 2000


def test_value_may_follow_or_be_joined() -> None:
    assert parse("--http-port", "9000").http.port == 9000
    assert parse("--http-port=9000").http.port == 9000


def test_value_may_begin_with_a_dash() -> None:
    assert parse("--id", "-x").server_id == "-x"


def test_repositories_may_be_repeated_and_positional() -> None:
    options = parse_options(["resnet.onnx", "--model-repository", "/a", "--model-store=/b"])
    assert options.repository.paths == ("resnet.onnx", "/a", "/b")


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "on", "1"])
def test_true_has_tritons_spellings(text: str) -> None:
    assert parse(f"--reuse-http-port={text}").http.reuse_port


@pytest.mark.parametrize("text", ["false", "False", "off", "0"])
def test_false_has_tritons_spellings(text: str) -> None:
    assert not parse("--allow-metrics", text).metrics.allow


def test_switch_needs_no_value_and_takes_none() -> None:
    assert not parse("--disable-auto-complete-config").repository.auto_complete
    with pytest.raises(OptionError, match="takes no value"):
        parse("--disable-auto-complete-config=true")


def test_strict_model_config_is_inverse_of_auto_complete() -> None:
    assert not parse("--strict-model-config=true").repository.auto_complete
    assert parse("--strict-model-config=false").repository.auto_complete


def test_strict_readiness_off_means_no_model_counts() -> None:
    assert parse("--strict-readiness=false", "--ready-models=a").repository.ready_rule == "none"
    assert parse("--ready-models=a,b").repository.ready_rule == "a,b"


def test_backend_settings_are_grouped_by_backend() -> None:
    options = parse(
        "--backend-config=onnxruntime,x=1",
        "--backend-config=default-max-batch-size=8",
        "--backend-config",
        "onnxruntime,y=a=b,c",
    )
    assert options.backend_config == {"onnxruntime": {"x": "1", "y": "a=b,c"}, "": {"default-max-batch-size": "8"}}


def test_metrics_settings_are_known_and_checked() -> None:
    options = parse(
        "--metrics-config=histogram_latencies=TRUE", "--metrics-config=summary_quantiles=0.5:0.1,0.9:0.01"
    )
    assert options.metrics.settings == {"histogram_latencies": "true", "summary_quantiles": "0.5:0.1,0.9:0.01"}
    with pytest.raises(OptionError, match="histogram_latencies"):
        parse("--metrics-config=histograms=true")
    with pytest.raises(OptionError, match="not a boolean"):
        parse("--metrics-config=counter_latencies=maybe")


@pytest.mark.parametrize("text", ["", "0.5", "half:0.1", "1.5:0.1", "0.5:-1", "0.5:0.1,,"])
def test_invalid_quantiles_are_rejected(text: str) -> None:
    with pytest.raises(OptionError, match=r"summary_quantiles: '.*' is not of the form QUANTILE:ERROR"):
        parse(f"--metrics-config=summary_quantiles={text}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http-port=abc"], ["--http-port", "'abc'", "not an integer"]),
        (["--http-port=65536"], ["--http-port", "too large", "65535"]),
        (["--http-port=-1"], ["--http-port", "too small"]),
        (["--http-port"], ["--http-port", "needs a value", "<integer>"]),
        (["--allow-http=maybe"], ["--allow-http", "'maybe'", "true or false"]),
        (["--drain-seconds=soon"], ["--drain-seconds", "'soon'", "not a number"]),
        (["--drain-seconds=inf"], ["--drain-seconds", "finite"]),
        (["--log-format=xml"], ["--log-format", "'default', 'ISO8601', 'json'"]),
        (["--model-load-thread-count=0"], ["--model-load-thread-count", "too small"]),
        (["--backend-config=onnxruntime"], ["--backend-config", "<setting>=<value>"]),
        (["--backend-config=onnxruntime,=1"], ["--backend-config", "names no setting"]),
        (["--htp-port=1"], ["unknown flag --htp-port", "did you mean --http-port?"]),
        (["--zzzzzz"], ["unknown flag --zzzzzz", "--help"]),
        (["-p", "1"], ["unknown flag -p"]),
        (["--http-port=8001", "--http-address=::1"], ["--http-port and --grpc-port are both 8001", "one port"]),
        (["--http-port=8002"], ["--http-port and --metrics-port are both 8002"]),
        (["--grpc-port=8002"], ["--grpc-port and --metrics-port are both 8002"]),
        (
            ["--processes=2", "--rate-limit=execution_count"],
            ["--processes=2 and --rate-limit=execution_count", "use --processes=1 or --rate-limit=off"],
        ),
        (["--rate-limit=on"], ["--rate-limit", "'on'", "'off', 'execution_count'"]),
        (["--rate-limit-resource=R"], ["--rate-limit-resource", "'R'", "<name>:<count>"]),
        (["--rate-limit-resource=R:1:2:3"], ["'R:1:2:3'", "<name>:<count>:<device>"]),
        (["--rate-limit-resource=R:-1"], ["'R:-1'", "'-1'"]),
        (["--rate-limit-resource=R:auto"], ["'R:auto'", "cpu:auto and memory_mb:auto"]),
        (["--rate-limit-resource=R:1", "--rate-limit-resource=R:2"], ["'R:2'", "repeats the amount"]),
        (["--allow-http=false", "--allow-grpc=false"], ["nothing would be served"]),
    ],
)
def test_wrong_command_line_names_flag_value_and_fix(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(*arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "argument",
    ["--model-control-mode=NONE", "--grpc-use-ssl=False", "--rate-limit=off", "--response-cache-byte-size=0"],
)
def test_values_that_ask_for_nothing_are_taken(argument: str) -> None:
    assert parse(argument) == parse()


def test_amounts_of_resources() -> None:
    options = parse("--rate-limit=execution_count", "--rate-limit-resource=R:4", "--rate-limit-resource", "R:2:1")
    assert options.rate_limit.is_on
    assert options.rate_limit.resources == (ResourceAmount("R", 4), ResourceAmount("R", 2, 1))
    assert parse("--rate-limit-resource=cpu:auto").rate_limit.resources == (ResourceAmount("cpu", None),)
    assert not parse().rate_limit.is_on


def test_rate_limiter_and_processes_pass_alone() -> None:
    assert parse("--processes=1", "--rate-limit=execution_count").rate_limit.is_on
    assert parse("--processes=2", "--rate-limit=off", "--rate-limit-resource=R:1").process_count == 2


def test_flags_without_effect_are_checked_and_remembered() -> None:
    options = parse("--http-thread-count=16", "--pinned-memory-pool-byte-size", "1024", "--http-thread-count=8")
    assert options.no_effect == ("--http-thread-count", "--pinned-memory-pool-byte-size")
    with pytest.raises(OptionError, match="not an integer"):
        parse("--http-thread-count=many")


def test_ports_of_disabled_endpoints_do_not_collide() -> None:
    assert parse("--http-port=8001", "--allow-grpc=false").http.port == 8001
    assert parse("--http-port=0", "--grpc-port=0", "--metrics-port=0").grpc.port == 0


@pytest.mark.parametrize("arguments", [["--model-repository="], ["--model-repository", ""], [""]])
def test_empty_repository_is_not_the_working_directory(arguments: list[str]) -> None:
    with pytest.raises(OptionError, match="--model-repository is empty"):
        parse_options(arguments)


def test_repository_is_required() -> None:
    with pytest.raises(OptionError, match="--model-repository must be specified"):
        parse_options(["--http-port=1"])


def test_help_fits_one_screen() -> None:
    lines = format_help().splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert "--http-port <integer>" in format_help()
    assert "--help-all" in lines[-1]


def test_help_all_shows_every_flag() -> None:
    text = format_help_all()
    assert max(map(len, text.splitlines())) <= 100
    for _, flags in GROUPS:
        for flag in flags:
            assert f"--{flag.name}" in text


def test_cache_flags_exclude_each_other() -> None:
    assert parse("--cache-config=local,size=5", "--cache-config=local,ttl=2").cache_config == {
        "local": {"size": "5", "ttl": "2"}
    }
    assert parse("--response-cache-byte-size=7").cache_config == {"local": {"size": "7"}}
    with pytest.raises(OptionError, match="exclude each other"):
        parse("--response-cache-byte-size=7", "--cache-config=local,size=5")


def test_model_control() -> None:
    options = parse("--model-control-mode=EXPLICIT", "--load-model=a", "--load-model", "b").repository
    assert (options.control_mode, options.load_models) == ("explicit", ("a", "b"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--load-model=m"], "--load-model=m needs --model-control-mode=explicit"),
        (["--model-control-mode=explicit", "--load-model=*", "--load-model=m"], "must be the only --load-model"),
    ],
)
def test_bad_model_control(arguments: list[str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(*arguments)
    assert text in str(caught.value)
