"""Turns the results of a run into Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Row, figures, middle, ratios

BEGIN = "<!-- results: begin (written by python -m bench --docs) -->"
END = "<!-- results: end -->"

Column = tuple[str, Callable[[Row], str]]

_SERVERS = {
    "naiad": "naiad",
    "triton": "Triton",
    "mlserver": "MLServer",
    "fastapi": "FastAPI",
    "bare": "bare `session.run` loop",
}


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name, ""))


def _number(metric: str, scale: float = 1.0, digits: int = 0) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        if metric not in row["rounds"][0]:
            return ""
        return f"{middle(row, metric) * scale:,.{digits}f}".replace(",", " ")

    return show


def _server(row: Row) -> str:
    return _SERVERS[row["server"]]


_LOADED: Sequence[Column] = (
    ("requests/s", _number("throughput")),
    ("p50 ms", _number("p50_us", 1e-3, 2)),
    ("p99 ms", _number("p99_us", 1e-3, 2)),
    ("CPU µs / request", _number("cpu_us", digits=1)),
)
_MEMORY: Sequence[Column] = (("RSS MiB", _number("rss_mib")), ("PSS MiB", _number("pss_mib")))
_CLIENT: Sequence[Column] = (("client cores", _number("client_cores", digits=2)),)
_WHAT: Sequence[Column] = (("protocol", _text("transport")), ("connections", _text("load")), ("server", _server))
_SMALL: Sequence[Column] = (*_WHAT, *_LOADED, *_MEMORY, *_CLIENT)

SECTIONS: Mapping[str, tuple[str, str, Sequence[Column]]] = {
    "onnx": ("ONNX add/sub", "", _SMALL),
    "python": ("Python add/sub", "", _SMALL),
    "processes": (
        "Server processes",
        "ONNX add/sub with `--processes`. The load generator runs on the same cores.",
        (("processes", _text("processes")), *_SMALL),
    ),
    "ensemble": (
        "Ensemble",
        "`chain` is three steps of `add_sub`, each of which waits for the one before.",
        (
            ("connections", _text("load")),
            ("model", _text("model")),
            *_LOADED,
        ),
    ),
    "bls": (
        "Business logic scripting",
        "`bls_py` is a Python model that calls the Python add/sub with `exec`, `bls_onnx` one that calls the ONNX "
        "add/sub; one instance of each model.",
        (("model", _text("model")), *_SMALL),
    ),
    "response_cache": (
        "Response cache",
        "A model of about a millisecond and a response of 1 KB. `busy_cached` is answered from the cache.",
        (
            ("protocol", _text("transport")),
            ("model", _text("model")),
            *_LOADED,
        ),
    ),
    "json": (
        "Add/sub with JSON bodies",
        "naiad and FastAPI run the ONNX model, MLServer computes with NumPy.",
        _SMALL,
    ),
    "image": (
        "ResNet-50",
        "Over HTTP binary and gRPC two requests are in flight, with JSON one.",
        (
            ("threads", _text("threads")),
            ("server", _server),
            ("model", _text("model")),
            ("protocol", _text("transport")),
            ("connections", _text("load")),
            ("images/s", _number("throughput", digits=2)),
            ("p50 ms", _number("p50_us", 1e-3, 1)),
            ("p99 ms", _number("p99_us", 1e-3, 1)),
            ("CPU ms / image", _number("cpu_us", 1e-3, 2)),
            ("RSS MiB", _number("rss_mib")),
        ),
    ),
    "large": (
        "64 MiB identity",
        "`up` is the tensor's size over the time from the first byte sent to the first byte of the answer, the model "
        "included; `down` over the time of the answer; `round trip` over both. `16 KiB frames` is h2load's round "
        "trip: the other figures are with any frames of the server. Peak memory is what the server's highest "
        "resident size exceeds that before the first request by.",
        (
            ("protocol", _text("transport")),
            ("server", _server),
            ("up MB/s", _number("up_megabytes_per_s")),
            ("down MB/s", _number("down_megabytes_per_s")),
            ("round trip MB/s", _number("megabytes_per_s")),
            ("16 KiB frames MB/s", _number("small_frames_megabytes_per_s")),
            ("CPU ms / request", _number("cpu_us", 1e-3, 1)),
            ("peak MiB", _number("peak_mib")),
            ("peak / tensor", _number("peak_tensors", digits=2)),
        ),
    ),
    "shared_memory": (
        "4 MiB identity in shared memory",
        "One request at a time over one connection. Where the client copies, it writes its input into the region "
        "before each request and copies the output out of it after, as a client does whose data is elsewhere.",
        (
            ("protocol", _text("transport")),
            ("tensors", _text("tensors")),
            ("requests/s", _number("throughput")),
            ("p50 ms", _number("p50_us", 1e-3, 2)),
            ("CPU µs / request", _number("cpu_us")),
        ),
    ),
    "decoupled": (
        "Decoupled models",
        "A request for 100 responses over one stream, the next when all have come. `repeat` is a backend in the "
        "server's own process.",
        (
            ("server", _server),
            ("model", _text("model")),
            ("responses/s", _number("responses_per_s")),
            ("first response p50 ms", _number("first_p50_us", 1e-3, 2)),
            ("p99 ms", _number("first_p99_us", 1e-3, 2)),
            ("all responses p50 ms", _number("request_p50_us", 1e-3, 2)),
            ("CPU µs / response", _number("cpu_us", digits=1)),
        ),
    ),
    "sequences": (
        "Sequences",
        "Silero's voice detector over real speech, HTTP binary, 32 connections, batches of up to 32. Every answer "
        "is compared with what onnxruntime says by itself. With `voice_plain` the client sends the state with every "
        "chunk and gets it back.",
        (
            ("model", _text("model")),
            ("live sequences", _text("live")),
            ("chunks", _number("chunks")),
            ("wrong", _number("wrong")),
            ("chunks/s", _number("throughput")),
            ("CPU µs / chunk", _number("cpu_us", digits=1)),
        ),
    ),
    "many": (
        "Many models",
        "Small ONNX models in one repository, without configurations. A request: HTTP, JSON, one connection, one of "
        "the models, beside a server that has but one.",
        (
            ("models", _text("models")),
            ("ready after s", _number("ready_s", digits=1)),
            ("CPU s until then", _number("start_cpu_s", digits=1)),
            ("index ms", _number("index_ms", digits=1)),
            ("RSS MiB", _number("rss_mib")),
            ("CPU µs / request", _number("cpu_us", digits=1)),
            ("with one model", _number("alone_cpu_us", digits=1)),
        ),
    ),
    "adaptive": (
        "Adaptive batching",
        "A narrow network of 288 layers on one thread; a batch of 32 takes about as long as six rows one by one. "
        "Requests leave at random moments (Poisson), whether or not earlier ones have been answered, and their "
        "latency counts from then. Load: a share of what the model does when there is always something to do.",
        (
            ("instances", _text("instances")),
            ("load", _text("load")),
            ("requests/s sent", lambda row: f"{row['rate'] * row['share']:.0f}"),
            ("delay µs", _text("delay_us")),
            ("answers/s", _number("throughput")),
            ("p50 ms", _number("p50_us", 1e-3, 2)),
            ("p99 ms", _number("p99_us", 1e-3, 2)),
            ("rows / batch", _number("mean_rows", digits=1)),
            ("CPU µs / request", _number("cpu_us")),
            ("server's p99 ms", _number("served_p99_us", 1e-3, 2)),
            ("client late p99 ms", _number("late_p99_us", 1e-3, 2)),
        ),
    ),
    "start": (
        "Start, memory, idle",
        "One model, ready, no request yet.",
        (
            ("server", _server),
            ("model", _text("model")),
            ("start to ready s", _number("startup_s", digits=2)),
            *_MEMORY,
            ("idle % CPU", _number("idle_cpu_percent", digits=2)),
        ),
    ),
    "idle_connections": (
        "Idle connections",
        "ONNX add/sub over HTTP binary on 32 connections, alone and beside connections that have had one answer each "
        "and are silent. Their memory is what the server's resident size grew by, the kernel's buffers not included.",
        (
            ("idle connections", _text("idle")),
            *_LOADED,
            ("KB / idle connection", _number("bytes_per_connection", 1e-3, 1)),
        ),
    ),
    "tls": (
        "TLS",
        "ONNX add/sub over 8 connections that are kept.",
        (("protocol", _text("transport")), ("TLS", lambda row: "yes" if row["tls"] else "no"), *_LOADED),
    ),
    "perf_analyzer": (
        "perf_analyzer",
        "",
        (
            ("protocol", _text("transport")),
            ("concurrency", _text("concurrency")),
            ("server", _server),
            ("model", _text("model")),
            *_LOADED,
        ),
    ),
}


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    numeric = [bool(lines) and all(_is_number(line[index]) for line in lines) for index in range(len(header))]
    rule = ["---:" if number else "---" for number in numeric]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def _is_number(text: str) -> bool:
    return not text or text.replace(" ", "").replace(".", "").removeprefix("-").isdigit()


def _group(row: Row) -> tuple[Any, ...]:
    """Bring rows that are to be compared together; within them the order of measurement stays."""
    order = ("", "HTTP binary", "gRPC", "HTTP JSON", "none")
    if row["case"] == "image":
        return (row["threads"],)
    return (order.index(row.get("transport", "")), row.get("concurrency", 0), row.get("load", ""))


def section(case: str, rows: Sequence[Row]) -> str:
    """Return a case's heading and table."""
    title, remark, columns = SECTIONS[case]
    ordered = sorted((row for row in rows if row["case"] == case), key=_group)
    lines = [[show(row) for _, show in columns] for row in ordered]
    parts = [f"### {title}", remark, _table([name for name, _ in columns], lines)]
    return "\n\n".join(part for part in parts if part)


_COMPARED: Sequence[tuple[str, str, str]] = (
    ("python", "Python add/sub", "add_sub_py"),
    ("bls", "BLS, Python", "bls_py"),
    ("json", "Add/sub", "add_sub"),
)


def _comparison(rows: Sequence[Row]) -> str:
    """Return a table of ratios with a row for each transport: naiad's figure divided by each peer's, load by load."""
    shares: dict[tuple[str, str], list[list[str]]] = {}
    for case, title, model in _COMPARED:
        same_model = [row for row in rows if row["case"] == case and row["model"] == model]
        for theirs in sorted((row for row in same_model if row["server"] != "naiad"), key=_group):
            for ours in same_model:
                if ours["server"] == "naiad" and _group(ours) == _group(theirs):
                    found = [
                        f"{median(ratios(ours, theirs, name)):.2f}" for name in ("throughput", "p99_us", "cpu_us")
                    ]
                    shares.setdefault((f"{title}, {ours['transport']}", _server(theirs)), []).append(
                        [ours["load"], *found]
                    )
    header = ["case", "other server", "in flight", "requests/s", "p99", "CPU"]
    return _table(
        header, [[*what, *(", ".join(each) for each in zip(*loads, strict=True))] for what, loads in shares.items()]
    )


def summary(results: Mapping[str, Any]) -> str:
    """Return the part of the report for the documentation: the comparison, the missed figures, the notes."""
    rows = results["rows"]
    found = figures(rows)
    lines = [[each.name, each.limit, each.measured] for each in found if not each.is_met]
    parts = [
        _conditions(results),
        "### Other servers",
        "naiad's value divided by the value of the other server: requests/s above 1 and the rest below 1 are better.",
        _comparison(rows),
        "### Limits",
        f"{len(found) - len(lines)} of {len(found)} figures reach their limit (`bench/results/results.md`). "
        "These miss it:",
        _table(["case", "limit", "measured"], lines),
    ]
    if results["notes"]:
        parts += ["### Notes", "\n".join(f"- {' '.join(note.split())}" for note in results["notes"])]
    return "\n\n".join(parts) + "\n"


def markdown(results: Mapping[str, Any]) -> str:
    """Return the whole report."""
    rows = results["rows"]
    parts = [_conditions(results)]
    found = figures(rows)
    if found:
        lines = [[each.name, each.limit, each.measured, "yes" if each.is_met else "**no**"] for each in found]
        parts += ["### Figures to reach", _table(["case", "figure", "measured", "reached"], lines)]
    parts += [section(case, rows) for case in SECTIONS if any(row["case"] == case for row in rows)]
    if results["notes"]:
        parts += ["### Notes of this run", "\n".join(f"- {' '.join(note.split())}" for note in results["notes"])]
    return "\n\n".join(parts) + "\n"


def _conditions(results: Mapping[str, Any]) -> str:
    facts, options = results["facts"], results["options"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    rounds = f"medians of {options['rounds']} rounds" if options["rounds"] > 1 else "one round"
    return (
        f"{facts['date']}, commit {facts['commit'] or 'unknown'}: {facts['cores']} cores ({facts['cpu']}), "
        f"{facts['memory_gib']} GiB, {facts['system']}, Linux {facts['kernel']}, Python {facts['python']}; "
        f"{versions}. {rounds[0].upper()}{rounds[1:]} of {options['seconds']:g} s.{_speed(facts.get('sum_ms', {}))}"
    )


def _speed(sum_ms: Mapping[str, float]) -> str:
    """Say how fast the cores were, which is not the same at all times where machines are shared."""
    if not sum_ms:
        return ""
    least, most = min(sum_ms.values()), max(sum_ms.values())
    return f" A core added up a million numbers in Python in {least:.0f} to {most:.0f} ms before the cases."


def refresh(page: Path, text: str) -> None:
    """Put `text` between the markers of a page. Raises ValueError when they are not there."""
    content = page.read_text()
    if BEGIN not in content or END not in content:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r} to write the results between")
    before, rest = content.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
