"""A decoupled model in the shape of a text generator: one text in, its continuation out, a token a response."""

import json
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import triton_python_backend_utils as pb_utils

STORY = """the king had a castle and the castle had a tower and the tower had a window and the window had a view of
the sea and the sea had a ship and the ship had a captain and the captain had a map and the map had a king"""


class TritonPythonModel:
    """Continues a text with words that have followed each other in a story."""

    def initialize(self, args: dict[str, str]) -> None:
        """Learn from the story which words follow which; make threads that generate."""
        words = STORY.split()
        self.followers: dict[str, list[str]] = defaultdict(list)
        for word, follower in pairwise(words):
            self.followers[word].append(follower)
        self.threads = ThreadPoolExecutor(16)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Begin to answer the requests; they go on being answered while the next ones come."""
        for request in requests:
            self.threads.submit(self.generate, request)

    def generate(self, request: pb_utils.InferenceRequest) -> None:
        """Send token after token, then the flag that ends the answer."""
        sender = request.get_response_sender()
        try:
            self.send_tokens(request, sender)
        except Exception as error:
            # One request has failed. It must be told so here: `execute` has returned.
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send_tokens(self, request: pb_utils.InferenceRequest, sender: pb_utils.InferenceResponseSender) -> None:
        """Generate up to `max_tokens`, or until the client has gone away."""
        parameters = json.loads(request.parameters() or "{}")
        chance = random.Random(parameters.get("seed", 0))
        tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
        assert tensor is not None
        words = tensor.as_numpy()[0].decode().split()
        if not words:
            raise ValueError("text_input has no words")
        word = words[-1].lower()
        for _ in range(int(parameters.get("max_tokens", 16))):
            if sender.is_cancelled():
                break
            word = chance.choice(self.followers.get(word) or ["the"])
            token = np.array([f" {word}"], dtype=object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", token)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self) -> None:
        """End the threads; every request has had its answer."""
        self.threads.shutdown()
