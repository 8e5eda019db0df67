"""An adapter of an isolated instance without its process: frames are encoded and decoded in one."""

from collections.abc import Mapping, Sequence

from naiad.backend.api import Instance, InstanceSpec, ModelContext
from naiad.backend.isolation.adapter import InstanceAdapter
from naiad.backend.isolation.backend import IsolatedBackend
from naiad.backend.workers.conversation.server_codec import BatchEncoder, BatchResponseDecoder, join_ids
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.config.backends import BUILT_IN
from naiad.core.batch import Batch
from naiad.core.response import InferResponse
from naiad.worker.channel import frame as frames
from naiad.worker.channel.frame import Frame, decode_frame, encode_frame
from naiad.worker.execution.codec import RequestDecoder, ResponseEncoder


class LoopbackInstance(Instance):
    """Executes batches as server and worker do together."""

    def __init__(self, context: ModelContext) -> None:
        name = context.config.backend
        source = IsolatedBackend(name, BUILT_IN[name]).source_on(())
        self.adapter = InstanceAdapter()
        self.adapter.initialize(adapter_args(source.args(context, InstanceSpec("m_0_0", 0, "KIND_CPU")), context))
        rules = TensorRules(context.config)
        self._encoder, self._decoder = BatchEncoder(rules), BatchResponseDecoder(context.name, "1", rules)
        self._requests = RequestDecoder(frozenset(output.name for output in context.config.output))
        self._responses = ResponseEncoder()

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        batch.compute_start_ns = batch.compute_end_ns = 1
        words, extra, parts, size = self._encoder.encode(batch.requests)
        sent = _passed(frames.EXECUTE, words, join_ids(batch.requests), extra, parts, size)
        received = self._requests.requests(sent, lambda position: batch.requests[position].cancelled)
        responses = self.adapter.execute(received)
        assert responses is not None
        reply = self._responses.encode(received, [response for response in responses if response is not None])
        answer = _passed(frames.EXECUTED, reply.words, "", reply.extra(), reply.parts, reply.payload_bytes)
        return self._decoder.decode(answer, batch.requests)


def adapter_args(args: Mapping[str, str], context: ModelContext) -> dict[str, str]:
    """Return what a worker gives an adapter."""
    return {
        "model_instance_name": "m_0_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_repository": str(context.model_dir),
        "model_version": str(context.version),
        "model_name": context.name,
        **args,
    }


def _passed(kind: int, words: Sequence[int], text: str, extra: object, parts: Sequence[object], size: int) -> Frame:
    return decode_frame(encode_frame(kind, words, text, extra, parts, size, 0, 0), bytearray)  # type: ignore[arg-type]
