"""Whether memory is freed without the garbage collector: it may not run for minutes in a quiet server."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager


class Block(bytearray):
    """Bytes that a weak reference can watch."""


@contextmanager
def freed_block(content: bytes) -> Iterator[list[memoryview]]:
    """Yield the view of a block in a list, for the caller to take out, and check that nothing holds it at the end."""
    block = Block(content)
    watched = weakref.ref(block)
    views = [memoryview(block)]
    del block
    gc.disable()
    try:
        yield views
        assert not views, "the view was not used"
        assert watched() is None, "a cycle of references holds the block"
    finally:
        gc.enable()
