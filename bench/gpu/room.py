"""What a part is given: where it runs, how large, where its rows go, and servers."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.gpu.serving import FromHere, load_model
from bench.peers import Running
from naiad.client import Client
from naiad.core.tensor import Array

OK, FAILED, NOT_RUN, NOT_PROVEN = "ok", "failed", "not run", "not proven"
_CALL_S = 60.0
_TEXT = 600
T = TypeVar("T")


class NotRun(Exception):
    """What is measured here cannot be run on this machine; the text has the reason."""


@dataclass
class Served:
    """A running server and a client of it, in one thread."""

    running: Running
    client: Client
    loop: asyncio.AbstractEventLoop

    def call(self, coroutine: Coroutine[Any, Any, T], limit_s: float = _CALL_S) -> T:
        """Run a call of the client. Raises InferError, TimeoutError."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, limit_s))

    def load(self, model: str) -> float:
        """Load a model; return how long it took. Raises InferError with the server's reason."""
        began = time.monotonic()
        load_model(self.running.http_port, model, _CALL_S)
        return time.monotonic() - began

    def infer(self, model: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """Execute a model. Raises InferError."""
        return dict(self.call(self.client.infer(model, inputs)))


@dataclass
class Room:
    """Where one part runs."""

    part: str
    work: Path
    rows_file: Path
    seconds: float
    has_gpu: bool
    is_dry_run: bool
    began_s: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> str:
        """The device as PyTorch writes it."""
        return "cuda:0" if self.has_gpu else "cpu"

    @property
    def kind(self) -> str:
        """The kind of instance groups."""
        return "KIND_GPU" if self.has_gpu else "KIND_CPU"

    @property
    def left_s(self) -> float:
        """Seconds until this part is ended."""
        return self.seconds - (time.monotonic() - self.began_s)

    def size(self, full: T, tiny: T) -> T:
        """Return the size for the GPU, or with --rehearse."""
        return tiny if self.is_dry_run else full

    def row(self, check: str, verdict: str, note: str = "", **figures: Any) -> None:
        """Write a row at once: it is kept if the part fails later."""
        row = {"part": self.part, "check": check, "verdict": verdict, "note": note[:_TEXT], "figures": figures}
        with self.rows_file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.say(f"{check}: {verdict} {note[:160]} {_short(figures)}")

    def judge(self, check: str, is_met: bool, note: str = "", **figures: Any) -> None:
        """Write a row whose verdict is a comparison's."""
        self.row(check, OK if is_met else FAILED, note, **figures)

    def say(self, text: str) -> None:
        """Print progress."""
        print(f"[{self.part} {time.monotonic() - self.began_s:5.1f} s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Turn what goes wrong in a block into a row, and go on after it."""
        self.say(f"{name} ...")
        try:
            yield
        except NotRun as error:
            self.row(name, NOT_RUN, str(error))
        except ModuleNotFoundError as error:
            self.row(name, NOT_RUN, f"there is no module {error.name}")
        except Exception as error:  # any library may raise anything; the row has it, the log the rest
            self.row(name, FAILED, f"{type(error).__name__}: {error}")
            traceback.print_exc()

    @contextlib.contextmanager
    def serve(self, repository: Path, *flags: str, name: str = "server", **environment: str) -> Iterator[Served]:
        """Run a server that loads models on request."""
        self.say(f"{name} starts")
        all_flags = ["--model-control-mode=explicit", "--allow-client-shm=true", *flags]
        running = FromHere(*all_flags, environment=environment).start(repository, self.work / name)
        loop = asyncio.new_event_loop()
        try:
            client = Client(f"http://127.0.0.1:{running.http_port}", timeout_s=_CALL_S)
            yield Served(running, client, loop)
            loop.run_until_complete(_closed(client))
        finally:
            loop.close()
            running.stop()

    def run(self, command: Sequence[str], name: str) -> tuple[int, str]:
        """Run a program while there is time, with its output in a log; return its status and output."""
        log = self.work / f"{name}.log"
        with log.open("w") as sink:
            limit_s = max(1.0, self.left_s - 3)
            done = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=False, timeout=limit_s)
        return done.returncode, log.read_text(errors="replace")


async def _closed(client: Client) -> None:
    client.close()


def _short(figures: dict[str, Any]) -> str:
    return " ".join(f"{name}={_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
