"""`naiad demo formats` from end to end."""

from rich.console import Console
from rich.table import Table
from tritonclient.utils import InferenceServerException

from naiad.demo.formats.catalog import FORMATS, answers, build
from naiad.demo.formats.classifier import train
from naiad.demo.formats.measure import Measurement, measure
from naiad.demo.progress import waiting
from naiad.demo.server import Settings, serving

RATE_S = 1.0
_HEADINGS = ("format", "backend", "with", "correct", "agree", "max diff", "p50 ms", "req/s", "load s", "MiB")


def run(settings: Settings, console: Console) -> int:
    """Run the demonstration; return the exit code: 1 if an answer differs from that of the framework."""
    with waiting(console, "training the classifier and writing its formats"):
        digits = train()
        formats = build(settings.repository, digits)
        expected = answers(digits, formats)
    console.print(f"A network of {sum(w.size + b.size for w, b in digits.layers):,} weights, and forests.")
    found: dict[str, Measurement] = {}
    explicit = ("--model-control-mode=explicit",)
    with (
        serving(settings.repository, settings, console, formats[0].model, explicit) as running,
        waiting(console, "loading and asking one format after the other"),
    ):
        for each in formats:
            try:
                found[each.model] = measure(each, running, digits, expected[each.model], RATE_S)
            except InferenceServerException as error:
                console.print(f"{each.name}: {error}", style="red", markup=False, highlight=False)
        console.print(_table(found, len(digits.labels)))
    return 0 if [each.agreeing for each in found.values()] == [len(digits.labels)] * len(formats) else 1


def _table(found: dict[str, Measurement], count: int) -> Table:
    table = Table(title=f"{count} pictures of digits, each asked over HTTP and gRPC", title_justify="left")
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if number < len(("format", "backend", "with")) else "right")
    kind = FORMATS[0].kind
    for each in FORMATS:
        if each.kind != kind:
            kind = each.kind
            table.add_section()
        row = found.get(each.model)
        if row is None:
            table.add_row(each.name, each.backend, each.missing or "failed")
            continue
        memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        table.add_row(
            each.name, each.backend, each.version, f"{row.correct}/{count}", f"{row.agreeing}/{count}",
            f"{row.max_difference:.0e}", f"{row.p50_ms:.2f}", f"{row.rate:.0f}", f"{row.load_s:.1f}", memory,
        )  # fmt: skip
    return table
