"""`naiad top`: what servers and their models do now, in the terminal."""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, fail, parse_header, time_in
from naiad.cli.sources import DEFAULT_URL
from naiad.cli.top.top_table import SORT_KEYS, ServerState, as_tree, format_table
from naiad.client import Client, ErrorCode, InferError
from naiad.client.live_view import LiveView

_DESCRIPTION = """\
Show what servers and their models do now: requests and errors per second, latencies, batches, queues, and the cores,
memory and GPUs that each server uses. Figures are of the last ten seconds.
Keys: q quits; r, n, p, e and u sort by rate, name, p99, errors and queue.
The exit status is 1 if no server responds, 2 for an invalid command line.
"""
_KEYS = {"r": "rate", "n": "name", "p": "p99", "e": "errors", "u": "queue"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0
_SAMPLES_OF_ONCE = 3
"""Rates need two samples; the second interval has no part of the connection's start."""
_ONCE_TIMEOUT_S = 15.0
"""Time for the connection and its first sample; the intervals of `--once` come on top."""
_MISTAKES = (ErrorCode.PERMISSION_DENIED, ErrorCode.INVALID_ARG)
"""Refusals that are mistakes of the command line, if they are the first answer. Later ones may be of a proxy whose
server starts again, or of a key that is replaced."""


def run(argv: Sequence[str]) -> int:
    """Show servers until a key ends it; return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        headers = dict(map(parse_header, options.header))
        top = Top(options.url or [DEFAULT_URL], headers, options)
    except (ValueError, InferError) as error:
        return fail("naiad top", error, BAD_OPTION)
    if not options.once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return fail("naiad top", "the output is no terminal; use --once, or --once --json", BAD_OPTION)
    try:
        return asyncio.run(top.once() if options.once else top.watch())
    except KeyboardInterrupt:
        if options.once:  # a script must not take it for a result
            raise
        return 0


class Top:
    """Follows the live streams of servers."""

    def __init__(self, urls: Sequence[str], headers: Mapping[str, str], options: argparse.Namespace) -> None:
        """Raises InferError for a wrong address."""
        self._servers = [
            ServerState(url if "://" in url else f"http://{url}", LiveView()) for url in dict.fromkeys(urls)
        ]
        self._headers = headers
        self._interval_ms = int(options.interval)
        self._is_json = options.json
        self._order = options.sort
        self._clients = [Client(server.url, headers=headers) for server in self._servers]
        self._news = asyncio.Event()
        self._status: int | None = None
        """The exit status, once the table is to end."""
        self._sample_counts = [0] * len(self._servers)
        self._was_refused: list[bool | None] = [None] * len(self._servers)
        """Whether the first answer of each server was the refusal of a mistake; None until there is one."""

    # --- following --------------------------------------------------------------------------------------------------

    async def _follow(self, index: int) -> None:
        """Keep the state of a server current, and connect again when its stream ends."""
        pause_s = _FIRST_PAUSE_S
        server = self._servers[index]
        while True:
            try:
                async for event in self._clients[index].live(interval_ms=self._interval_ms):
                    server.problem = ""
                    if server.view.apply(event):
                        # Not with the first event: a server that ends each stream at once is asked less often.
                        pause_s = _FIRST_PAUSE_S
                        self._sample_counts[index] += 1
                        self._note_answer(index, is_mistake=False)
                        self._news.set()
                server.problem = f"gone: {server.view.gone_reason or 'the stream has ended'}"
            except InferError as error:
                server.problem = str(error)
                self._note_answer(index, is_mistake=error.code in _MISTAKES)
            except (LookupError, TypeError) as error:
                server.problem = _unknown_form(error)
            self._news.set()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _note_answer(self, index: int, *, is_mistake: bool) -> None:
        """Note the first answer of a server; a table in which no server accepts the command line ends."""
        if self._was_refused[index] is None:
            self._was_refused[index] = is_mistake
            if all(self._was_refused):
                self._status = FAILED

    async def watch(self) -> int:
        """Show the table until a key or a signal ends it; return the exit status."""
        from naiad.cli.top.top_screen import full_screen, screen_size, show  # termios is missing on Windows

        following = [asyncio.ensure_future(self._follow(index)) for index in range(len(self._servers))]
        for task in following:
            task.add_done_callback(lambda _: self._news.set())
        try:
            with full_screen(self._press, self._end_by_signal, self._news.set):
                while self._status is None:
                    for task in following:
                        if task.done():  # they end only by a defect, which is not to be hidden
                            task.result()
                    columns, lines = screen_size()
                    text = format_table(self._servers, self._order, columns=columns, lines=lines)
                    keys = "  ".join(f"{key}: {order}" for key, order in _KEYS.items())
                    show(text, len(self._servers) + 2, f"sorted by {self._order}   {keys}  q: quit"[:columns])
                    await self._next()
        finally:
            for task in following:
                task.cancel()
        if all(self._was_refused):
            for server in self._servers:
                fail("naiad top", f"{server.url}: {server.problem}")
        return self._status

    def _end_by_signal(self, number: int) -> None:
        """End like a program that the signal has ended, but with the terminal as it was."""
        self._status = 128 + number
        self._news.set()

    def _press(self, key: str) -> None:
        """Handle a key."""
        if key == "q" and self._status is None:
            self._status = 0
        self._order = _KEYS.get(key, self._order)
        self._news.set()

    async def _next(self) -> None:
        """Wait until there is something new, and a little for the samples of the other servers."""
        await self._news.wait()
        await asyncio.sleep(0.02)
        self._news.clear()

    async def once(self) -> int:
        """Print the table, or JSON, as soon as each server has its first rates or has failed."""
        following = [asyncio.ensure_future(self._follow_first(index)) for index in range(len(self._servers))]
        await asyncio.wait(following, timeout=_ONCE_TIMEOUT_S + _SAMPLES_OF_ONCE * self._interval_ms / 1000)
        for task in following:
            task.cancel()
        if self._is_json:
            print(json.dumps(as_tree(self._servers, self._order)))
        else:
            print("\n".join(format_table(self._servers, self._order)))
        return 0 if any(self._sample_counts) else 1

    async def _follow_first(self, index: int) -> None:
        server = self._servers[index]
        try:
            async for event in self._clients[index].live(interval_ms=self._interval_ms):
                server.problem = ""
                if server.view.apply(event):
                    self._sample_counts[index] += 1
                if self._sample_counts[index] >= _SAMPLES_OF_ONCE:
                    return
            server.problem = f"gone: {server.view.gone_reason or 'the stream has ended'}"
        except InferError as error:
            server.problem = str(error)
        except (LookupError, TypeError) as error:
            server.problem = _unknown_form(error)


def _unknown_form(error: Exception) -> str:
    """Return the problem of a stream whose events are of another version, or of another program."""
    return f"its live stream is not one of this version of naiad: {error!r}"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad top",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: naiad top localhost:8000 gpu1:8000 --sort p99",
    )
    parser.add_argument("url", nargs="*", metavar="URL", help=f"servers, over HTTP; default {DEFAULT_URL}")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="header to send, such as an API key"
    )
    parser.add_argument(
        "--interval",
        type=time_in("ms", is_whole=True),
        default=1000,
        metavar="TIME",
        help="between two samples, 250ms to 60s; default 1s",
    )
    parser.add_argument("--sort", choices=tuple(SORT_KEYS), default="rate", help="the order of models; default rate")
    parser.add_argument("--once", action="store_true", help="print the table once, after two intervals, and exit")
    parser.add_argument("--json", action="store_true", help="with --once, print JSON")
    return parser
