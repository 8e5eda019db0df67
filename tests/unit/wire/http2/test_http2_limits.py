import pytest

from naiad.wire.http2.connection_limits import FloodMeter, Http2Limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frame_bytes", 16_383),
        ("frame_bytes", 2**24),
        ("stream_window_bytes", 2**20 - 1),
        ("connection_window_bytes", 65_534),
        ("message_bytes", 0),
        ("concurrent_streams", 0),
    ],
)
def test_limit_outside_the_protocol_names_itself(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        Http2Limits(**{name: value})


def test_meter_allows_the_burst_then_the_rate():
    meter = FloodMeter(3, 2)
    assert [meter.is_exceeded(10**9) for _ in range(4)] == [False, False, False, True]
    assert not meter.is_exceeded(3 * 10**9)


def test_refund_never_exceeds_the_burst():
    meter = FloodMeter(2, 1)
    meter.refund(100)
    assert [meter.is_exceeded(0) for _ in range(3)] == [False, False, True]
