"""Merging the samples of a live stream gives what the server has counted, whichever samples a slow client skips."""

from types import SimpleNamespace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from naiad.client.live_events import LiveEvent
from naiad.client.live_view import LiveView
from naiad.frontend.dashboard.live_request import LiveRequest
from naiad.frontend.dashboard.live_stream import EncodedVersion, LiveStream, Rights
from naiad.protocol.json.management.live import encode_version
from naiad.telemetry.live.live_answer import LiveAnswer, VersionKey
from naiad.telemetry.statistics.live_counts import LiveCounts
from naiad.wire.event_stream import EventParser

NAMES = ["m", "dir/n", "<b>\n"]
ALLOWED = Rights({name: {"allowed": True} for name in ("statistics", "logging", "model-repository", "inference")})
ROWS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)).map(
    lambda numbers: LiveCounts(success=numbers[0], executions=numbers[1], pending=numbers[2])
)
TICK = st.tuples(st.booleans(), st.dictionaries(st.sampled_from(NAMES), ROWS, max_size=3))


@given(st.lists(TICK, max_size=12))
def test_merged_samples_are_the_present_counters(ticks: list[tuple[bool, dict[str, LiveCounts]]]) -> None:
    sent = bytearray()
    context = SimpleNamespace(send=lambda parts: sent.extend(b"".join(parts)), unread_bytes=0, client=None)
    stream = LiveStream(context, LiveRequest(), lambda _: ALLOWED)
    view, parser = LiveView(), EventParser()
    encoded: dict[VersionKey, EncodedVersion] = {}
    for number, (is_skipped, rows) in enumerate(ticks, start=1):
        encoded = {(name, "1"): _encoded(encoded.get((name, "1")), name, row) for name, row in sorted(rows.items())}
        if is_skipped:
            continue
        sent.clear()
        answer = LiveAnswer(is_ready=True, cpu_s=1.0, resident_bytes=1, in_flight=0, rows={})
        stream.send_sample(answer, 1000 * number, encoded)
        versions = [{"version": "1", "state": "READY"}]
        view.apply(LiveEvent("models", {"models": [{"name": name, "versions": versions} for name in rows]}))
        for event in parser.feed(bytes(sent)):
            view.apply(LiveEvent(event.name, orjson.loads(event.data)))
        shown = {name: view.totals(name) for name in view.versions()}
        assert shown == {f"{name}/1": orjson.loads(encode_version(row)) for name, row in rows.items()}
        assert all(view.rates(name).requests_per_s >= 0 for name in shown)


def _encoded(known: EncodedVersion | None, name: str, row: LiveCounts) -> EncodedVersion:
    """Return the version as the feed does: unchanged ones stay the same object."""
    return known if known is not None and known.row == row else EncodedVersion(f"{name}/1", row, encode_version(row))
