"""In any chunking of the first bytes the same protocol gets all of them, in order."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.frontend.one_port import Undecided
from naiad.wire.preface import PREFACE, HttpVersion, version_of
from support.one_port import FakeHttp1, FakeHttp2, SwitchingTransport

STREAMS = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.integers(0, len(PREFACE)).flatmap(lambda n: st.binary(max_size=40).map(lambda rest: PREFACE[:n] + rest)),
).filter(bool)


@given(STREAMS)
def test_decision_stays_for_any_further_bytes(stream):
    decisions = [version_of(stream[:end]) for end in range(len(stream) + 1)]
    made = [decision for decision in decisions if decision is not None]
    assert len(set(made)) <= 1
    assert decisions == [None] * (len(decisions) - len(made)) + made


@given(STREAMS)
def test_only_the_preface_is_http_2(stream):
    assert (version_of(stream) is HttpVersion.HTTP_2) == stream.startswith(PREFACE)


@given(STREAMS, st.lists(st.integers(1, 64), max_size=64))
def test_cuts_change_nothing(stream, cuts):
    http1, http2 = FakeHttp1(), FakeHttp2()
    transport = SwitchingTransport(Undecided(http1, http2))
    transport.connect()
    position = 0
    for cut in [*cuts, len(stream)]:
        transport.deliver(stream[position : position + cut])
        position += cut
    transport.eof()
    version = version_of(stream)
    if version is HttpVersion.HTTP_2:
        assert (bytes(http2.received), bytes(http1.received)) == (stream, b"")
    else:
        assert (bytes(http2.received), bytes(http1.received)) == (b"", stream)
        assert http1.saw_eof
