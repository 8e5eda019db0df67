"""What a verb asks or reads: a running server, through naiad's own client, or a repository."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from naiad.backend.registry import BackendRegistry
from naiad.cli.parser import parse_header
from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.repository.model_check import ModelReport, check_path

T = TypeVar("T")

_TIMEOUT_S = 10.0
DEFAULT_URL = "http://localhost:8000"


class NoResponseError(Exception):
    """The server has not responded, or with an error; the message has the reason and a fix."""


def ask(
    url: str, headers: Sequence[str], query: Callable[[Client], Awaitable[T]], *, timeout_s: float = _TIMEOUT_S
) -> T:
    """Return the result of `query` for the server at `url`, which is HTTP unless it names a protocol.

    `headers` are `NAME: VALUE`. Raises NoResponseError.
    """
    return asyncio.run(_ask(url if "://" in url else f"http://{url}", headers, query, timeout_s))


async def _ask(url: str, headers: Sequence[str], query: Callable[[Client], Awaitable[T]], timeout_s: float) -> T:
    try:
        pairs = dict(map(parse_header, headers))
    except ValueError as error:
        raise NoResponseError(str(error)) from None
    try:
        async with Client(url, headers=pairs, timeout_s=timeout_s) as client:
            return await query(client)
    except InferError as error:
        if isinstance(error, ConnectionFailedError) or error.code is ErrorCode.DEADLINE_EXCEEDED:
            raise NoResponseError(
                f"no response from a server at {url} ({error}); give its --url, or read files with --model-repository"
            ) from error
        raise NoResponseError(f"{url}: {error.code.words}: {error}") from error


def text_of(url: str, form: Callable[[dict[str, Any]], str], found: dict[str, Any]) -> str:
    """Return what a server answered as text. Raises NoResponseError for an answer that naiad does not give."""
    try:
        return form(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        shown = ", ".join(found)[:60] or "no members"
        raise NoResponseError(
            f"{url}: the answer is not one of this version of naiad: it has {shown} ({error!r}); is this the server?"
        ) from None


def add_source_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags that name a server, or a directory whose configurations the verb reads instead."""
    parser.add_argument("-u", "--url", default=DEFAULT_URL, help=f"the server; default {DEFAULT_URL}")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="header to send, for example an API key",
    )
    parser.add_argument(
        "--model-repository",
        type=Path,
        metavar="DIR",
        help=f"{verb} the configuration in DIR instead of asking a server",
    )


class NoModelError(Exception):
    """There is no such model, or it would not load; the message has the reason."""


def reject_path(verb: str, model: str) -> None:
    """Raise NoModelError with the command for a model's directory, where a server is asked for a name."""
    path = Path(model)
    if len(path.parts) > 1 and path.is_dir():
        raise NoModelError(
            f"{model} is a directory, and a server is asked for a model's name; to read the files: "
            f"naiad {verb} {path.name} --model-repository {path.parent}"
        )


def find_models(repository: Path, name: str) -> dict[str, ModelReport]:
    """Return the models of a repository by name. Raises NoModelError unless `name` would load."""
    if not repository.is_dir():
        raise NoModelError(
            f"--model-repository {repository} is not a directory; give the one that contains the models"
        )
    reports = {r.name: r for r in check_path(repository, known_backends=BackendRegistry().names())}
    if name not in reports:
        known = ", ".join(reports) or "none"
        raise NoModelError(f"no model '{name}' in {repository}; its models: {known}")
    errors = [str(problem) for problem in reports[name].problems if problem.is_error]
    if errors:
        raise NoModelError("\n".join([f"model '{name}' would not load:", *errors]))
    return reports
