"""`naiad graph`: list the steps of an ensemble, or draw them as a Mermaid flowchart."""

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from naiad.cli.explain.ensemble_steps import IF, Part, parts_of
from naiad.cli.parser import Parser, fail
from naiad.cli.sources import NoModelError, NoResponseError, add_source_arguments, ask, find_models, reject_path
from naiad.client import Client
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError

_DESCRIPTION = """\
List the steps of the ensemble MODEL with their tensors, or draw them as a Mermaid flowchart. The configuration comes
from a running server, or with --model-repository from a directory.
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
        parts = parts_of(config, members)
    except (NoResponseError, NoModelError) as error:
        return fail("naiad graph", error)
    except InferError as error:
        return fail("naiad graph", error.message)
    drawing = draw_mermaid(parts) if options.mermaid else list_steps(parts)
    if options.output is None:
        print(drawing)
        return 0
    try:
        options.output.write_text(drawing + "\n", encoding="utf-8")
    except OSError as error:
        return fail("naiad graph", f"{options.output} cannot be written: {error.strerror}")
    print(f"written to {options.output}")
    return 0


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


def list_steps(parts: Sequence[Part]) -> str:
    """Return inputs, steps and outputs as a list; under a step, which tensors it reads and writes."""
    return "\n".join(_lines(parts))


def _lines(parts: Sequence[Part]) -> Iterator[str]:
    titles = {"input": "in   ", "output": "out  "}
    for part in parts:
        if part.kind in titles:
            yield f"{titles[part.kind]}{part.title}"
            continue
        yield f"step {part.title}" + (f" ({part.note})" if part.note else "")
        yield from (f"       {name} <- {tensor}" for name, tensor in part.reads)
        yield from (f"       {name} -> {tensor}" for name, tensor in part.writes)


_ESCAPES = {'"': "#quot;", "#": "#35;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
_FRAMES = {"step": ('["', '"]'), "input": ('(["', '"])'), "output": ('(["', '"])')}


def draw_mermaid(parts: Sequence[Part]) -> str:
    """Return the flowchart without a final newline; edges have the names of the ensemble's tensors."""
    return "\n".join(["flowchart LR", *_nodes(parts), *_edges(parts)])


def _nodes(parts: Sequence[Part]) -> Iterator[str]:
    for number, part in enumerate(parts):
        before, after = _FRAMES[part.kind]
        note = f"<br/>{_escaped(part.note)}" if part.note else ""
        yield f"    n{number}{before}{_escaped(part.title)}{note}{after}"


def _edges(parts: Sequence[Part]) -> Iterator[str]:
    writers = {tensor: number for number, part in enumerate(parts) for _, tensor in part.writes}
    for number, part in enumerate(parts):
        for port, tensor in part.reads:
            label = _escaped(tensor)
            if port == IF:
                yield f'    n{writers[tensor]} -. "if {label}" .-> n{number}'
            else:
                yield f'    n{writers[tensor]} -- "{label}" --> n{number}'


def _escaped(text: str) -> str:
    """Return a name as text within quotes: Mermaid has entities that begin with #."""
    return "".join(_ESCAPES.get(character, character if character.isprintable() else " ") for character in text)
