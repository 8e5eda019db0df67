"""Requests to a decoder without a server: each on an instance and a thread of its own."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest, RequestHeader, ignore_response
from naiad.core.tensor import TensorSpec
from support.backend_parts import new_instance

PATIENCE_S = 120


class DecoderClient:
    """One request, and the tokens that have come."""

    def __init__(self, prompt, *, stream=True, **sampling):
        text = json.dumps({"ignore_eos": True, **sampling}).encode()
        specs = [
            TensorSpec("input_ids", DataType.INT64, (len(prompt),)),
            TensorSpec("stream", DataType.BOOL, (1,)),
            TensorSpec("sampling_parameters", DataType.BYTES, (1,)),
        ]
        data = [np.array(prompt, "<i8").tobytes(), bytes([stream]), struct.pack("<I", len(text)) + text]
        self.request = InferRequest(RequestHeader(model_name="m", inputs=specs), data, ignore_response)
        self.prompt = list(prompt)
        self.tokens = []
        self.error = None
        self.final_count = 0
        self.after = {}
        """What happens when this number of tokens has come; they come in pieces."""

    def take(self, request, response):
        assert request is self.request
        self.error = response.error
        self.final_count += response.final
        if response.data:
            names = [spec.name for spec in response.header.outputs]
            self.tokens += np.frombuffer(response.data[names.index("token_ids")], "<i8").tolist()
        for count in [count for count in self.after if count <= len(self.tokens)]:
            self.after.pop(count)()

    def run(self, instance):
        batch = Batch([self.request], 1)
        batch.emit = self.take
        assert not instance.execute(batch)
        assert self.final_count == 1
        return self


def run_all(model, clients):
    """Execute all clients at a time, each on an instance of its own; return when all have ended."""
    with ThreadPoolExecutor(len(clients)) as pool:
        runs = [pool.submit(client.run, new_instance(model, index)) for index, client in enumerate(clients)]
        for run in runs:
            run.result(PATIENCE_S)
