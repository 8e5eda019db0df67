"""`naiad split`: cut an ONNX model, or a program of torch.export, into stages that run as a pipeline."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.parser import Parser, fail
from naiad.core.errors import InferError

if TYPE_CHECKING:
    from naiad.tools.split.split_stages import Split

_DESCRIPTION = """\
Cut MODEL, an ONNX file or an archive of torch.export (.pt2), into stages, and write them and the ensemble that
connects them to a model repository. The whole model and the stages run on the same input first; if their outputs
differ, nothing is written.
The exit status is 1 if the model cannot be split, 2 for an invalid command line.
"""
_SHOWN_TENSORS = 3


def run(argv: Sequence[str]) -> int:
    """Split the model and return the exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.stages < 2:
        parser.error(f"--stages is {options.stages}; use 2 or more")
    try:
        devices = [] if options.devices == "cpu" else [int(each) for each in options.devices.split(",")]
    except ValueError:
        parser.error(f"--devices is '{options.devices}'; use cpu, or numbers of GPUs, for example 0,1")
    if not options.model.is_file():
        return fail(
            "naiad split", f"{options.model} is not a file; name an .onnx file, or a .pt2 file of torch.export"
        )
    from naiad.tools.split.split_stages import SplitOptions, split_model  # modules of a server

    try:
        split = split_model(
            options.model,
            options.output,
            SplitOptions(options.stages, options.by, devices, options.isolation, options.data),
        )
    except ModuleNotFoundError as error:
        extra = "torch" if error.name == "torch" else "split"
        return fail("naiad split", f"package '{error.name}' is missing; pip install 'naiad[{extra}]'")
    except InferError as error:
        return fail("naiad split", error.message)
    except OSError as error:
        return fail("naiad split", f"--output {options.output} cannot be written: {error.strerror}")
    print(format_table(split))
    print(f"\nnaiad serve {options.output}")
    return 0


def format_table(split: "Split") -> str:
    """Return the stages and the comparison as text."""
    width = max(len(stage.name) for stage in split.stages)
    lines = [f"{'stage':<{width}}  {'nodes':>5}  {'parameters':>12}  {'time':>10}  tensors to later stages"]
    for stage in split.stages:
        shown = [f"{name} ({_bytes(size)})" for name, size in stage.crossing[:_SHOWN_TENSORS]]
        if len(stage.crossing) > _SHOWN_TENSORS:
            rest = stage.crossing[_SHOWN_TENSORS:]
            shown.append(f"and {len(rest)} more ({_bytes(sum(size for _, size in rest))})")
        lines.append(
            f"{stage.name:<{width}}  {stage.node_count:>5}  {_bytes(stage.parameter_bytes):>12}  "
            f"{stage.time_ms:>7.2f} ms  {', '.join(shown) or '-'}"
        )
    threads = "1 thread" if split.threads == 1 else f"{split.threads} threads"
    lines.append(f"whole model: {split.whole_ms:.2f} ms with {threads}, as each stage")
    for name, apart, ratio in split.differences:
        same = "equal" if apart == 0 else f"differs by at most {apart:.3g}, {ratio:.1e} of its largest value"
        lines.append(f"output {name}: {same}")
    if not split.can_batch:
        lines.append("no batching: not all tensors between the stages have one row for each row of the inputs")
    return "\n".join(lines)


def _bytes(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad split",
        description=_DESCRIPTION,
        epilog="example: naiad split bert.onnx --stages 2 --output models",
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an .onnx or .pt2 file; its name becomes the ensemble's")
    add("--stages", type=int, required=True, metavar="N", help="number of stages, 2 or more")
    add(
        "--by",
        choices=("time", "bytes"),
        default="time",
        help="balance the stages by measured time (default) or by bytes of parameters",
    )
    add("--data", type=Path, metavar="FILE", help=".npz file with the inputs by name; default random")
    add("--output", type=Path, default=Path("models"), metavar="DIR", help="model repository; default models")
    add("--devices", default="cpu", metavar="LIST", help="cpu (default), or GPUs for the stages, for example 0,1")
    add(
        "--isolation",
        choices=("process",),
        default="",
        help="run each stage in a worker process; default: threads of the server",
    )
    return parser
