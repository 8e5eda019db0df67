"""The cells of custom metrics: numbers in memory that the server and all workers share.

A worker adds to its metrics without a word to the server, which reads them when it is scraped; what a worker has
counted survives its death. Byte-range locks keep two processes from one cell, and end with whoever holds them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Sequence

CELLS = 1 << 17
"""Cells of a page, 1 MiB; memory is used as far as cells are."""
_CELL_BYTES = 8
PAGE_BYTES = CELLS * _CELL_BYTES


class MetricCells:
    """One process's mapping of the page; thread-safe."""

    def __init__(self, descriptor: int) -> None:
        """Map the page that `anonymous_file(PAGE_BYTES)` has made. Raises OSError.

        The descriptor must stay open: closing it would end the locks that other threads hold.
        """
        self._descriptor = descriptor
        self._values = memoryview(mmap.mmap(descriptor, PAGE_BYTES)).cast("d")
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            # A process that the model forks while another thread counts would wait for ever.
            os.register_at_fork(after_in_child=_Renewal(self))

    def read(self, cell: int, count: int) -> Sequence[float]:
        """Return the values of neighbouring cells."""
        return self._values[cell : cell + count].tolist()

    def value(self, cell: int) -> float:
        """Return the value of a cell."""
        return self._values[cell]

    def add(self, cell: int, amount: float) -> None:
        """Add to a cell."""
        with self._lock:
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] += amount
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def set(self, cell: int, value: float) -> None:
        """Put a value into a cell."""
        with self._lock:
            # Otherwise another process could add to what was there before and undo it.
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] = value
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def observe(self, cell: int, bucket: int, value: float) -> None:
        """Count a value in a histogram: its sum is the first cell, its buckets follow."""
        with self._lock:
            # Who has the first cell has all of them.
            self._hold(fcntl.LOCK_EX, cell)
            try:
                self._values[cell] += value
                self._values[cell + 1 + bucket] += 1
            finally:
                self._hold(fcntl.LOCK_UN, cell)

    def clear(self, cell: int, count: int) -> None:
        """Set neighbouring cells to 0 that nobody uses yet."""
        self._values[cell : cell + count] = memoryview(bytes(count * _CELL_BYTES)).cast("d")

    def renew_lock(self) -> None:
        """Forget who holds the lock: another thread of a process that was forked."""
        self._lock = threading.Lock()

    def _hold(self, how: int, cell: int) -> None:
        fcntl.lockf(self._descriptor, how, _CELL_BYTES, cell * _CELL_BYTES)


class _Renewal:
    """Does not keep the cells, as what is called after a fork is kept for ever."""

    def __init__(self, cells: MetricCells) -> None:
        self._cells = weakref.ref(cells)

    def __call__(self) -> None:
        cells = self._cells()
        if cells is not None:
            cells.renew_lock()
