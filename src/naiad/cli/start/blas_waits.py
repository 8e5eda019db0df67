"""Short waits of the threads of numpy's OpenBLAS."""

import contextlib
import os
from collections.abc import Iterator

_BLAS_WAIT = "OPENBLAS_THREAD_TIMEOUT"


@contextlib.contextmanager
def short_blas_waits() -> Iterator[None]:
    """Have the threads of numpy's OpenBLAS sleep soon: each waits awake for 30 ms at the start and after a product.

    There is one for each core, so on a large machine with a small quota a start would take seconds. 2^20 cycles are
    0.4 ms. The variable is read once, when numpy is imported; child processes do not get it.
    """
    if _BLAS_WAIT in os.environ:
        yield
        return
    os.environ[_BLAS_WAIT] = "20"
    try:
        yield
    finally:
        del os.environ[_BLAS_WAIT]
