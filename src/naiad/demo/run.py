"""The demonstration from end to end: builds the repository, starts the server, sends requests, prints the results."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from naiad.demo import burst, clients, repository
from naiad.demo.packages import fetch_all
from naiad.demo.progress import waiting
from naiad.demo.server import Running, Settings, serving

BURST_MODEL = "file_type"


def run(settings: Settings, console: Console) -> int:
    """Run the demonstration; return the exit code. With `keep_running` it ends when the server is stopped."""
    fetch_all(repository.PACKAGES, console)
    root = repository.build(settings.repository)
    with serving(root, settings, console, BURST_MODEL) as running, waiting(console, "sending requests"):
        console.print(_query(root, running))
        client = clients.Client("gRPC", running.grpc_url)
        rows = clients.file_features(client)
        client.close()
        burst.show(burst.send(running.grpc_url, BURST_MODEL, "bytes", rows), BURST_MODEL, console)
    return 0


def _query(root: Path, running: Running) -> Table:
    table = Table(title="Responses of the models", title_justify="left")
    for heading in ("model", "protocol"):
        table.add_column(heading, no_wrap=True)
    for heading in ("given", "answer"):
        table.add_column(heading, overflow="fold")
    table.add_column("ms", justify="right")
    for protocol, url in (("HTTP", running.http_url), ("gRPC", running.grpc_url)):
        client = clients.Client(protocol, url)
        findings = clients.file_types(client, repository.labels(root, "file_type"))
        findings += clients.sentences(client)
        findings += clients.text_lines(client, repository.labels(root, "text_line"))
        client.close()
        for found in findings:
            table.add_row(found.model, found.protocol, found.given, found.answer, f"{found.latency_ms:.1f}")
        table.add_section()
    return table
