from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from naiad.core.texts.text_stream import TextStream


def text_of(pieces, stops):
    stream = TextStream(stops)
    found = "".join(stream.feed(piece) for piece in pieces) + stream.end()
    return found, stream.is_stopped


def expected(text, stops):
    """Return the text up to the stop string that is complete first, found character by character."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    text=st.text(alphabet="ab€😀", max_size=12),
    stops=st.lists(st.text(alphabet="ab€", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
@example(text="abc", stops=["abc", "b"], cuts=[2])
@example(text="aab", stops=["ab"], cuts=[1, 2])
def test_text_does_not_depend_on_the_pieces(text, stops, cuts):
    data = text.encode()
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(borders)]
    assert text_of(pieces, stops) == expected(text, stops)


@given(data=st.binary(max_size=20), cut=st.integers(0, 20))
def test_bytes_that_are_no_text_are_replaced(data, cut):
    assert text_of([data[:cut], data[cut:]], ()) == (data.decode("utf-8", "replace"), False)


def test_only_what_may_be_a_stop_is_held():
    stream = TextStream(["stop"])
    assert [stream.feed(piece) for piece in (b"a st", b"ep s", b"to")] == ["a ", "step ", ""]
    assert stream.end() == "sto"
    assert not stream.is_stopped


def test_decoded_pieces_end_before_a_stop_string_too():
    stream = TextStream(["end"])
    assert [stream.feed_text(piece) for piece in ("an e", "nd", "ing")] == ["an ", "", ""]
    assert stream.is_stopped
    assert stream.end() == ""
