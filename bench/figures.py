"""The figures that naiad promises, and whether a run of the benchmark reached them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.payloads import GRPC, HTTP_BINARY, HTTP_JSON

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One promise and what was measured."""

    name: str
    limit: str
    measured: str
    is_met: bool


def middle(row: Row, metric: str) -> float:
    """Return the median of a metric over the rounds."""
    return float(median(each[metric] for each in row["rounds"]))


def _rows(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Return the promises that the measured cases say something about."""
    return [figure for judge in _JUDGES for figure in judge(rows)]


def _at_most(name: str, measured: float, limit: float, unit: str) -> Figure:
    return Figure(name, f"≤ {limit:g} {unit}", f"{measured:.3g}", measured <= limit)


_ONNX_CPU_US = {
    (GRPC, "2 x 4"): 55,
    (GRPC, "8 x 4"): 40,
    (GRPC, "32 x 1"): 60,
    (HTTP_BINARY, "8"): 65,
    (HTTP_BINARY, "32"): 60,
}


def _onnx(rows: Sequence[Row]) -> Iterator[Figure]:
    for (transport, load), limit in _ONNX_CPU_US.items():
        for row in _rows(rows, case="onnx", server="naiad", transport=transport, load=load):
            yield _at_most(f"ONNX add/sub, {transport}, {load}", middle(row, "cpu_us"), limit, "CPU µs per request")


def _python(rows: Sequence[Row]) -> Iterator[Figure]:
    for ours in _rows(rows, case="python", server="naiad"):
        same = {key: ours[key] for key in ("case", "transport", "load")}
        for theirs in _rows(rows, server="triton", **same):
            name = f"Python add/sub, {ours['transport']}, {ours['load']}"
            ratio = median(ratios(ours, theirs, "throughput"))
            yield Figure(f"{name}: throughput", "≥ 1.5 x Triton", f"{ratio:.2f} x", ratio >= 1.5)
            p99, limit = middle(ours, "p99_us"), middle(theirs, "p99_us")
            measured = f"{p99 / 1000:.2f} ms, Triton {limit / 1000:.2f} ms"
            yield Figure(f"{name}: p99", "< Triton", measured, p99 < limit)


def ratios(ours: Row, theirs: Row, metric: str) -> list[float]:
    """Return the ratios of runs that followed each other, which leaves out what drifts more slowly."""
    return [a[metric] / b[metric] for a, b in zip(ours["rounds"], theirs["rounds"], strict=False)]


def _processes(rows: Sequence[Row]) -> Iterator[Figure]:
    for one in _rows(rows, case="processes", processes=1):
        same = {key: one[key] for key in ("case", "transport", "load")}
        for many in _rows(rows, **same):
            if many["processes"] == 2:
                ratio = median(ratios(many, one, "throughput"))
                name = f"Two processes, {one['transport']}, {one['load']}"
                measured = f"{ratio:.2f} of {_left_of_two_cores(one):.2f} possible"
                yield Figure(name, "≥ 1.4 x one process", measured, ratio >= 1.4)


def _left_of_two_cores(one: Row) -> float:
    """Return how many times what one process answers two could, if nothing got dearer by there being two.

    The load generator has the same two cores, and takes more of them the more is answered.
    """
    ours_us = middle(one, "cpu_us")
    client_us = 1e6 * float(median(each["client_cores"] / each["throughput"] for each in one["rounds"]))
    return 2e6 / (ours_us + client_us) / middle(one, "throughput")


def _image(rows: Sequence[Row]) -> Iterator[Figure]:
    for alone in _rows(rows, case="image", server="naiad", model="image_mean"):
        name = "JSON image to a model that averages it"
        yield _at_most(name, middle(alone, "cpu_us") / 1000, 6, "ms CPU per request")
    for bare in _rows(rows, case="image", server="bare"):
        threads = bare["threads"]
        name = f"ResNet-50, {threads} thread{'s' if threads > 1 else ''}"
        is_beside_json = bare["load"] != "loop"
        for ours in _rows(rows, case="image", server="naiad", threads=threads, model="resnet50"):
            if (ours["transport"] == HTTP_JSON) != is_beside_json:
                continue
            if is_beside_json:
                pairs = zip(ours["rounds"], bare["rounds"], strict=False)
                extra = median(a["cpu_us"] - b["cpu_us"] for a, b in pairs) / 1000
                yield _at_most(f"{name}: JSON", extra, 6, "ms CPU more than a bare loop")
            else:
                percent = 100 * median(ratios(ours, bare, "throughput"))
                promise = "≥ 97 % of a bare loop"
                yield Figure(f"{name}: {ours['transport']}", promise, f"{percent:.1f} %", percent >= 97)


def _large(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in _rows(rows, case="large", server="naiad"):
        name = f"64 MiB identity, {row['transport']}"
        up, down = middle(row, "up_megabytes_per_s"), middle(row, "down_megabytes_per_s")
        measured = f"{up:.0f} MB/s up, {down:.0f} MB/s down"
        yield Figure(f"{name}: each way", "≥ 600 MB/s", measured, min(up, down) >= 600)
        yield _at_most(f"{name}: peak memory", middle(row, "peak_tensors"), 3, "x the tensor")


def _shared_memory(rows: Sequence[Row]) -> Iterator[Figure]:
    for sent in _rows(rows, case="shared_memory", tensors="sent", transport=HTTP_BINARY):
        # Neither client looks at the values, and neither moves them but for what its way needs.
        for shared in _rows(rows, case="shared_memory", transport=HTTP_BINARY, tensors="shared, used in place"):
            ratio = median(ratios(shared, sent, "throughput"))
            name = "4 MiB identity, shared memory, HTTP"
            yield Figure(name, "≥ 3 x without", f"{ratio:.1f} x", ratio >= 3)


def _decoupled(rows: Sequence[Row]) -> Iterator[Figure]:
    for ours in _rows(rows, case="decoupled", server="naiad", model="count_py"):
        for theirs in _rows(rows, case="decoupled", server="triton", model="count_py"):
            name = "Decoupled Python model, one stream"
            ratio = median(ratios(ours, theirs, "responses_per_s"))
            yield Figure(f"{name}: responses", "≥ 2 x Triton", f"{ratio:.2f} x", ratio >= 2)
            first, limit = middle(ours, "first_p50_us"), middle(theirs, "first_p50_us")
            measured = f"{first / 1000:.2f} ms, Triton {limit / 1000:.2f} ms"
            yield Figure(f"{name}: first response", "before Triton", measured, first < limit)


def _ensemble(rows: Sequence[Row]) -> Iterator[Figure]:
    for single in _rows(rows, case="ensemble", model="add_sub", concurrency=8):
        for chain in _rows(rows, case="ensemble", model="chain", concurrency=8):
            pairs = zip(chain["rounds"], single["rounds"], strict=False)
            extra = median((a["cpu_us"] - b["cpu_us"]) / 3 for a, b in pairs)
            name = "Ensemble of 3 ONNX add/sub, gRPC"
            yield _at_most(name, extra, 60, "CPU µs more per step")


def _bls(rows: Sequence[Row]) -> Iterator[Figure]:
    for theirs in _rows(rows, case="bls", server="triton"):
        same = {key: theirs[key] for key in ("case", "transport", "load")}
        for ours in _rows(rows, server="naiad", model="bls_onnx", **same):
            ratio = median(ratios(ours, theirs, "throughput"))
            name = f"Python model that calls a model, {ours['transport']}, {ours['load']}: throughput"
            yield Figure(name, "≥ 1.5 x Triton", f"{ratio:.2f} x", ratio >= 1.5)


def _response_cache(rows: Sequence[Row]) -> Iterator[Figure]:
    for miss in _rows(rows, case="response_cache", model="busy"):
        for hit in _rows(rows, case="response_cache", model="busy_cached", transport=miss["transport"]):
            ratio = median(ratios(hit, miss, "cpu_us"))
            yield _at_most(f"Response cache hit, 1 KB, {miss['transport']}", ratio, 0.5, "x the CPU of a miss")


def _sequences(rows: Sequence[Row]) -> Iterator[Figure]:
    name = "Voice detector, 1,000 live sequences"
    for ours in _rows(rows, case="sequences", model="voice_oldest"):
        chunks, wrong = (sum(each[metric] for each in ours["rounds"]) for metric in ("chunks", "wrong"))
        yield Figure(f"{name}: wrong answers", "none", f"{wrong:.0f} of {chunks:,.0f}", wrong == 0)
        for plain in _rows(rows, case="sequences", model="voice_plain"):
            ratio = median(ratios(ours, plain, "cpu_us"))
            yield _at_most(f"{name}: cost", ratio, 1.5, "x the CPU without sequences")


def _many(rows: Sequence[Row]) -> Iterator[Figure]:
    for ours in _rows(rows, case="many"):
        name = f"{ours['models']:,} models"
        yield _at_most(f"{name}: ready", middle(ours, "ready_s"), 20, "s")
        yield _at_most(f"{name}: repository index", middle(ours, "index_ms"), 50, "ms")
        ratio = middle(ours, "cpu_us") / middle(ours, "alone_cpu_us")
        yield _at_most(f"{name}: request", ratio, 1.05, "x the CPU with one model")


def _adaptive(rows: Sequence[Row]) -> Iterator[Figure]:
    measured = _rows(rows, case="adaptive")
    for ours in _rows(measured, delay_us="adaptive"):
        if ours["share"] == 1.0:
            continue
        same = {"instances": ours["instances"], "load": ours["load"], "share": 1.0}
        fixed = [row for row in _rows(measured, **same) if row["delay_us"] != "adaptive"]
        ratio, names = _beside_best(ours, fixed, "served_p99_us")
        name = f"Adaptive batching, {ours['instances']} instance(s), {ours['load']} load"
        limit = f"≤ 1 x the best of {len(fixed)} fixed delays"
        yield Figure(name, limit, f"{ratio:.2f} (best: {' and '.join(names)} µs)", ratio <= 1.0)


def _beside_best(ours: Row, fixed: Sequence[Row], metric: str) -> tuple[float, list[str]]:
    """Return the median ratio of a latency in the same turn, and which fixed delays were the best.

    The best is chosen by one half of the turns and compared in the other, both ways: the smallest of several
    measured values is also the luckiest. Times are the server's: the client is late when the cores are taken.
    """
    if len(ours["rounds"]) < 2:
        best = min(fixed, key=lambda row: middle(row, metric))
        return median(ratios(ours, best, metric)), [best["delay_us"]]
    found: list[float] = []
    names: dict[str, None] = {}
    for chosen, compared in ((0, 1), (1, 0)):
        best = min(fixed, key=lambda row: middle({"rounds": row["rounds"][chosen::2]}, metric))
        found += ratios(ours, best, metric)[compared::2]
        names[best["delay_us"]] = None
    return float(median(found)), list(names)


def _start(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in _rows(rows, case="start", server="naiad", model="add_sub"):
        name = "One small ONNX model"
        yield _at_most(f"{name}: start to ready", middle(row, "startup_s"), 1.0, "s")
        yield _at_most(f"{name}: resident memory", middle(row, "rss_mib") * 2**20 / 1e6, 130, "MB")
        yield _at_most(f"{name}: idle", middle(row, "idle_cpu_percent"), 0.5, "% CPU")


def _idle_connections(rows: Sequence[Row]) -> Iterator[Figure]:
    for alone in _rows(rows, case="idle_connections", idle=0):
        for beside in _rows(rows, case="idle_connections", server=alone["server"]):
            if beside["idle"]:
                name = f"{beside['idle']:,} idle connections".replace(",", " ")
                yield _at_most(f"{name}: memory each", middle(beside, "bytes_per_connection") / 1000, 20, "KB")
                yield _at_most(
                    f"{name}: p99 of 32 other clients", median(ratios(beside, alone, "p99_us")), 1.3, "x without"
                )


def _tls(rows: Sequence[Row]) -> Iterator[Figure]:
    for secured in _rows(rows, case="tls", tls=True):
        for plain in _rows(rows, case="tls", tls=False, transport=secured["transport"]):
            pairs = zip(secured["rounds"], plain["rounds"], strict=False)
            extra = median(a["cpu_us"] - b["cpu_us"] for a, b in pairs)
            yield _at_most(f"TLS, {secured['transport']}", extra, 25, "CPU µs more")


_JUDGES: Sequence[Callable[[Sequence[Row]], Iterator[Figure]]] = (
    _onnx,
    _python,
    _processes,
    _image,
    _large,
    _shared_memory,
    _decoupled,
    _ensemble,
    _bls,
    _response_cache,
    _sequences,
    _many,
    _adaptive,
    _start,
    _idle_connections,
    _tls,
)
