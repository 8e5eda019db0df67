"""`naiad client-code`: write a typed client module for one model."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from naiad.cli.client_code import python_client, typescript_client
from naiad.cli.client_code.model_interface import ModelInterface, Naming, NoClientError, read_interface
from naiad.cli.parser import Parser, check_output, fail
from naiad.cli.sources import NoModelError, NoResponseError, add_source_arguments, ask, find_models, reject_path
from naiad.config.model_config_pb2 import ModelConfig

_DESCRIPTION = """\
Print a module with a typed client of MODEL: its inputs and outputs by name, with their datatypes and shapes, and a
call. A running server says what the tensors are, or a configuration with --model-repository.
The exit status is 1 if no client can be written, 2 for an invalid command line.
"""


class Language(NamedTuple):
    """A language of clients."""

    naming: Naming
    write: Callable[[ModelInterface], str]
    """Returns the module. Raises NoClientError."""


LANGUAGES: Mapping[str, Language] = {
    "python": Language(python_client.NAMING, python_client.python_client),
    "typescript": Language(typescript_client.NAMING, typescript_client.typescript_client),
}


def run(argv: Sequence[str]) -> int:
    """Write the client of the given model and return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        if options.output is not None:
            check_output("--output", options.output)
        text = client_code(options.model, _read_config(options), options.language)
        if options.output is None:
            print(text, end="")
        else:
            options.output.write_text(text, encoding="utf-8")
    except (NoResponseError, NoModelError, NoClientError, ValueError) as error:
        return fail("naiad client-code", error)
    except OSError as error:
        return fail("naiad client-code", f"{options.output} cannot be written: {error.strerror}")
    return 0


def client_code(model: str, config: ModelConfig, language: str) -> str:
    """Return the module of a client, in one of `LANGUAGES`. Raises NoClientError."""
    chosen = LANGUAGES[language]
    return chosen.write(read_interface(model, config, chosen.naming))


def _read_config(options: argparse.Namespace) -> ModelConfig:
    if options.model_repository is not None:
        return find_models(options.model_repository, options.model)[options.model].config
    reject_path("client-code", options.model)
    return ask(options.url, options.header, lambda client: client.model_config(options.model, options.version))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad client-code", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument("--version", default="", help="version whose tensors are read; default: the newest")
    parser.add_argument("-l", "--language", choices=list(LANGUAGES), default="python", help="default %(default)s")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write; default: standard output")
    add_source_arguments(parser, "read")
    return parser
