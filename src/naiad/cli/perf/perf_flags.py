"""The flags of `naiad perf`: perf_analyzer's, with its names and defaults, and naiad's own."""

import argparse
from collections.abc import Sequence

from naiad.cli.parser import Parser, time_in

_WHOLE_MS = time_in("ms", is_whole=True)
BAD_OPTION = 3
"""Exit status of perf_analyzer for a wrong command line."""

_DESCRIPTION = """\
Send inference requests to a server of KServe v2 (naiad, Triton, MLServer, KServe), measure, and
report. The flags are perf_analyzer's. Latency counts from the moment at which a request was due.
"""
_EPILOG = """\
example: naiad perf -m resnet --concurrency-range 1:16:5 --html report.html

exit status:
  0   all loads were measured
  1   a load without a success, more errors than --max-errors, a wrong answer or a request without an answer, or
      worse than the baseline by more than --fail-over
  2   not stable (--strict, or the rule of three windows), or limited by the generator (--strict)
  3   invalid command line
  99  anything else, for example a server that cannot be reached
"""


def make_parser(program: str = "naiad perf") -> Parser:
    """Return the parser; `program` is the name in its messages."""
    parser = Parser(
        prog=program,
        usage="%(prog)s -m MODEL [-u HOST:PORT] [-i PROTOCOL] [FLAG ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error_status = BAD_OPTION
    _add_what(parser.add_argument_group("what is measured"))
    _add_load(parser.add_argument_group("load"))
    _add_measuring(parser.add_argument_group("measuring"))
    _add_sequences(parser.add_argument_group("sequences"))
    _add_data(parser.add_argument_group("input data"))
    _add_server(parser.add_argument_group("connection"))
    _add_output(parser.add_argument_group("output"))
    _add_ignored(parser)
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-m",
        "--model",
        dest="models",
        action="append",
        metavar="MODEL",
        help="model; several -m share the load, MODEL=WEIGHT for unequal shares",
    )
    add("-x", dest="version", default="", metavar="VERSION", help="model version; default the newest")
    add("-b", dest="batch_size", type=int, default=1, metavar="N", help="rows in a request; default 1")
    add(
        "--service-kind",
        default="triton",
        choices=("triton", "triton_c_api", "in_process"),
        help="triton: a server of KServe v2; triton_c_api, in_process: a model of --model-repository in this process",
    )
    add("--model-repository", default="", metavar="DIR", help="repository of a model in this process")
    add("--bls-composing-models", default="", metavar="LIST", help="models that a BLS model calls: A,B:2")


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--concurrency-range",
        metavar="START:END:STEP",
        help="requests outstanding (default 1); END 0: until the latency limit is reached",
    )
    add(
        "--periodic-concurrency-range",
        metavar="START:END:STEP",
        help="START requests, and STEP more each time the last ones have --request-period responses; END in total",
    )
    add("--request-period", type=int, default=10, metavar="N", help="responses; default 10")
    add("--request-rate-range", metavar="START:END:STEP", help="requests/s, sent when they are due")
    add(
        "--request-distribution",
        choices=("constant", "poisson"),
        default="constant",
        help="gaps of a request rate; default constant",
    )
    add("--request-intervals", metavar="FILE", help="gaps between requests in us, one a line, repeated")
    add("--fixed-schedule", action="store_true", help="send at the `timestamp` (ms) of each data entry")
    add(
        "--ramp",
        metavar="PHASES",
        help="a rate that changes: 30s:0-500,5s:2000,30s:500 is a rise, a spike and a level",
    )
    add("--replay", action="append", metavar="FILE", help="send traffic recorded by --record-traffic")
    add(
        "--replay-url",
        default="",
        metavar="URL",
        help="address for requests recorded over the other protocol, for example grpc://HOST:8001",
    )
    add("--replay-speed", type=float, default=1.0, metavar="FACTOR", help="recorded gaps are divided by it")
    add("--binary-search", action="store_true", help="find the highest load within --latency-threshold")
    add("-l", "--latency-threshold", type=time_in("ms"), default=0.0, metavar="MS", help="latency limit")
    add("--streaming", action="store_true", help="gRPC streams, for sequences and decoupled models")
    add("-a", "--async", dest="is_async", action="store_true", help="accepted; sending never blocks")
    add("--sync", action="store_true", help="accepted; sending never blocks")
    add("--processes", type=int, default=0, metavar="N", help="generator processes; default as needed")


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--measurement-mode",
        choices=("confidence", "time_windows", "count_windows"),
        help="confidence: until the 95 %% intervals are narrow; *_windows: until three windows agree",
    )
    add(
        "-p",
        "--measurement-interval",
        type=_WHOLE_MS,
        default=5000,
        metavar="MS",
        help="length of a window",
    )
    add("--measurement-request-count", type=int, default=50, metavar="N", help="requests in a window")
    add(
        "-s",
        "--stability-percentage",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="greatest width of intervals (10: 5 %% to each side), or difference of windows; default 10",
    )
    add("-r", "--max-trials", type=int, default=10, metavar="N", help="maximum number of windows")
    add("--duration", type=time_in("s"), metavar="S", help="longest time of a load; default -p times -r")
    add("--max-errors", metavar="N|P%%", help="errors of a load allowed, as a count or a percentage; default 1%%")
    add("--percentile", type=int, metavar="P", help="judge this percentile instead of the mean latency")
    add("--request-count", type=int, default=0, metavar="N", help="measure exactly N requests; 0: until stable")
    add("--warmup-request-count", type=int, default=0, metavar="N", help="requests not measured before")
    add("--slo", type=time_in("ms"), default=0.0, metavar="MS", help="responses within it count as goodput")
    add("--repeat", type=int, default=1, metavar="N", help="measure all loads N times, in turn")
    add("--strict", action="store_true", help="exit with 2 if unstable or limited by the generator")


def _add_sequences(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--num-of-sequences", type=int, default=4, metavar="N", help="live sequences of a request rate")
    add("--sequence-length", type=int, metavar="N", help="requests in a sequence; default 20")
    add("--sequence-length-variation", type=float, default=20.0, metavar="PERCENT", help="default 20")
    add("--sequence-id-range", metavar="START:END", help="ids; default a range of this run's own")
    add("--serial-sequences", action="store_true", help="one outstanding request in a sequence")


def _add_data(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--input-data",
        action="append",
        metavar="SOURCE",
        help="random (default), zero, a JSON file, a directory, .npy or .npz files, pictures",
    )
    add("--shape", action="append", default=[], metavar="NAME:DIMS", help="INPUT:3,224,224")
    add(
        "--input-bound",
        action="append",
        default=[],
        metavar="NAME:N",
        help="random integers of an input are below N; default 128",
    )
    add(
        "--image-scale",
        type=float,
        default=1 / 255,
        metavar="FACTOR",
        help="pixels of pictures are multiplied by it for floating-point inputs; default 1/255",
    )
    add("--string-data", metavar="TEXT", help="value of string inputs")
    add("--string-length", type=int, default=128, metavar="N", help="of random strings; default 128")
    add(
        "--request-parameter",
        action="append",
        default=[],
        metavar="NAME:VALUE:TYPE",
        help="TYPE: int, bool, string, float",
    )
    add("--shared-memory", choices=("none", "system", "cuda"), default="none", help="of inputs and outputs")
    add(
        "--output-shared-memory-size",
        type=int,
        default=102_400,
        metavar="BYTES",
        help="of an output of variable size; default 102400",
    )
    add("--input-tensor-format", choices=("binary", "json"), default="binary", help="HTTP only")
    add("--output-tensor-format", choices=("binary", "json"), default="binary", help="HTTP only")
    add(
        "--validation-tolerance",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of floating-point outputs; default 0",
    )
    add("--random-seed", type=int, default=0, metavar="N", help="of data and of random gaps; default 0")


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-u", "--url", default="", metavar="HOST:PORT", help="default localhost:8000, gRPC 8001")
    add("--endpoint", default="", metavar="PATH", help="written to --profile-export-file")
    add("-i", dest="protocol", default="http", metavar="PROTOCOL", help="http (default) or grpc")
    add("-H", dest="headers", action="append", default=[], metavar="NAME:VALUE", help="header, metadata")
    add("--request-timeout", type=time_in("s"), default=60.0, metavar="S", help="longer counts as an error")
    add("--grpc-compression-algorithm", dest="compression", choices=("none", "gzip", "deflate"), default="none")
    add("--ssl-grpc-use-ssl", nargs="?", const="true", default="false", metavar="BOOL")
    for kind, name in (("grpc", "root-certifications"), ("https", "ca-certificates")):
        add(f"--ssl-{kind}-{name}-file", dest=f"{kind}_ca_file", default="", metavar="FILE")
    for kind, name in (("grpc", "certificate-chain"), ("https", "client-certificate")):
        add(f"--ssl-{kind}-{name}-file", dest=f"{kind}_certificate_file", default="", metavar="FILE")
    for kind in ("grpc", "https"):
        add(f"--ssl-{kind}-private-key-file", dest=f"{kind}_key_file", default="", metavar="FILE")
    add("--ssl-https-verify-peer", type=int, choices=(0, 1), default=1)
    add("--ssl-https-verify-host", type=int, choices=(0, 1, 2), default=2)
    for kind in ("client-certificate", "private-key"):
        add(f"--ssl-https-{kind}-type", choices=("PEM",), default="PEM")
    add("--metrics-url", default="", metavar="URL", help="default localhost:8002/metrics")
    add(
        "--metrics-interval",
        type=_WHOLE_MS,
        default=1000,
        metavar="MS",
        help="between reads of the metrics; default 1000",
    )
    add("--collect-metrics", action="store_true", help="read the server's metrics during the run")


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-f", "--latency-report-file", default="", metavar="FILE", help="CSV, as perf_analyzer's")
    add("--verbose-csv", action="store_true", help="more columns in the CSV")
    add("--profile-export-file", default="", metavar="FILE", help="every request, as perf_analyzer's")
    add("--json", default="", metavar="FILE", help="the result for tools and for --baseline")
    add("--html", default="", metavar="FILE", help="a report with charts, in one file")
    add("--baseline", default="", metavar="FILE", help="compare with the --json of an earlier run")
    add("--fail-over", default="5%", metavar="PERCENT", help="exit with 1 if worse by more; default 5%%")
    add("--timing-share", type=float, default=0.02, metavar="SHARE", help="requests with server times")
    add("-v", dest="verbosity", action="count", default=0, help="more of each load; -v -v every window")
    add("-q", "--quiet", action="store_true", help="no progress display")


def _add_ignored(parser: argparse.ArgumentParser) -> None:
    """Accept flags of perf_analyzer that need nothing here, so that scripts keep working."""
    add = parser.add_argument
    for flag in ("--max-threads", "--trace-level", "--trace-rate", "--trace-count", "--log-frequency"):
        add(flag, help=argparse.SUPPRESS)
    for flag in ("--triton-server-directory", "--model-signature-name"):
        add(flag, help=argparse.SUPPRESS)
    add("-t", dest="old_concurrency", type=int, help=argparse.SUPPRESS)
    add("-c", dest="old_end", type=int, help=argparse.SUPPRESS)
    add("-d", dest="old_dynamic", action="store_true", help=argparse.SUPPRESS)
    add("-z", dest="old_zero", action="store_true", help=argparse.SUPPRESS)
    add("--data-directory", dest="old_directory", help=argparse.SUPPRESS)
    add("--version", action="version", version=_version())


def _version() -> str:
    from naiad.core.version import __version__

    return f"naiad {__version__}"


def parse(arguments: Sequence[str], program: str = "naiad perf") -> argparse.Namespace:
    """Return the parsed flags. Ends the process with status 3 for a wrong command line."""
    return make_parser(program).parse_args(list(arguments))
