"""The digits classifier in a server: the client, and what the formats of all frameworks must do alike."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_classifier import digits_classifier
from support.server_process import serving

DELAYED = "dynamic_batching { max_queue_delay_microseconds: 20000 }"
Ask = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""Sends images and returns their probabilities."""


@contextmanager
def connected(repository: Path, logs: pytest.TempPathFactory, *flags: str) -> Iterator[triton.InferenceServerClient]:
    """Serve a repository for one client."""
    with serving(logs.mktemp("log") / "log", f"--model-repository={repository}", *flags) as server:
        client = triton.InferenceServerClient(server.grpc_url)
        yield client
        client.close()


def check_probabilities(ask: Ask, rows: int) -> None:
    """Compare the response to one request with numpy."""
    digits = digits_classifier()
    images = digits.images[:rows]
    np.testing.assert_allclose(ask(images), digits.probabilities(images), atol=1e-5)


def check_batches(client: triton.InferenceServerClient, model: str, ask: Ask) -> None:
    """Send concurrent requests of one row; they must share executions."""
    digits = digits_classifier()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, [digits.images[index : index + 1] for index in range(64)]))
    np.testing.assert_allclose(np.concatenate(answers), digits.probabilities(digits.images[:64]), atol=1e-5)
    (statistics,) = client.get_inference_statistics(model).model_stats
    assert statistics.execution_count < statistics.inference_count


def check_completed_config(
    client: triton.InferenceServerClient, model: str, backend: str, image_name: str, output_name: str
) -> None:
    """Check what a server completes for a model without a configuration: batches of 4, one input and one output."""
    config = client.get_model_config(model, as_json=True)["config"]
    assert (config["backend"], config["max_batch_size"]) == (backend, 4)
    assert "dynamic_batching" in config
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == (image_name, "TYPE_FP32", ["64"])
    assert (output["name"], output["data_type"], output["dims"]) == (output_name, "TYPE_FP32", ["10"])
