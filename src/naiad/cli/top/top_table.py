"""The table of `naiad top`: a line for each server, a row for each version, as text of a certain width."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from naiad.client.live_view import LiveView, VersionRates

_NO_RATES = VersionRates(0.0, 0.0, 0.0, 0.0, None, None, None, 0, 0)
_MAX_NAME_COLUMNS = 48


@dataclass(slots=True)
class ServerState:
    """A server with what is known of it."""

    url: str
    view: LiveView
    problem: str = "connecting"
    """Why its figures are not current; empty while they are."""


@dataclass(frozen=True, slots=True)
class TopRow:
    """A version of a model on a server."""

    server: str
    model: str
    version: str
    state: str
    rates: VersionRates
    success: int
    failure: int


def _latency(row: TopRow) -> float:
    return -(row.rates.p99_us or 0.0)


SORT_KEYS: Mapping[str, Callable[[TopRow], Any]] = {
    "rate": lambda row: -row.rates.requests_per_s,
    "name": lambda row: (row.model, row.server, row.version),
    "p99": _latency,
    "errors": lambda row: (-row.rates.failures_per_s, -row.failure),
    "queue": lambda row: -row.rates.pending,
}
"""The orders of rows; the first letter of each is its key."""


def rows_of(server: ServerState) -> Iterator[TopRow]:
    """Yield a row for each version of a server that is or was loaded."""
    known = set(server.view.versions())
    for model in server.view.models:
        for version in model["versions"]:
            name = f"{model['name']}/{version['version']}"
            has_counters = name in known
            if not has_counters and version["state"] in ("UNKNOWN", "READY"):
                continue
            totals: Mapping[str, Any] = server.view.totals(name) if has_counters else {}
            yield TopRow(
                server.url,
                printable(model["name"]),
                version["version"],
                version["state"],
                server.view.rates(name) if has_counters else _NO_RATES,
                totals.get("success", 0),
                totals.get("failure", 0),
            )


def sorted_rows(servers: Sequence[ServerState], order: str) -> list[TopRow]:
    """Return the rows of all servers; equal ones by name."""
    rows = [row for server in servers for row in rows_of(server)]
    return sorted(rows, key=lambda row: (SORT_KEYS[order](row), row.model, row.version, row.server))


def printable(text: str) -> str:
    """Return a text without characters that control a terminal: names and messages are chosen by others."""
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    )


# --- text -----------------------------------------------------------------------------------------------------------


def format_table(servers: Sequence[ServerState], order: str, *, columns: int = 0, lines: int = 0) -> list[str]:
    """Return the lines of the table.

    `columns` and `lines` are the size of the terminal, whose last line stays free; 0 for no limit.
    """
    text = [_server_line(server) for server in servers]
    rows = sorted_rows(servers, order)
    has_servers = len(servers) > 1
    cells = [_cells(row, has_servers=has_servers) for row in rows]
    heading = [*(["SERVER"] if has_servers else []), *_HEADINGS]
    left_count = 3 + has_servers
    widths = [max([len(line[i]) for line in (heading, *cells)]) for i in range(len(heading))]
    text += ["", _joined(heading, widths, left_count)]
    room = lines - 1 - len(text) if lines else len(cells)
    if len(cells) > room:
        room = max(0, room - 1)
    text += [_joined(line, widths, left_count) for line in cells[:room]]
    if len(cells) > room:
        text.append(f"and {len(cells) - room} more")
    if lines:
        text = text[: max(1, lines - 1)]
    return [printable(line)[: columns or None] for line in text]


_HEADINGS = ("MODEL", "V", "STATE", "REQ/S", "ERR/S", "P50", "P95", "P99", "BATCH", "WAIT", "EXEC", "QUEUE")


def _cells(row: TopRow, *, has_servers: bool) -> list[str]:
    rates = row.rates
    shown = [
        row.model if len(row.model) <= _MAX_NAME_COLUMNS else row.model[: _MAX_NAME_COLUMNS - 1] + "…",
        row.version,
        row.state.lower(),
        _number(rates.requests_per_s),
        _number(rates.failures_per_s),
        *(_duration(value) for value in (rates.p50_us, rates.p95_us, rates.p99_us)),
        _number(rates.batch_size),
        str(rates.pending or "-"),
        str(rates.executing or "-"),
        _duration(rates.queue_us or None),
    ]
    return [row.server, *shown] if has_servers else shown


def _joined(cells: Sequence[str], widths: Sequence[int], left_count: int) -> str:
    """Return a line: names to the left, numbers to the right."""
    aligned = [
        cell.ljust(width) if index < left_count else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def _number(value: float) -> str:
    if not value:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _duration(value_us: float | None) -> str:
    if value_us is None:
        return "-"
    if value_us < 1000:
        return f"{value_us:.0f} us"
    return f"{value_us / 1e3:.1f} ms" if value_us < 1e6 else f"{value_us / 1e6:.1f} s"


def _server_line(server: ServerState) -> str:
    view, values = server.view, server.view.server
    if not values:
        return f"{server.url}: {server.problem}"
    process = view.process
    parts = [
        f"{printable(values['name'])} {printable(values['version'])}",
        server.problem or ("ready" if values["ready"] else "not ready"),
        f"{values['process_count']} process{'es' if values['process_count'] > 1 else ''}",
    ]
    if process:
        cores = "-" if view.cpu_cores is None else f"{view.cpu_cores:.2f}"
        parts.append(f"{cores} of {values['core_count']} cores")
        parts.append(f"{process['resident_bytes'] / 2**20:.0f} MiB")
        parts.append(f"{process['in_flight']} in flight")
    for gpu in view.gpus:
        parts.append(
            f"GPU {gpu['index']} {gpu['utilization']:.0%}, "
            f"{gpu['used_bytes'] / 2**30:.1f} of {gpu['total_bytes'] / 2**30:.0f} GiB"
        )
    return f"{server.url}: {', '.join(parts)}"


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_tree(servers: Sequence[ServerState], order: str) -> list[dict[str, Any]]:
    """Return the servers as a JSON document, with the rows of each."""
    return [
        {
            "url": server.url,
            "problem": server.problem,
            "server": server.view.server,
            "process": server.view.process,
            "cpu_cores": server.view.cpu_cores,
            "gpus": list(server.view.gpus),
            "versions": [
                {
                    "model": row.model,
                    "version": row.version,
                    "state": row.state,
                    "success": row.success,
                    "failure": row.failure,
                    **asdict(row.rates),
                }
                for row in sorted_rows([server], order)
            ],
        }
        for server in servers
    ]
