"""`naiad compare`: whether two models answer alike, judged as `naiad optimize` judges its candidates."""

import argparse
import json
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, fail, parse_header

if TYPE_CHECKING:
    from naiad.tools.optimize.results.verdict import Tolerance, Verdict

_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "mixed", "int8", "int8_dynamic")
_DESCRIPTION = """\
Compare the answers of CANDIDATE with the answers of SOURCE: over all samples of DATA, over inputs near them, in
batches, at the same time, and repeated. Each of both is a model file or folder, as of naiad optimize, or a model on a
running server: grpc://HOST:PORT/MODEL, http://HOST:PORT/MODEL/VERSION.
"""
_EPILOG = """\
examples:
  naiad compare model.pt model.onnx --data samples.npz
  naiad compare model.onnx model-int8.onnx --data samples.npz --precision int8
  naiad compare grpc://old:8001/model grpc://new:8001/model --data samples.npz --json
Exit status: 0 all answers are within the tolerances; 1 an answer differs; 2 an error.
"""


def run(arguments: Sequence[str]) -> int:
    """Compare both models and return the exit status."""
    flags = make_parser().parse_args(arguments)
    # The gate imports the server.
    from naiad.files.json_records import to_json
    from naiad.tools.optimize.candidate import Precision
    from naiad.tools.optimize.comparing import ComparedModel, compare
    from naiad.tools.optimize.correctness.judgement_settings import Settings
    from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
    from naiad.tools.optimize.correctness.runners.remote import RemoteModelLostError

    try:
        settings = Settings(tolerances=_tolerances(flags.tolerance), are_probed=not flags.no_probes)
        source = ComparedModel(
            flags.source,
            flags.input_tensor,
            flags.output_tensor,
            False if flags.no_batch else None,
            flags.allow_pickle,
            dict(map(parse_header, flags.header)),
        )
        candidate = replace(source, place=flags.candidate)
        found = compare(source, candidate, flags.data, Precision(flags.precision), settings)
    except (ValueError, OSError, RunnerError, RemoteModelLostError) as error:
        return fail("naiad compare", error, BAD_OPTION)
    except Exception:  # Status 1 says that the answers differ, and only that.
        traceback.print_exc()
        return BAD_OPTION
    if flags.json:
        text = to_json({"is_within": found.is_accepted, "precision": flags.precision, "verdict": found})
        # JSON has no infinity and no NaN: they are texts.
        print(json.dumps(json.loads(text, parse_constant=str), sort_keys=True))
    else:
        print("\n".join(_lines(found)))
    return 0 if found.is_accepted else FAILED


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="model whose answers are right: a file, a folder, or a URL")
    add("candidate", metavar="CANDIDATE", help="model that is judged: a file, a folder, or a URL")
    add("-d", "--data", type=Path, required=True, metavar="DATA", help="samples, as of naiad optimize")
    add(
        "--precision", choices=_PRECISIONS, default="fp32", help="of CANDIDATE; tolerances depend on it; default fp32"
    )
    text = "of an output, in place of the tolerances of the precision"
    add("--tolerance", action="append", default=[], metavar="TENSOR=ABSOLUTE,RELATIVE[,COSINE[,TOP1]]", help=text)
    add("--no-probes", action="store_true", help="compare the samples only, no inputs that are made of them")
    for which in ("input", "output"):
        text = f"{which} of a model whose file does not say it"
        add(f"--{which}-tensor", action="append", default=[], metavar="NAME:TYPE:SHAPE", help=text)
    add("--no-batch", action="store_true", help="the first dimension of tensors is not a batch")
    add("--allow-pickle", action="store_true", help="read files that can execute code")
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="header of requests to servers")
    add("--json", action="store_true", help="print the verdict as JSON")
    return parser


def _tolerances(given: Sequence[str]) -> "dict[str, Tolerance]":
    from naiad.tools.optimize.results.verdict import parse_tolerance

    return dict(parse_tolerance(text) for text in given)


def _lines(found: "Verdict") -> Iterator[str]:
    yield found.summary if found.is_accepted else f"different in {len(found.failures)} of the checks"
    rows = [("output", "check", "sample", "element", "source", "candidate", "limit")]
    for each in found.failures:
        sample, index = str(each.sample) if each.sample >= 0 else "", list(each.index) if each.index else ""
        values = (_text(each.expected), _text(each.found), _text(each.limit))
        rows.append((each.output, each.check, sample, str(index), *values))
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        yield ""
        yield from ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        yield ""
        yield from (each.message for each in found.failures)
    yield ""
    for name, value in found.worst_absolute.items():
        yield f"output '{name}': {_most(name, value, found)} in {found.samples} samples"
    yield from found.notes
    if found.not_shown:
        yield "not shown by these samples:"
        yield from (f"  {each}" for each in found.not_shown)


def _most(name: str, value: float, found: "Verdict") -> str:
    """Say by how much an output differs; texts, shapes and infinities have no distance."""
    is_other = not value and any(
        each.output == name and each.sample >= 0 and each.check != "run" for each in found.failures
    )
    return "other answers" if is_other else f"differs by {value:.3g} at most"


def _text(value: float | str) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
