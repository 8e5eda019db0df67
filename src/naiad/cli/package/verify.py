"""`naiad verify`: prove a package of `naiad optimize` again on this machine."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, fail

if TYPE_CHECKING:
    from naiad.tools.optimize.package.verification import Verification

_DESCRIPTION = """\
Check every byte of PACKAGE against its manifest, load its model as naiad serves it, compare its answers to the stored
samples with the answers of the source, and measure it for some seconds. PACKAGE is a folder or a .zip file that
`naiad optimize` has written; code of the model runs, as it does with `naiad serve`.

The exit status is 0 if all holds, 1 if a byte or an answer differs, 2 for a path that is no package.
"""


def run(arguments: Sequence[str]) -> int:
    """Verify a package and return the exit status."""
    options = make_parser().parse_args(arguments)
    # The gate imports the server.
    from naiad.files.json_records import to_json
    from naiad.tools.optimize.package.manifest import NoPackageError
    from naiad.tools.optimize.package.verification import verify

    try:
        found = verify(options.package, is_quick=options.quick)
    except NoPackageError as error:
        return fail("naiad verify", error, BAD_OPTION)
    except OSError as error:
        return fail("naiad verify", error)
    if options.json:
        print(to_json({"holds": found.holds, "verification": found}))
    else:
        print("\n".join(_lines(found)))
    return 0 if found.holds else FAILED


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad verify", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="a folder or a .zip file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quick", action="store_true", help="without the measurement")
    return parser


def _lines(found: "Verification") -> Iterator[str]:
    if found.problems:
        yield f"{found.path}: refused, its content is not what was packaged"
        yield from (f"  {problem}" for problem in found.problems)
        return
    yield f"{found.path}: model '{found.model}', candidate {found.candidate}, packaged {found.created}"
    yield f"digest: {found.digest}"
    yield f"holds: {found.files} files, byte for byte"
    if found.error:
        yield f"does not hold: the model does not answer: {found.error}"
    if found.verdict is None:
        return
    if not found.verdict.is_accepted:
        yield "does not hold: it answers differently than its source"
        yield from (f"  {failure.message}" for failure in found.verdict.failures)
        return
    worst = ", ".join(f"{name} {value:.2g}" for name, value in found.verdict.worst_absolute.items())
    yield f"holds: answers to {found.samples} samples within the tolerances (largest differences: {worst})"
    yield from _figures(found)


def _figures(found: "Verification") -> Iterator[str]:
    if found.differences:
        yield "figures are not comparable with the figures of the package:"
        yield from (f"  {difference}" for difference in found.differences)
    else:
        yield "figures are comparable with the figures of the package: same processor, cores and versions"
    if found.measured and found.packaged:
        latency, throughput = found.measured.latency, found.measured.throughput
        was, rate = found.packaged.latency, found.packaged.throughput
        yield (
            f"  latency     {latency.value / 1e3:.3g} ms here ({latency.low / 1e3:.3g} to {latency.high / 1e3:.3g}), "
            f"{was.value / 1e3:.3g} ms when packaged"
        )
        yield (
            f"  throughput  {throughput.value:,.0f}/s here ({throughput.low:,.0f} to {throughput.high:,.0f}), "
            f"{rate.value:,.0f}/s when packaged"
        )
    if found.served:
        served = found.served
        yield (
            f"  served at the optimization: {served['throughput']['value']:,.0f}/s at concurrency "
            f"{served['concurrency']}, latency {served['latency']['value'] / 1e3:.3g} ms; repeat it with: "
            f"{served['command'].replace(f'-m {found.candidate} ', f'-m {found.model} ')}"
        )
