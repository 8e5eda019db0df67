"""Three functions as models."""

import numpy as np

from naiad.bind.decorators import batch, sample
from naiad.bind.model_config import DynamicBatcher, ModelConfig, Tensor
from naiad.bind.triton import Triton


@batch
def normalize(data):
    """Requests that wait are executed together: `data` has the rows of all of them."""
    return {"normalized": data / np.linalg.norm(data, axis=1, keepdims=True)}


@sample
def lengths(texts):
    """Without batching: the inputs of one request. Text arrives as `bytes`."""
    return {"lengths": np.array([len(text.decode()) for text in texts], np.int64)}


@batch
async def countdown(start):
    """A generator sends several responses to each request."""
    for step in range(3):
        yield {"left": start - step}


with Triton() as triton:
    triton.bind(
        "normalize",
        normalize,
        inputs=[Tensor(name="data", shape=(-1,), dtype=np.float32)],
        outputs=[Tensor(name="normalized", shape=(-1,), dtype=np.float32)],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=500)),
        strict=True,
    )
    triton.bind(
        "lengths",
        lengths,
        inputs=[Tensor(name="texts", shape=(-1,), dtype=bytes)],
        outputs=[Tensor(name="lengths", shape=(-1,), dtype=np.int64)],
        config=ModelConfig(batching=False),
    )
    triton.bind(
        "countdown",
        countdown,
        inputs=[Tensor(name="start", shape=(1,), dtype=np.int64)],
        outputs=[Tensor(name="left", shape=(1,), dtype=np.int64)],
        config=ModelConfig(decoupled=True),
    )
    triton.serve()
