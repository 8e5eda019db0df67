"""The block of caches against a plain model of it: a list of numbers for each row."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.backend.onnx_decoder.decoder_graph import CacheTensor
from naiad.backend.onnx_decoder.kv_cache import CacheBlock, RowCache
from naiad.core.datatype import DataType

TENSORS = [CacheTensor(f"past.{name}", f"present.{name}", 2, 3, DataType.FP32) for name in ("key", "value")]


class Known:
    """A row and the numbers that its cache should have, one for each token."""

    def __init__(self, numbers):
        self.cache = RowCache()
        self.numbers = list(numbers)
        self.cache.length = len(self.numbers)
        self.cache.arrays = [spread(self.numbers, tensor)[None] for tensor in TENSORS]


def spread(numbers, tensor):
    """Return [heads, tokens, size], in which each token has its number."""
    values = np.array(numbers, np.float32) + (1000 if tensor is TENSORS[1] else 0)
    return np.broadcast_to(values[None, :, None], (tensor.heads, len(numbers), tensor.size)).copy()


def step(block, rows, numbers):
    """Do what a graph does: the room gets the past and one token more for each row."""
    order = block.arrange([row.cache for row in rows])
    by_cache = {id(row.cache): row for row in rows}
    lengths = [row.length for row in order]
    expected_mask = [[0] * (block.length - length) + [1] * (length + 1) for length in lengths]
    assert block.mask().tolist() == expected_mask
    pasts = block.pasts()
    for tensor, past, room in zip(TENSORS, pasts, block.room(), strict=True):
        for place, cache in enumerate(order):
            known = by_cache[id(cache)]
            pad = block.length - cache.length
            np.testing.assert_array_equal(past[place, :, pad:], spread(known.numbers, tensor))
            assert not past[place, :, :pad].any()
            room[place, :, :-1] = past[place]
            room[place, :, -1:] = spread([numbers[id(cache)]], tensor)
    block.advance()
    for row in rows:
        row.numbers.append(numbers[id(row.cache)])
        assert row.cache.length == len(row.numbers)


@settings(max_examples=40)
@given(data=st.data())
def test_rows_keep_their_tokens_in_any_order(data):
    block = CacheBlock(TENSORS, 400)
    alive = []
    for number in range(data.draw(st.integers(1, 12), label="turns")):
        for _ in range(data.draw(st.integers(0, 2), label="arrivals")):
            alive.append(Known(range(1, 1 + data.draw(st.integers(1, 9), label="length"))))
        if alive and data.draw(st.booleans(), label="one ends"):
            ended = alive.pop(data.draw(st.integers(0, len(alive) - 1), label="which"))
            block.forget(ended.cache)
            assert not ended.cache.arrays
        chosen = [row for row in alive if data.draw(st.booleans(), label="takes part")]
        if chosen:
            step(block, chosen, {id(row.cache): 50 + number for row in chosen})


def test_rows_are_not_copied_while_they_stay():
    block = CacheBlock(TENSORS, 100)
    rows = [Known([1, 2]), Known([3])]
    numbers = {id(row.cache): 9 for row in rows}
    step(block, rows, numbers)
    before = [array.ctypes.data for array in block.pasts()]
    block.arrange([row.cache for row in reversed(rows)])
    assert [array.ctypes.data for array in block.pasts()] == before


def test_longest_row_takes_its_width_with_it():
    block = CacheBlock(TENSORS, 100)
    short, long = Known([1]), Known(range(1, 20))
    step(block, [short, long], {id(row.cache): 5 for row in (short, long)})
    assert block.length == 20
    block.forget(long.cache)
    step(block, [short], {id(short.cache): 6})
    assert block.length == 3
