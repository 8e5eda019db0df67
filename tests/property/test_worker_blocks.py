"""Blocks of shared memory: what is lent out keeps its number and its bytes, and the cap holds."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from naiad.worker.channel import buffer_pool as block
from naiad.worker.channel.buffer_pool import GRANULE_BYTES, BufferOwner, TransportFullError, rounded

NUMBERS = 4
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("lend"), st.integers(1, 3 * GRANULE_BYTES)),
        st.tuples(st.just("take_back"), st.integers(0, NUMBERS)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=30,
)


@given(ACTIONS)
def test_lent_blocks_have_numbers_of_their_own(actions):
    buffer_owner, lent = BufferOwner(8 * GRANULE_BYTES), []
    with mock.patch.object(block, "NUMBERS", NUMBERS):
        for action, value in actions:
            if action == "lend":
                try:
                    lent.append(buffer_owner.lend([b"x" * value], value))
                except TransportFullError:
                    lent_bytes = sum(each.size_bytes for each in buffer_owner._lent.values())
                    has_numbers = len(buffer_owner._lent) + len(buffer_owner._free) < NUMBERS
                    assert not has_numbers or lent_bytes + rounded(value) > buffer_owner.limit_bytes
            elif action == "take_back" and lent:
                buffer_owner.take_back([lent.pop(value % len(lent))])
            elif action == "trim":
                buffer_owner.trim(0.0)
            # The board has a byte for each number modulo NUMBERS.
            blocks = [*buffer_owner._lent.values(), *buffer_owner._free.values()]
            assert sorted(lent) == sorted(buffer_owner._lent)
            assert len({each.number % NUMBERS for each in blocks}) == len(blocks)
            assert buffer_owner.total_bytes == sum(each.size_bytes for each in blocks) <= buffer_owner.limit_bytes
        buffer_owner.close()
        assert not buffer_owner.total_bytes
