"""The executor's list of batch transforms: order, undoing, a failure in between."""

from types import SimpleNamespace

import pytest

from naiad.core.batch import Batch
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.serving.execution.executor import BatchExecutor
from naiad.telemetry.statistics.model_statistics import ModelStatistics


class Marking:
    """Adds a mark to the model name of every request, and removes it again."""

    def __init__(self, mark, log, *, fails=False):
        self.mark, self.log, self.fails = mark, log, fails

    def prepare(self, batch):
        self.log.append(f"prepare {self.mark}")
        if self.fails:
            raise ValueError(self.mark)
        batch.replaced.append((self, [request.header for request in batch.requests]))
        for request in batch.requests:
            request.header = RequestHeader(model_name=request.header.model_name + self.mark, inputs=())

    def settle(self, batch, responses):
        self.restore(batch)
        return responses

    def restore(self, batch):
        if batch.replaced and batch.replaced[-1][0] is self:
            self.log.append(f"restore {self.mark}")
            _, headers = batch.replaced.pop()
            for request, header in zip(batch.requests, headers, strict=True):
                request.header = header


class Scene:
    def __init__(self, *, second_fails=False, execution_fails=False):
        self.log, self.answered, self.seen = [], [], []
        self.execution_fails = execution_fails
        dispatcher = SimpleNamespace(
            decoupled_responses=None,
            note_executed=lambda batch, failed=False: None,
            go_on=lambda done, again: None,
        )
        queue = SimpleNamespace(hand_over=lambda requests, responses, on_loop: self.answered.extend(responses))
        transforms = [Marking("a", self.log), Marking("b", self.log, fails=second_fails)]
        self.executor = BatchExecutor(
            dispatcher, statistics=ModelStatistics("m", "1"), response_queue=queue, transforms=transforms
        )
        self.request = InferRequest(RequestHeader(model_name="m", inputs=()), (), lambda *_: None)
        self.executor.execute(self, Batch([self.request], 1))

    def execute(self, batch):
        self.seen = [request.header.model_name for request in batch.requests]
        if self.execution_fails:
            raise RuntimeError("broken")
        return [InferResponse(ResponseHeader("m", "1", ()), ())]


def test_transforms_are_undone_in_reverse_order():
    scene = Scene()
    assert scene.seen == ["mab"]
    assert scene.log == ["prepare a", "prepare b", "restore b", "restore a"]
    assert scene.request.header.model_name == "m"
    assert scene.answered[0].error is None


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ({"execution_fails": True}, ["prepare a", "prepare b", "restore b", "restore a"]),
        ({"second_fails": True}, ["prepare a", "prepare b", "restore a"]),
    ],
)
def test_failed_batch_gets_its_headers_back(kind, log):
    scene = Scene(**kind)
    assert scene.log == log
    assert scene.request.header.model_name == "m"
    assert scene.answered[0].error is not None
