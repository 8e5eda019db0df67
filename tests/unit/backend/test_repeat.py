"""The repeat backend, without an engine: `emit` records."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from naiad.backend import repeat as delayed_decoupled_responses
from naiad.backend.repeat import DelayedResponses, RepeatBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, InferError
from naiad.core.response import InferResponse
from support.backend_parts import load_model, make_context, make_request, new_instance, output_arrays


class Recorder:
    """Takes responses; tests wait for a number of completions."""

    def __init__(self):
        self.received = []
        self.final_count = 0
        self.changed = threading.Condition()

    def __call__(self, request, response):
        with self.changed:
            self.received.append((request, response))
            self.final_count += response.final
            self.changed.notify_all()

    def wait_final(self, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: self.final_count >= count, 30)

    def values(self, request):
        arrays = [output_arrays(r) for q, r in self.received if q is request and not r.empty_final]
        return [(int(a["OUT"][0]), int(a["IDX"][0])) for a in arrays]


def request(elements, delays_ms=None, wait_ms=0, outputs=()):
    delays = np.zeros(len(elements), np.uint32) if delays_ms is None else np.array(delays_ms, np.uint32)
    arrays = {"IN": np.array(elements, np.int32), "DELAY": delays, "WAIT": np.array([wait_ms], np.uint32)}
    return make_request(arrays, outputs)


@pytest.fixture
def instance():
    model, _ = load_model(RepeatBackend(), make_context(ModelConfig(name="r", backend="repeat")))
    made = new_instance(model)
    yield made
    made.close()


def run(instance, *requests):
    batch = Batch(requests, len(requests))
    recorder = batch.emit = Recorder()
    assert instance.execute(batch) == ()
    assert 0 < batch.compute_start_ns <= batch.compute_end_ns
    return recorder


def test_every_element_is_response_then_empty_final(instance):
    asked = request([4, -2, 7])
    recorder = run(instance, asked)
    recorder.wait_final()
    assert recorder.values(asked) == [(4, 0), (-2, 1), (7, 2)]
    assert [(r.final, r.empty_final) for _, r in recorder.received] == [(False, False)] * 3 + [(True, True)]


def test_no_elements_give_the_executor_only(instance):
    recorder = run(instance, request([]))
    recorder.wait_final()
    ((_, response),) = recorder.received
    assert response.empty_final


def test_requested_outputs_only(instance):
    recorder = run(instance, request([5], outputs=["IDX"]))
    recorder.wait_final()
    assert list(output_arrays(recorder.received[0][1])) == ["IDX"]


def test_elements_and_delays_must_match(instance):
    wrong, right = request([1, 2], [0]), request([3])
    recorder = run(instance, wrong, right)
    recorder.wait_final(2)
    (error,) = [r.error for q, r in recorder.received if q is wrong]
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith("expected IN and DELAY shape to match, got [2] and [1]")
    assert recorder.values(right) == [(3, 0)]


def test_a_cancelled_request_is_completed_early(instance):
    asked = request([1, 2, 3])
    asked.cancelled = True
    recorder = run(instance, asked)
    recorder.wait_final()
    assert recorder.values(asked) == []


def test_waits_before_it_returns(instance, monkeypatch):
    waited = []
    monkeypatch.setattr(instance._closed, "wait", waited.append)
    run(instance, request([], wait_ms=20), request([], wait_ms=50)).wait_final(2)
    assert waited == [0.05]


def test_closing_drops_what_is_not_sent(instance):
    recorder = run(instance, request([1], [1_000_000]))
    instance.close()
    assert recorder.received == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: setattr(c.model_transaction_policy, "decoupled", False), "decoupled: true"),
        (lambda c: setattr(c, "max_batch_size", 4), "max_batch_size"),
        (lambda c: setattr(c.input[0], "name", "X"), "has the inputs IN"),
        (lambda c: c.output[0].dims.append(2), "has the outputs OUT"),
    ],
)
def test_configurations_that_do_not_fit(change, words):
    completed = RepeatBackend().auto_complete(make_context(ModelConfig(name="r")))
    change(completed)
    with pytest.raises(InferError, match=words):
        RepeatBackend().load(make_context(completed))


class Scripted:
    """Responses with given delays."""

    def __init__(self, name, *delays_ns, is_paused=False):
        self.request = SimpleNamespace(name=name, is_paused=is_paused, cancelled=False)
        self._delays_ns = list(delays_ns)

    def next_delay_ns(self):
        return self._delays_ns.pop(0) if self._delays_ns else 0

    def next_response(self):
        return InferResponse(None, final=not self._delays_ns)


def test_what_is_due_first_is_sent_first(monkeypatch):
    now_ns = 0
    monkeypatch.setattr(delayed_decoupled_responses.time, "monotonic_ns", lambda: now_ns)
    decoupled_responses = DelayedResponses("test")
    recorder = Recorder()
    decoupled_responses.begin(Scripted("late", 5, 5), recorder)
    decoupled_responses.begin(Scripted("soon", 3, 1, 3), recorder)
    now_ns = 100
    decoupled_responses.begin(Scripted("now", 0), recorder)
    recorder.wait_final(3)
    decoupled_responses.close()
    assert [request.name for request, _ in recorder.received] == ["soon", "soon", "late", "soon", "late", "now"]


def test_a_paused_request_waits_while_others_go_on(monkeypatch):
    now_ns = 0
    monkeypatch.setattr(delayed_decoupled_responses.time, "monotonic_ns", lambda: now_ns)
    decoupled_responses = DelayedResponses("test")
    recorder = Recorder()
    paused = Scripted("paused", 0, 0, is_paused=True)
    decoupled_responses.begin(paused, recorder)
    decoupled_responses.begin(Scripted("free", 0), recorder)
    recorder.wait_final(1)
    assert [request.name for request, _ in recorder.received] == ["free"]
    paused.request.is_paused = False
    now_ns = 10**9
    recorder.wait_final(2)
    decoupled_responses.close()
    assert [request.name for request, _ in recorder.received] == ["free", "paused", "paused"]
