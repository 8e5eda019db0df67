"""For any interleaving of requests over both protocols the budget respects its limit and returns to zero."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.core.limits.request_limits import RequestBudget
from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http2.endpoint import RestSide
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.frames import frame
from support.http1_scene import Loop, Peer, post
from support.http2_peer import data_frame
from support.http2_scene import Scene, framed
from support.long_run import examples

LIMIT = 200_000
SIZES = st.sampled_from([10, 5_000, 40_000, 70_000, 150_000, 300_000])
PARTS = st.floats(0.0, 1.0)
SECOND_NS = 10**9


class BudgetMachine(RuleBasedStateMachine):
    """Clients that send complete and partial bodies, and a server that responds to some of them."""

    @initialize()
    def open(self):
        self.budget = RequestBudget(LIMIT)
        self.contexts = []
        self.http1 = Http1Server(self.contexts.append, Loop(), budget=self.budget)
        self.peers = [Peer(self.http1) for _ in range(3)]
        self.scenes = [self.new_scene() for _ in range(2)]
        self.next_id = dict.fromkeys(range(2), 1)
        self.partial = []

    def new_scene(self):
        return Scene(budget=self.budget, rest=RestSide(self.contexts.append)).open()

    @rule(index=st.integers(0, 2), size=SIZES, part=PARTS, chunked=st.booleans())
    def send_http1(self, index, size, part, chunked):
        body = bytes(size)
        data = post(body)
        if chunked:
            chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
            data = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk
        self.peers[index].send(data[: round(len(data) * part)])

    @rule(index=st.integers(0, 2))
    def replace_http1(self, index):
        self.peers[index].connection.connection_lost(None)
        self.peers[index] = Peer(self.http1)

    @rule(index=st.integers(0, 1), size=SIZES, part=PARTS, path=st.sampled_from(["/s/Keep", "/s/Stream", "rest"]))
    def send_http2(self, index, size, part, path):
        scene, stream_id = self.scenes[index], self.next_id[index]
        self.next_id[index] += 2
        if path == "rest":
            fields = [(":method", "POST"), (":scheme", "http"), (":path", "/v2/x"), (":authority", "x")]
            head, body = frame(wire.HEADERS, 4, stream_id, scene.encoder.encode(fields)), bytes(size)
        else:
            head, body = scene.headers(stream_id, path), framed(bytes(size))
        sent = round(len(body) * part)
        scene.send(head + data_frame(stream_id, body[:sent], end=sent == len(body)))
        self.partial.append((index, stream_id))

    @rule(number=st.integers(0, 100))
    @precondition(lambda self: self.partial)
    def reset_http2(self, number):
        index, stream_id = self.partial.pop(number % len(self.partial))
        self.scenes[index].send(frame(wire.RST_STREAM, 0, stream_id, b"\0\0\0\x08"))

    @rule(index=st.integers(0, 1))
    def replace_http2(self, index):
        self.scenes[index].protocol.connection_lost(None)
        self.scenes[index] = self.new_scene()
        self.next_id[index] = 1
        self.partial = [entry for entry in self.partial if entry[0] != index]

    @rule(number=st.integers(0, 100), more=st.integers(0, 100_000), is_streamed=st.booleans())
    @precondition(lambda self: self.contexts)
    def answer_exchange(self, number, more, is_streamed):
        context = self.contexts.pop(number % len(self.contexts))
        if context.reserve_bytes(more):
            context.release_bytes(more // 2)
        if is_streamed:
            context.start_stream(200, ())
            context.send((b"x",))
            context.end()
        else:
            context.respond(200, (), (b"x",))

    @rule(index=st.integers(0, 1), number=st.integers(0, 100), more=st.integers(0, 100_000))
    def answer_call(self, index, number, more):
        calls = self.scenes[index].service.calls
        if calls:
            call = calls.pop(number % len(calls))
            if call.reserve_bytes(more):
                call.release_bytes(more // 2)
            call.finish(0)

    @rule(second=st.integers(1, 300))
    def sweep(self, second):
        self.http1.sweep(second * SECOND_NS)

    @invariant()
    def the_limit_holds(self):
        assert 0 <= self.budget.used_bytes <= LIMIT

    def teardown(self):
        if not hasattr(self, "budget"):
            return
        for peer in self.peers:
            peer.connection.connection_lost(None)
        for scene in self.scenes:
            scene.protocol.connection_lost(None)
        assert self.budget.used_bytes == 0
        assert self.budget.peak_bytes <= LIMIT


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
