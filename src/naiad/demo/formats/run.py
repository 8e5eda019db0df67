"""`naiad demo formats` from end to end."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tritonclient.utils import InferenceServerException

from naiad.demo.formats.catalog import FORMATS, answers, build
from naiad.demo.formats.classifier import train
from naiad.demo.formats.measure import Measurement, measure
from naiad.demo.progress import waiting
from naiad.demo.server import Settings, serving

RATE_S = 1.0
_WIDE_COLUMNS = 120
_FIGURES = ("correct", "agree", "max diff", "p50 ms", "req/s", "load s", "MiB")


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
        console.print(table_of(found, len(digits.labels), console.width))
    return 0 if [each.agreeing for each in found.values()] == [len(digits.labels)] * len(formats) else 1


def table_of(found: dict[str, Measurement], count: int, columns: int) -> Table:
    """Return the table; below `_WIDE_COLUMNS` columns it is without lines and versions, so that no cell is cut."""
    is_wide = columns >= _WIDE_COLUMNS
    table = Table(title=f"{count} pictures of digits, each asked over HTTP and gRPC", title_justify="left")
    if not is_wide:
        table.box, table.pad_edge, table.collapse_padding = None, False, True
    texts = ("format", "backend", "with") if is_wide else ("format", "backend")
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in _FIGURES:
        table.add_column(heading, justify="right", no_wrap=True)
    kind = FORMATS[0].kind
    for each in FORMATS:
        if each.kind != kind:
            kind = each.kind
            table.add_section()
        row = found.get(each.model)
        names = (each.name, each.backend, *([each.version] if is_wide and not each.missing else []))
        if row is None:
            table.add_row(*names[: len(texts) - 1], escape(each.missing) or "failed")
            continue
        memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        table.add_row(
            *names, f"{row.correct}/{count}", f"{row.agreeing}/{count}",
            f"{row.max_difference:.0e}", f"{row.p50_ms:.2f}", f"{row.rate:.0f}", f"{row.load_s:.1f}", memory,
        )  # fmt: skip
    return table
