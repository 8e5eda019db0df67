"""Requests of verbs to a running server, through naiad's own client."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError

T = TypeVar("T")

_TIMEOUT_S = 10.0
DEFAULT_URL = "http://localhost:8000"


class NoResponseError(Exception):
    """The server has not responded, or with an error; the message has the reason and a fix."""


def ask(url: str, headers: Sequence[str], query: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of `query` for the server at `url`, which is HTTP unless it names a protocol.

    `headers` are `NAME: VALUE`. Raises NoResponseError.
    """
    return asyncio.run(_ask(url if "://" in url else f"http://{url}", headers, query))


async def _ask(url: str, headers: Sequence[str], query: Callable[[Client], Awaitable[T]]) -> T:
    pairs = dict(_header(text) for text in headers)
    try:
        async with Client(url, headers=pairs, timeout_s=_TIMEOUT_S) as client:
            return await query(client)
    except InferError as error:
        if isinstance(error, ConnectionFailedError) or error.code is ErrorCode.DEADLINE_EXCEEDED:
            raise NoResponseError(
                f"no response from a server at {url} ({error}); give its --url, or read files with --model-repository"
            ) from error
        raise NoResponseError(f"{url}: {error.code.words}: {error}") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise NoResponseError(f"--header '{text}' is not of the form 'NAME: VALUE'")
    return name.strip(), value.strip()


def add_source_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the flags that name a server, or a directory whose configurations the verb reads instead."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server; default {DEFAULT_URL}")
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
