"""One Ray for all tests in this process, and a repository with small models."""

from pathlib import Path

import pytest

RATIO = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pairs = [pb_utils.get_input_tensor_by_name(request, "PAIR").as_numpy() for request in requests]
        time.sleep(DELAY_S)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RATIO", each[:, :1] / each[:, 1:])]) for each in pairs]
"""
CONFIG = """backend: "python"
max_batch_size: 64
input [ { name: "PAIR" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "RATIO" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def write_model(repository: Path, name: str, delay_s: float) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (repository / name / "1" / "model.py").write_text(RATIO.replace("DELAY_S", str(delay_s)))


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> Path:
    """`ratio` divides two numbers; `slow` does so, too, and needs 50 ms for each batch."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "ratio", 0)
    write_model(folder, "slow", 0.05)
    return folder


@pytest.fixture(scope="session")
def cluster():
    """Ray, started once; the tests of `naiad predict` start theirs themselves."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
