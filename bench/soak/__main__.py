"""Runs a soak test against a server of its own.

    python -m bench.soak bls [CALLS]             calls of models by models: plain, coroutines, streams, nested
    python -m bench.soak sequences [SEQUENCES]   sequences of both strategies, some of which are dropped or cancelled
    python -m bench.soak mixed [REQUESTS]        all protocols and kinds of models, one request in ten is hostile

Each prints one line with what it has found and exits with 1 when anything was wrong, unanswered or left behind.
"""

import asyncio
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from bench.peers import Naiad, Running
from bench.process_tree import MIB, memory
from bench.soak import bls, mixed, sequences
from bench.soak.runner import Soak, what_is_left

KINDS = {
    "bls": (bls, 100_000),
    "sequences": (sequences, 10_000),
    "mixed": (mixed, 2_000_000),
}
_LOG_CHARACTERS = 20_000
"""Of the server's log, which are shown when something was wrong."""
_LEFT_S = 60.0
"""How long what was cancelled may take to leave the server."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak test that the command line names and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in KINDS or not all(text.isdecimal() for text in arguments[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    module, usual_count = KINDS[arguments[0]]
    count = int(arguments[1]) if len(arguments) > 1 else usual_count
    # The server ends with this process, however that is ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # protobuf's and grpcio's own.
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        work = Path(folder)
        models = module.write_repository(work / "models")
        server = Naiad().start(work / "models", work)
        try:
            soak = asyncio.run(_run(module.run, server, count, models))
        finally:
            server.stop()
        if not soak.is_good:
            print(server.log.read_text(errors="replace")[-_LOG_CHARACTERS:], file=sys.stderr)
    print(f"soak {arguments[0]}: {soak.line()}", flush=True)
    return 0 if soak.is_good else 1


async def _run(run: object, server: Running, count: int, models: Sequence[str]) -> Soak:
    soak = Soak(server, count)
    start_s = time.monotonic()
    await run(soak)  # type: ignore[operator]  # one of the modules' functions
    soak.duration_s = time.monotonic() - start_s
    soak.left = await what_is_left(server, models, _LEFT_S)
    soak.end_mib = memory(server.process.pid).own / MIB
    return soak


if __name__ == "__main__":
    sys.exit(main())
