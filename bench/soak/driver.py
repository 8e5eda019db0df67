"""What soak tests share: workers that ask side by side, what came of it, what is left in the server afterwards."""

import asyncio
import json
import random
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.peers import Running
from bench.process_tree import MIB, memory

ANSWER_S = 60.0
"""A request that is not answered within this is counted as hung."""
_TOLD = 5
"""Mistakes that are told in full."""
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
    left: str = ""
    """What is still in the server when everybody has gone."""

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
            self.settled_mib = memory(self.server.process.pid).pss / MIB

    @property
    def is_good(self) -> bool:
        """Whether everything was answered rightly and nothing is left."""
        return not (self.wrong or self.hung or self.left)

    def line(self) -> str:
        """Return the result in one line, with the first mistakes below it."""
        outcomes = ", ".join(f"{amount:,} {name}" for name, amount in sorted(self.outcomes.items()))
        verdict = "good" if self.is_good else "BAD"
        found = (
            f"{self.done:,} in {self.duration_s:.0f} s ({self.done / max(self.duration_s, 1e-9):,.0f}/s): "
            f"{len(self.wrong)} wrong, {self.hung} hung, {self.left or 'nothing'} left behind; "
            f"memory {self.settled_mib:.0f} -> {self.end_mib:.0f} MiB; {outcomes}: {verdict}"
        )
        return "\n".join([found, *self.wrong[:_TOLD]])


Work = Callable[[Soak, random.Random, int], Awaitable[None]]


async def side_by_side(soak: Soak, worker_count: int, work: Work) -> None:
    """Have workers do `work` until `soak.count` is done; each has random numbers of its own."""

    async def one(number: int) -> None:
        generator = random.Random(number)
        while soak.done < soak.count and soak.hung == 0:
            await work(soak, generator, number)

    await asyncio.gather(*(one(number) for number in range(worker_count)))


async def what_is_left(server: Running, models: Sequence[str], timeout_s: float) -> str:
    """Wait until the models have nothing to do any more; return what they still have then, or nothing."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        told = {model: _explain(server, model) for model in models}
        busy = {m: (t["waiting"], t["executing"]) for m, t in told.items() if t["waiting"] or t["executing"]}
        if not busy:
            return ""
        if asyncio.get_running_loop().time() > deadline:
            return ", ".join(f"{w} waiting and {e} executing in {model}" for model, (w, e) in busy.items())
        await asyncio.sleep(0.2)


def _explain(server: Running, model: str) -> Any:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/explain"
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        return json.loads(answer.read())
