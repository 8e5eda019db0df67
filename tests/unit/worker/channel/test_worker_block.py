"""Blocks: lent, given back when nothing refers to them, used again, capped, given up."""

import os

import numpy as np
import pytest

from naiad.worker.channel.buffer_pool import (
    GRANULE_BYTES,
    NUMBERS,
    BufferOwner,
    BufferUser,
    TransportFullError,
    rounded,
)

LIMIT = 64 * GRANULE_BYTES


class Pair:
    """A lender and a borrower, with the notices carried between them by hand."""

    def __init__(self, limit_bytes=LIMIT):
        self.buffer_owner = BufferOwner(limit_bytes)
        self.buffer_user = BufferUser()

    def send(self, *parts):
        size = sum(len(part) for part in parts)
        number = self.buffer_owner.lend(parts, size)
        self.carry()
        return self.buffer_user.view(number, size)

    def carry(self):
        for number, size, descriptor in self.buffer_owner.opened:
            self.buffer_user.open(number, size, descriptor)
        self.buffer_user.drop(self.buffer_owner.dropped)
        self.buffer_owner.opened, self.buffer_owner.dropped = [], []
        self.buffer_owner.take_back(self.buffer_user.released())


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.buffer_owner.close()
    made.buffer_user.close()


def descriptor_count():
    return len(os.listdir("/proc/self/fd"))


def test_receiver_sees_what_was_sent(pair):
    view = pair.send(b"abc", memoryview(b"defg"), np.arange(3, dtype=np.uint8), b"")
    assert bytes(view) == b"abcdefg\x00\x01\x02"


def test_blocks_that_are_given_up_leave_no_descriptor(pair):
    before = descriptor_count()
    for size in (100_000, 700_000, 2_000_000):
        pair.send(bytes(size))
        pair.carry()
    assert descriptor_count() > before
    pair.buffer_owner.trim(0.0)
    pair.carry()
    assert descriptor_count() == before


def test_unreferenced_block_is_reused(pair):
    view = pair.send(bytes(100_000))
    del view
    pair.carry()
    pair.send(bytes(90_000))
    assert pair.buffer_owner.total_bytes == rounded(100_000)


def test_what_the_receiver_keeps_is_not_overwritten(pair):
    array = np.frombuffer(pair.send(b"a" * 100_000), np.uint8)
    part = array[5:10]
    del array
    pair.carry()
    pair.send(b"b" * 100_000)
    assert bytes(part) == b"aaaaa"
    assert pair.buffer_owner.total_bytes == 2 * rounded(100_000)
    del part
    pair.carry()
    assert bytes(pair.send(b"c" * 100_000)[:3]) == b"ccc"
    assert pair.buffer_owner.total_bytes == 2 * rounded(100_000)


def test_limit_refuses_and_names_what_was_needed(pair):
    with pytest.raises(TransportFullError) as caught:
        pair.send(bytes(LIMIT + 1))
    assert (caught.value.needed_bytes, caught.value.limit_bytes) == (LIMIT + 1, LIMIT)
    assert pair.buffer_owner.total_bytes == 0


def test_free_blocks_are_replaced_by_larger_one(pair):
    views = [pair.send(bytes(LIMIT // 2)), pair.send(bytes(LIMIT // 2))]
    with pytest.raises(TransportFullError):
        pair.send(bytes(100))
    views.clear()
    pair.carry()
    assert len(pair.send(bytes(LIMIT))) == LIMIT
    assert pair.buffer_owner.total_bytes == LIMIT
    assert pair.buffer_user.total_bytes == LIMIT


def test_large_block_serves_small_payload_only_near_limit(pair):
    small = bytes(GRANULE_BYTES)
    del_me = pair.send(bytes(LIMIT // 2))
    del del_me
    pair.carry()
    kept = pair.send(small)
    assert pair.buffer_owner.total_bytes == LIMIT // 2 + GRANULE_BYTES
    pair.buffer_owner.limit_bytes = pair.buffer_owner.total_bytes
    assert len(pair.send(small)) == len(small)
    assert len(kept) == len(small)


def test_trim_gives_up_free_blocks_only(pair):
    kept = pair.send(b"k" * 100_000)
    pair.send(bytes(200_000))
    pair.carry()
    pair.buffer_owner.trim(0.0)
    pair.carry()
    assert pair.buffer_owner.total_bytes == pair.buffer_user.total_bytes == rounded(100_000)
    assert bytes(kept[:2]) == b"kk"


def test_view_refuses_what_is_not_there(pair):
    pair.send(bytes(100_000))
    with pytest.raises(LookupError):
        pair.buffer_user.view(9, 1)
    with pytest.raises(ValueError, match="in a block of"):
        pair.buffer_user.view(1, 10**9)


@pytest.mark.parametrize("size", [1, GRANULE_BYTES, 10**6, 50_000_000, 2**26, 2**26 + 1])
def test_rounding_wastes_little(size):
    assert size <= rounded(size) <= max(GRANULE_BYTES, size * 9 // 8 + GRANULE_BYTES)
    assert rounded(size) % GRANULE_BYTES == 0


def test_dropped_block_is_unmapped_before_its_message(pair):
    # An idle worker drops blocks and sends nothing: their descriptors would stay open in the server.
    board = memoryview(bytearray(NUMBERS))
    pair.buffer_owner.board = board
    first, second = pair.send(b"x" * 70_000), pair.send(b"y" * 70_000)
    del first
    pair.carry()
    pair.buffer_owner.trim(0.0)
    assert len(pair.buffer_owner.dropped) == 1
    pair.buffer_user.drop_gone(board)
    assert pair.buffer_user.total_bytes == rounded(70_000)
    assert bytes(second) == b"y" * 70_000
    pair.buffer_user.drop(pair.buffer_owner.dropped)  # the message comes after all
    pair.buffer_owner.note_reported()
    assert not any(board)


def test_new_block_in_dropped_place_is_not_released(pair):
    board = memoryview(bytearray(NUMBERS))
    pair.buffer_owner.board = board
    view = pair.send(b"x" * 70_000)
    del view
    pair.carry()
    pair.buffer_owner.trim(0.0)
    pair.buffer_owner._last_number = NUMBERS  # once around: the next would have the same place
    number = pair.buffer_owner.lend([b"y" * 70_000], 70_000)
    assert number == NUMBERS + 1
    pair.buffer_owner.reclaim(board)
    pair.buffer_user.drop_gone(board)
    assert pair.buffer_user.total_bytes == rounded(70_000)  # the message reports it
    pair.carry()
    assert bytes(pair.buffer_user.view(number, 70_000)) == b"y" * 70_000
    assert number in pair.buffer_owner._lent


def test_failed_copy_gives_its_block_back(pair):
    with pytest.raises(ValueError, match="broadcast"):
        pair.buffer_owner.lend([bytes(LIMIT)], 1)
    pair.carry()
    pair.buffer_owner.trim(0.0)
    pair.carry()
    assert (pair.buffer_owner.total_bytes, pair.buffer_user.total_bytes) == (0, 0)
