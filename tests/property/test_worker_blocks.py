"""Blocks of shared memory: what is lent out keeps its number and its bytes, and the cap holds."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from naiad.worker.channel import buffer_pool as block
from naiad.worker.channel.buffer_pool import GRANULE_BYTES, Lender, TransportFullError

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
    lender, lent = Lender(8 * GRANULE_BYTES), []
    with mock.patch.object(block, "NUMBERS", NUMBERS):
        for action, value in actions:
            if action == "lend":
                try:
                    lent.append(lender.lend([b"x" * value], value))
                except TransportFullError:
                    assert len(lent) == NUMBERS or lender.total_bytes + value > lender.limit_bytes - GRANULE_BYTES
            elif action == "take_back" and lent:
                lender.take_back([lent.pop(value % len(lent))])
            elif action == "trim":
                lender.trim(0.0)
            # The board has a byte for each number modulo NUMBERS.
            blocks = [*lender._lent.values(), *lender._free.values()]
            assert sorted(lent) == sorted(lender._lent)
            assert len({each.number % NUMBERS for each in blocks}) == len(blocks)
            assert lender.total_bytes == sum(each.size_bytes for each in blocks) <= lender.limit_bytes
        lender.close()
        assert not lender.total_bytes
