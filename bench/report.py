"""Turns the results of `bench.comparison` into Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

BEGIN = "<!-- results: begin (written by python -m bench.comparison --docs) -->"
END = "<!-- results: end -->"

Row = Mapping[str, Any]
_SERVERS = {"naiad": "naiad", "triton": "Triton", "mlserver": "MLServer", "fastapi": "FastAPI"}
_TITLES = {"python": "Python add/sub", "bls": "BLS, Python", "json": "Add/sub", "onnx": "ONNX add/sub"}


def middle(row: Row, metric: str) -> float:
    """Return the median of a metric over the rounds."""
    return float(median(each[metric] for each in row["rounds"]))


def _server(row: Row) -> str:
    name = str(row["server"])
    return _SERVERS.get(name, name)


def _number(metric: str, scale: float = 1.0, digits: int = 0) -> Callable[[Row], str]:
    return lambda row: f"{middle(row, metric) * scale:,.{digits}f}".replace(",", " ")


_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "protocol": lambda row: str(row["transport"]),
    "connections": lambda row: str(row["load"]),
    "server": _server,
    "requests/s": _number("throughput"),
    "p50 ms": _number("p50_us", 1e-3, 2),
    "p99 ms": _number("p99_us", 1e-3, 2),
    "CPU µs / request": _number("cpu_us", digits=1),
    "RSS MiB": _number("rss_mib"),
    "PSS MiB": _number("pss_mib"),
    "client cores": _number("client_cores", digits=2),
}


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *lines))


def _load(row: Row) -> tuple[Any, ...]:
    """Bring rows that are to be compared together; within them the order of measurement stays."""
    return (("HTTP binary", "gRPC", "HTTP JSON").index(row["transport"]), row["concurrency"], row["load"])


def _comparison(rows: Sequence[Row]) -> str:
    """Return a table of ratios with a row for each transport: naiad's figure divided by each peer's, load by load.

    Each is the median of the ratios of runs that followed each other, which leaves out what drifts more slowly.
    """
    shares: dict[tuple[str, str], list[list[str]]] = {}
    for case, title in _TITLES.items():
        of_case = sorted((row for row in rows if row["case"] == case), key=_load)
        ours = {_load(row): row for row in of_case if row["server"] == "naiad"}
        for theirs in (row for row in of_case if row["server"] != "naiad" and _load(row) in ours):
            pairs = list(zip(ours[_load(theirs)]["rounds"], theirs["rounds"], strict=False))
            ratios = [
                f"{median(a[name] / b[name] for a, b in pairs):.2f}" for name in ("throughput", "p99_us", "cpu_us")
            ]
            line = (f"{title}, {theirs['transport']}", _server(theirs))
            shares.setdefault(line, []).append([theirs["load"], *ratios])
    lines = [[*what, *(", ".join(each) for each in zip(*loads, strict=True))] for what, loads in shares.items()]
    return _table(["case", "other server", "in flight", "requests/s", "p99", "CPU"], lines)


def summary(results: Mapping[str, Any]) -> str:
    """Return the part of the report for the documentation: the comparison and the notes."""
    parts = [
        _conditions(results),
        "### Other servers",
        "naiad's value divided by the value of the other server: requests/s above 1 and the rest below 1 are better.",
        _comparison(results["rows"]),
    ]
    if results["notes"]:
        parts += ["### Notes", "\n".join(f"- {' '.join(note.split())}" for note in results["notes"])]
    return "\n\n".join(parts) + "\n"


def markdown(results: Mapping[str, Any]) -> str:
    """Return the whole report: the summary, and a table of all rows for each case."""
    parts = [summary(results).rstrip()]
    for case, title in _TITLES.items():
        rows = sorted((row for row in results["rows"] if row["case"] == case), key=_load)
        parts += [f"### {title}", _table(list(_COLUMNS), [[show(row) for show in _COLUMNS.values()] for row in rows])]
    return "\n\n".join(parts) + "\n"


def _conditions(results: Mapping[str, Any]) -> str:
    facts, options = results["facts"], results["options"]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return (
        f"{facts['date']}, commit {facts['commit'] or 'unknown'}: {facts['cores']} cores ({facts['cpu']}), "
        f"{facts['memory_gib']} GiB, {facts['system']}, Linux {facts['kernel']}, Python {facts['python']}; "
        f"{versions}. Medians of {options['rounds']} rounds of {options['seconds']:g} s."
    )


def refresh(page: Path, text: str) -> None:
    """Put `text` between the markers of a page. Raises ValueError when they are not there."""
    content = page.read_text()
    if BEGIN not in content or END not in content:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r} to write the results between")
    before, rest = content.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
