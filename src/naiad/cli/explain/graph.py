"""`naiad graph`: draw the pipeline of an ensemble."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.cli.explain.drawing import draw_mermaid, draw_text, list_steps
from naiad.cli.explain.layout import Pipeline, lay_out
from naiad.cli.parser import Parser, fail
from naiad.cli.sources import NoModelError, NoResponseError, add_source_arguments, ask, find_models, reject_path
from naiad.client import Client
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError

_DESCRIPTION = """\
Draw the pipeline of the ensemble MODEL in the terminal, or as a Mermaid flowchart. The configuration comes from a
running server, or with --model-repository from a directory.
The exit status is 1 if there is nothing to draw, 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Draw the given model and return the exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    try:
        if options.model_repository is None:
            reject_path("graph", options.model)
            config, members = _ask(options.url, options.model, options.header)
        else:
            config, members = _read(options.model_repository, options.model)
        pipeline = lay_out(config, members)
    except (NoResponseError, NoModelError) as error:
        return fail("naiad graph", error)
    except InferError as error:
        return fail("naiad graph", error.message)
    is_terminal = options.output is None and sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else 0
    drawing = draw_mermaid(pipeline) if options.mermaid else picture(pipeline, columns)
    if options.output is None:
        print(drawing)
        return 0
    try:
        options.output.write_text(drawing + "\n", encoding="utf-8")
    except OSError as error:
        return fail("naiad graph", f"{options.output} cannot be written: {error.strerror}")
    print(f"written to {options.output}")
    return 0


def picture(pipeline: Pipeline, columns: int) -> str:
    """Return the drawing; a list if the terminal has fewer `columns` than it needs. 0 columns: no limit."""
    if columns and pipeline.width > columns:
        note = f"the picture needs {pipeline.width} columns, this terminal has {columns}; try --mermaid"
        return f"{list_steps(pipeline)}\n({note})"
    return draw_text(pipeline)


def _ask(url: str, model: str, headers: Sequence[str]) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
    """Return the configurations of a model and its members on a server. Raises NoResponseError."""

    async def configs(client: Client) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
        config = await client.model_config(model)
        names = sorted({step.model_name for step in config.ensemble_scheduling.step})
        members = await asyncio.gather(*[client.model_config(name) for name in names])
        return config, dict(zip(names, members, strict=True))

    return ask(url, headers, configs)


def _read(repository: Path, model: str) -> tuple[ModelConfig, Mapping[str, ModelConfig]]:
    """Return the configurations of a model and of all other models in a repository. Raises NoModelError."""
    reports = find_models(repository, model)
    return reports[model].config, {name: report.config for name, report in reports.items()}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad graph", description=_DESCRIPTION, epilog="example: naiad graph pipeline --model-repository models"
    )
    parser.add_argument("model", metavar="MODEL", help="the ensemble's name")
    parser.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart, for Markdown pages")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to a file instead of standard output")
    add_source_arguments(parser, "draw")
    return parser
