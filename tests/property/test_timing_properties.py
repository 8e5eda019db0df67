"""The parts of a request are never negative and sum to its time, for any moments of server and client."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.telemetry import server_timing
from naiad.telemetry.server_timing import RequestTiming
from naiad.tools.perf.statistics.timing import ServerTiming, parse_server_timing, part_percentiles, waterfall

MOMENT = st.integers(0, 10**13)
TIMINGS = st.builds(ServerTiming, MOMENT, *[st.integers(0, 10**12)] * 8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@st.composite
def waterfalls(draw):
    moments = sorted(draw(st.lists(MOMENT, min_size=4, max_size=4)))
    return moments, waterfall(*moments, draw(TIMINGS))


@given(waterfalls())
def test_parts_sum_to_end_to_end_time(case) -> None:
    (begin_ns, _, _, end_ns), (parts, _) = case
    assert sum(parts) == end_ns - begin_ns
    assert min(parts) >= 0


@given(st.lists(MOMENT, min_size=12, max_size=12), st.booleans(), st.lists(st.tuples(NAMES, MOMENT), max_size=20))
def test_server_times_survive_the_wire(moments, is_cached, steps) -> None:
    first_ns, now_ns = min(moments), max(moments)
    clock = iter((moments[0], moments[1], now_ns))
    with patch.object(server_timing, "_now_ns", lambda: next(clock)):
        timing = RequestTiming(first_ns)
        timing.submit(InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None))
        timing.free_ns, timing.exec_start_ns, timing.compute_start_ns = moments[2:5]
        timing.compute_end_ns, timing.exec_end_ns = moments[5:7]
        for name, duration_ns in steps:
            timing.note_step(name, duration_ns)
        parameters = {"cache": "hit"} if is_cached else {}
        timing.note_answer(InferResponse(ResponseHeader("m", "1", ()), parameters=parameters))
        read = parse_server_timing(timing.value().decode())
    assert read is not None
    assert read.arrival_ns == first_ns
    assert sum(read.durations_ns) == now_ns - first_ns
    assert min(read.durations_ns) >= 0
    assert [duration_ns for _, duration_ns in read.steps] == [duration_ns for _, duration_ns in steps[:16]]


@given(st.text())
def test_any_value_is_read_or_refused(value) -> None:
    found = parse_server_timing(value)
    assert found is None or min(found.durations_ns) >= 0


@given(st.lists(waterfalls(), min_size=1, max_size=20), st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_percentiles_are_values_that_occurred(cases, percentiles) -> None:
    rows = [parts for _, (parts, _) in cases]
    for name, values in part_percentiles(rows, percentiles).items():
        assert {int(value) for value in values} <= {getattr(row, name) for row in rows}
