"""Predictions of many points at the same time, in worker processes: a simulation keeps a core busy for some 50 ms."""

import asyncio
import functools
import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

from naiad.tools.analyze.point_measurement import Prediction
from naiad.tools.analyze.simulation.fitted import Fitted
from naiad.tools.analyze.simulation.predictor import simulated
from naiad.tools.analyze.space import Point

_WORTH_A_PROCESS = 8
"""Points of a process at least: a first call starts it, which takes as long as some simulations."""
_CHUNK = 4
"""Points of a task; the durations of simulations differ."""


class Simulations:
    """Simulates points on all cores; used between measurements, when the server and the load generator are idle.

    The processes start when they are needed first, and wait without work during the measurements.
    """

    def __init__(self, process_count: int) -> None:
        self._process_count = process_count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Simulations":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, points: Sequence[Point], fitted: Fitted) -> list[Prediction | None]:
        """Return the prediction of each point; None where the fit says nothing about it."""
        if self._process_count < 2 or len(points) < _WORTH_A_PROCESS:
            return [simulated(point, fitted) for point in points]
        if self._pool is None:
            # Not forked: this process has threads.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._process_count, context, initializer=_ignore_interrupts)
        loop = asyncio.get_running_loop()
        chunks = [points[first : first + _CHUNK] for first in range(0, len(points), _CHUNK)]
        tasks = [loop.run_in_executor(self._pool, functools.partial(_all_simulated, each, fitted)) for each in chunks]
        return [prediction for found in await asyncio.gather(*tasks) for prediction in found]


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the main process, which ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _all_simulated(points: Sequence[Point], fitted: Fitted) -> list[Prediction | None]:
    return [simulated(point, fitted) for point in points]
