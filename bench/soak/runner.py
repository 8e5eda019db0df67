"""What soak tests share: workers that ask side by side, what came of it, what is left in the server afterwards."""

import asyncio
import contextlib
import json
import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.peers import Running
from bench.process_tree import MIB, memory

ANSWER_S = 300.0
"""A request that is not answered within this is counted as hung: much, for a machine that has other things to do."""
_SHOWN = 5
"""Mistakes that are reported in full."""
_BEAT_S = 0.02
_STALL_S = 0.2
"""Clients that pause for longer than this are noted."""
_SETTLED = 0.1
"""The share of a run after which memory is looked at first: by then everything has been used once."""


@dataclass
class Soak:
    """A run and what it found."""

    server: Running
    count: int
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hung: int = 0
    done: int = 0
    """Towards `count`."""
    duration_s: float = 0.0
    settled_mib: float = 0.0
    end_mib: float = 0.0
    max_drift_mib: float = float("inf")
    max_drift_share: float = float("inf")
    """How much more memory than `settled_mib` the server may have in the end."""
    stalled_s: float = float("-inf")
    """Monotonic time at which the clients, all of them, had last paused."""
    left: str = ""
    """What is still in the server when all clients have gone."""

    def note(self, outcome: str, amount: int = 1) -> None:
        """Count what came of a request."""
        self.outcomes[outcome] += amount

    def mistake(self, text: str) -> None:
        """Keep what should not have been."""
        self.wrong.append(text)

    def advance(self, amount: int = 1) -> None:
        """Count what was done, and look at the memory once."""
        self.done += amount
        if not self.settled_mib and self.done >= self.count * _SETTLED:
            self.settled_mib = 1.0
            # It takes a while, for which no request should wait.
            threading.Thread(target=self._settle).start()

    def _settle(self) -> None:
        self.settled_mib = memory(self.server.process.pid).own / MIB

    @property
    def is_good(self) -> bool:
        """Whether everything was answered rightly, nothing is left and memory has not grown too much."""
        return not (self.wrong or self.hung or self.left or self.has_drifted)

    @property
    def has_drifted(self) -> bool:
        """Whether the server has more memory than it may have in the end."""
        drift_mib = self.end_mib - self.settled_mib
        return drift_mib > self.max_drift_mib or drift_mib > self.max_drift_share * self.settled_mib

    def line(self) -> str:
        """Return the result in one line, with the first mistakes below it."""
        outcomes = ", ".join(f"{amount:,} {name}" for name, amount in sorted(self.outcomes.items()))
        verdict = "good" if self.is_good else "BAD"
        found = (
            f"{self.done:,} in {self.duration_s:.0f} s ({self.done / max(self.duration_s, 1e-9):,.0f}/s): "
            f"{len(self.wrong)} wrong, {self.hung} hung, {self.left or 'nothing'} left behind; "
            f"memory {self.settled_mib:.0f} -> {self.end_mib:.0f} MiB; {outcomes}: {verdict}"
        )
        return "\n".join([found, *self.wrong[:_SHOWN]])


Work = Callable[[Soak, random.Random, int], Awaitable[None]]


async def side_by_side(soak: Soak, worker_count: int, work: Work) -> None:
    """Have workers do `work` until `soak.count` is done; each has random numbers of its own."""

    async def one(number: int) -> None:
        generator = random.Random(number)
        while soak.done < soak.count and soak.hung == 0:
            await work(soak, generator, number)

    beats = asyncio.ensure_future(_beat(soak))
    try:
        await asyncio.gather(*(one(number) for number in range(worker_count)))
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats


async def _beat(soak: Soak) -> None:
    """Note when this process did not get to run: its clients were slow then, not the server."""
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(_BEAT_S)
        if time.monotonic() - before_s > _BEAT_S + _STALL_S:
            soak.stalled_s = time.monotonic()
            soak.note("stalls of the clients")


async def what_is_left(server: Running, models: Sequence[str], timeout_s: float) -> str:
    """Wait until the models have nothing to do any more; return what they still have then, or nothing."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        explained = {model: _explain(server, model) for model in models}
        busy = {m: (t["waiting"], t["executing"]) for m, t in explained.items() if t["waiting"] or t["executing"]}
        if not busy:
            return ""
        if asyncio.get_running_loop().time() > deadline:
            return ", ".join(f"{w} waiting and {e} executing in {model}" for model, (w, e) in busy.items())
        await asyncio.sleep(0.2)


def _explain(server: Running, model: str) -> Any:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/explain"
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return json.loads(answer.read())
