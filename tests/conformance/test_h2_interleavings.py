"""The h2 package as a client, whose frames meet the frames of the server in any order and any pieces.

h2 checks what the server sends: states of streams, windows, header blocks. It raises at the first mistake.
"""

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.wire.http2.connection_limits import Http2Limits
from support.http2_conversation import ECHO, HOLD, STREAM, Conversation
from support.long_run import examples
from support.raw_http2 import grpc_head, grpc_message

LIMITS = Http2Limits(frame_bytes=2**14, stream_window_bytes=65_535, connection_window_bytes=65_535)
MESSAGES = st.lists(
    st.one_of(st.binary(max_size=20), st.integers(0, 100_000).map(lambda size: bytes(range(256)) * (size // 256))),
    min_size=1,
    max_size=3,
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from([ECHO, ECHO, STREAM, HOLD]), MESSAGES, st.booleans()),
        st.tuples(st.just("send"), st.integers(0, 9), st.integers(0, 30_000), st.integers(0, 255)),
        st.tuples(st.just("send"), st.integers(0, 9), st.integers(0, 30_000), st.none()),
        st.tuples(st.just("deliver"), st.integers(1, 50_000)),
        st.tuples(st.just("receive"), st.integers(1, 50_000)),
        st.tuples(st.just("reset"), st.integers(0, 9)),
        st.tuples(st.just("ping")),
        st.tuples(st.just("window"), st.integers(0, 9), st.integers(1, 70_000)),
        st.tuples(st.just("settings"), st.sampled_from([0, 1, 100, 65_535, 2**20]), st.sampled_from([2**14, 2**15])),
        st.tuples(st.just("table"), st.sampled_from([0, 100, 4096])),
        st.tuples(st.just("priority"), st.integers(0, 9), st.integers(1, 256)),
    ),
    max_size=30,
)


class Call:
    def __init__(self, path, messages, has_trailers):
        self.path = path
        self.body = b"".join(map(grpc_message, messages if path == STREAM else messages[:1]))
        self.has_trailers = has_trailers
        self.unsent = self.body
        self.is_ended = False
        self.received = bytearray()
        self.fields = {}
        self.is_answered = False


class Client:
    """Calls on one connection of the h2 package."""

    def __init__(self):
        self.server = Conversation(0, LIMITS, opened=False)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.unacknowledged = 1
        self.calls = {}
        self.to_server = bytearray()
        self.to_client = bytearray()

    def _pick(self, which):
        open_calls = [i for i, call in self.calls.items() if not call.is_answered]
        return open_calls[which % len(open_calls)] if open_calls else None

    def open(self, path, messages, has_trailers):
        stream_id = self.h2.get_next_available_stream_id()
        if self.h2.open_outbound_streams < 100:
            self.h2.send_headers(stream_id, grpc_head(path))
            self.calls[stream_id] = Call(path, messages, has_trailers)

    def send(self, which, size, padding):
        stream_id = self._pick(which)
        if stream_id is None or self.calls[stream_id].is_ended:
            return
        call = self.calls[stream_id]
        padded = 0 if padding is None else padding + 1
        size = min(size, len(call.unsent), self.h2.local_flow_control_window(stream_id) - padded)
        size = min(size, self.h2.max_outbound_frame_size - padded)
        if size < 0:
            return
        piece, call.unsent = call.unsent[:size], call.unsent[size:]
        ends = not call.unsent and not call.has_trailers
        self.h2.send_data(stream_id, piece, end_stream=ends, pad_length=padding)
        if not call.unsent and call.has_trailers:
            self.h2.send_headers(stream_id, [("x-trailer", "1")], end_stream=True)
        call.is_ended = not call.unsent

    def deliver(self, size):
        """Let the server read some of what was sent."""
        self.to_server += self.h2.data_to_send()
        self.server.send(bytes(self.to_server[:size]))
        del self.to_server[:size]

    def receive(self, size):
        """Read some of what the server has sent."""
        self.server.run_soon()
        written = self.server.transport.written
        self.to_client += written
        written.clear()
        events = self.h2.receive_data(bytes(self.to_client[:size]))
        del self.to_client[:size]
        for event in events:
            self._take(event)

    def _take(self, event):
        assert not isinstance(event, h2.events.ConnectionTerminated)
        self.unacknowledged -= isinstance(event, h2.events.SettingsAcknowledged)
        call = self.calls.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.DataReceived):
            call.received += event.data
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            call.fields.update(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            call.is_answered = True
        elif isinstance(event, h2.events.StreamReset):
            assert event.error_code == 0
            assert call.is_answered

    def reset(self, which):
        stream_id = self._pick(which)
        if stream_id is not None:
            self.h2.reset_stream(stream_id, 8)
            del self.calls[stream_id]

    def ping(self):
        self.h2.ping(b"12345678")

    def window(self, which, size):
        stream_id = self._pick(which)
        if stream_id is not None:
            self.h2.increment_flow_control_window(size, stream_id)
        self.h2.increment_flow_control_window(size)

    def settings(self, window, frame_bytes):
        codes = h2.settings.SettingCodes
        self._update({codes.INITIAL_WINDOW_SIZE: window, codes.MAX_FRAME_SIZE: frame_bytes})

    def table(self, size):
        self._update({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})

    def _update(self, values):
        # h2 takes any acknowledgement for that of all its changes, so one is made at a time.
        if not self.unacknowledged:
            self.unacknowledged = 1
            self.h2.update_settings(values)

    def priority(self, which, weight):
        stream_id = self._pick(which)
        if stream_id is not None:
            self.h2.prioritize(stream_id, weight)

    def finish(self):
        """Send what is left, open all windows, and read until the server has nothing more to say."""
        for _ in range(200):
            self.deliver(2**30)
            self.receive(2**30)
            self.settings(2**20, 2**14)
            for which, (stream_id, call) in enumerate(list(self.calls.items())):
                if not call.is_answered:
                    self.send(self._index(stream_id), 2**14, None)
                    self.window(which, 2**14)
            if all(call.is_answered or (call.is_ended and call.path == HOLD) for call in self.calls.values()):
                return

    def _index(self, stream_id):
        return [i for i, call in self.calls.items() if not call.is_answered].index(stream_id)


@given(ACTIONS)
@settings(max_examples=examples(150), deadline=None)
def test_every_call_is_answered_in_any_interleaving(actions):
    client = Client()
    for action, *arguments in actions:
        getattr(client, action)(*arguments)
    client.finish()
    for call in client.calls.values():
        if call.path == HOLD:
            assert not call.received
        else:
            assert call.is_answered
            assert bytes(call.received) == call.body
            assert call.fields[b"grpc-status"] == b"0"
    assert len(client.server.streams) == sum(call.path == HOLD for call in client.calls.values())
