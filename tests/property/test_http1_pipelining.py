"""Pipelined responses written in any order give the same bytes and counters as one at a time."""

import re

from hypothesis import given
from hypothesis import strategies as st

from support.http1_scene import GET, Peer, answer

PIECES = st.lists(st.binary(min_size=1, max_size=20), max_size=4)
_DATE = re.compile(rb"\r\nDate: [^\r]*")


def steps_of(which, pieces):
    """Yield the calls that write one response: at once, or streamed if it has pieces."""
    if not pieces:
        return [lambda context: answer(context, b"whole %d" % which)]
    sends = [lambda context, piece=piece: context.send((piece,)) for piece in pieces]
    return [lambda context: context.start_stream(200, ()), *sends, lambda context: context.end()]


def play(responses, order):
    """Write responses by steps in an order of contexts; return the output without dates."""
    peer = Peer()
    peer.send(GET * len(responses))
    contexts = list(peer.contexts)
    left = [steps_of(which, pieces) for which, pieces in enumerate(responses)]
    for which in order:
        left[which].pop(0)(contexts[which])
        waiting = list(peer.connection._responses.contexts)
        for context in contexts:
            # A sent or current response keeps no buffers back.
            is_held = context in waiting[1:]
            assert is_held or (not context.waiting_buffers and not context.waiting_bytes)
            assert context.waiting_bytes <= sum(map(len, context.waiting_buffers))
    assert not any(left)
    return _DATE.sub(b"", peer.output)


@given(st.lists(PIECES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_of_writing_changes_neither_bytes_nor_counters(responses, random):
    in_order = [which for which, pieces in enumerate(responses) for _ in steps_of(which, pieces)]
    shuffled = list(in_order)
    random.shuffle(shuffled)
    assert play(responses, shuffled) == play(responses, in_order)
