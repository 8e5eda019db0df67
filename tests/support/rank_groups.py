"""A Python model whose instance is a group of ranks, which note what they see in files beside the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.server_process import Answer, ServerProcess

SLEEP, FAIL_ALL, FAIL_LAST, EXIT_LAST, FAIL_FIRST, HANG_LAST = 1, 2, 3, 4, 5, 6
"""First values of a request, and what the ranks, the last or the first one, do with it."""
MODEL = """
import os
import time
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(__file__)
SLEEP, FAIL_ALL, FAIL_LAST, EXIT_LAST, FAIL_FIRST, HANG_LAST = 1, 2, 3, 4, 5, 6


class TritonPythonModel:
    def initialize(self, args):
        self.rank = int(args["rank"])
        assert args["world_size"] == os.environ["WORLD_SIZE"]
        assert args["model_repository"] == os.path.dirname(HERE)
        assert 0 < int(os.environ["MASTER_PORT"]) < 65536
        if os.path.exists(os.path.join(HERE, "broken")) and self.rank == 1:
            raise RuntimeError("no weights for this rank")
        names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR".split()
        self.note("environment", " ".join(os.environ[name] for name in names))
        self.note("pid", str(os.getpid()))

    def note(self, kind, text):
        path = os.path.join(HERE, f"{kind}_{self.rank}")
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        first = int(values[0].flat[0])
        self.note("sum", str(sum(int(each.sum()) for each in values)))
        is_last = self.rank == int(os.environ["WORLD_SIZE"]) - 1
        if first == FAIL_ALL or (first == FAIL_LAST and is_last):
            raise ValueError(f"failed in rank {self.rank}")
        if first == EXIT_LAST and is_last:
            os._exit(7)
        if first == FAIL_FIRST and self.rank == 0:
            raise ValueError("failed in rank 0")
        while first in (FAIL_FIRST, HANG_LAST) and is_last:
            time.sleep(0.01)
        while first == SLEEP and not os.path.exists(os.path.join(HERE, "go")):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each * 10 + self.rank)]) for each in values]

    def finalize(self):
        self.note("finalized", "yes")
"""


def config(size: int, **parameters: object) -> str:
    """Return the configuration of a group of `size` ranks."""
    text = """
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
    for name, value in {"tensor_parallel_size": size, **parameters}.items():
        text += f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
    return text


def notes(homes: Sequence[Path], kind: str) -> list[str]:
    """Return the notes of one kind; `homes` has the version directory of each rank."""
    return [(home / f"{kind}_{rank}").read_text() for rank, home in enumerate(homes)]


def infer(server: ServerProcess, *values: int) -> Answer:
    """Send one row of values to the model `ranks`."""
    body = {"inputs": [{"name": "X", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}]}
    return server.post("/v2/models/ranks/infer", body)


def result(server: ServerProcess, *values: int) -> Any:
    """Return the values of the response of rank 0, which are ten times those sent."""
    answer = infer(server, *values)
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]
