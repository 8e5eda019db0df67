"""Files with a plain function `predict`: annotations give names and datatypes, rows in, rows out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess

SOURCES = {
    "double": """
import numpy as np

def predict(x: np.ndarray) -> np.ndarray:
    return 2 * x
""",
    "several": """
from typing import Dict, List
import numpy as np
import numpy.typing as npt

def predict(x: npt.NDArray[np.float32], ids: npt.NDArray[np.int64], scale: float = 2.0) -> Dict[str, np.ndarray]:
    return {"total": x.sum(axis=1) * scale, "is_odd": ids[:, 0] % 2 == 1, "matrix": np.stack([x, x], axis=1)}
""",
    "words": """
def predict(text: str, times: int = 2) -> str:
    return text.upper() * times
""",
    "columns": """
from typing import List, Tuple
import numpy as np

def predict(city: List[str], age: List[float]) -> Tuple[List[int], List[str]]:
    return [len(c) for c in city], [f"{c}:{a:g}" for c, a in zip(city, age)]
""",
    "masked": """
import numpy as np

def predict(x: np.ndarray) -> np.ndarray:
    return np.ma.masked_less(x, 0)
""",
    "square": """
import numpy as np
import numpy.typing as npt

def predict(x: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return x.astype(np.int64) ** 2
""",
    "fixed": """
import numpy as np

WEIGHTS = np.arange(3.0)

def predict(x: np.ndarray) -> np.ndarray:
    if (x < 0).any():
        raise ValueError("a negative number")
    return x @ WEIGHTS
""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("functions")
    paths = []
    for name, source in SOURCES.items():
        path = folder / f"{name}.py"
        path.write_text(source)
        paths.append(str(path))
    running = ServerProcess(folder / "log", *paths, "--input=fixed:x:FP64:-1,3")
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def predictions(server: ServerProcess, model: str, body: object) -> list:
    answer = server.post(f"/v2/models/{model}/generate", body)
    assert answer.status == 200, answer.body
    return answer.json["predictions"]


def test_array_function_gets_all_rows_of_a_request(server: ServerProcess) -> None:
    assert predictions(server, "double", [[1, 2], [3, 4.5]]) == [[2, 4], [6, 9]]
    assert len(predictions(server, "double", [[1, 2, 3]] * 569)) == 569
    answer = server.post("/v2/models/double/generate", {"x": [[30], [40]]})
    assert answer.json["output"] == [[60], [80]]
    shapes = {
        each["name"]: each["shape"]
        for model in ("several", "fixed")
        for each in server.get(f"/v2/models/{model}").json["outputs"]
    }
    assert shapes["matrix"] == [-1, -1, -1]
    assert (shapes["total"], shapes["is_odd"]) == ([-1, 1], [-1, 1])
    assert server.get("/v2/models/double").json["outputs"][0]["shape"] == [-1, -1]


def test_dictionary_of_a_result_names_the_outputs(server: ServerProcess) -> None:
    rows = [{"x": [1, 2], "ids": [3]}, {"x": [0, 1], "ids": [4]}]
    expected = [
        {"total": 6, "is_odd": True, "matrix": [[1, 2], [1, 2]]},
        {"total": 2, "is_odd": False, "matrix": [[0, 1], [0, 1]]},
    ]
    assert predictions(server, "several", rows) == expected
    config = server.get("/v2/models/several/config").json
    assert {each["name"]: each["data_type"] for each in config["output"]} == {
        "total": "TYPE_FP32", "is_odd": "TYPE_BOOL", "matrix": "TYPE_FP32",
    }  # fmt: skip
    assert predictions(server, "several", [{**row, "scale": 1} for row in rows])[0]["total"] == 3
    answer = server.post("/v2/models/several/generate", [{**row, "scale": n} for n, row in enumerate(rows)])
    assert "the rows have different values" in answer.json["error"]


def test_plain_values_are_a_call_for_each_row(server: ServerProcess) -> None:
    assert predictions(server, "words", [{"text": "a"}, {"text": "é"}]) == ["AA", "ÉÉ"]
    assert predictions(server, "words", [{"text": "a", "times": 3}, {"text": "b", "times": 1}]) == ["AAA", "B"]


def test_lists_are_columns(server: ServerProcess) -> None:
    rows = [{"city": "Rom", "age": 3}, {"city": "Linz", "age": 4.5}]
    assert predictions(server, "columns", rows) == [
        {"output_0": 3, "output_1": "Rom:3"}, {"output_0": 4, "output_1": "Linz:4.5"},
    ]  # fmt: skip


def test_flag_gives_the_shape_of_an_argument(server: ServerProcess) -> None:
    assert predictions(server, "fixed", [[1, 1, 1], [0, 0, 2]]) == [3, 4]
    answer = server.post("/v2/models/fixed/generate", [[1, 1]])
    assert "has shape [2], expected [3]" in answer.json["error"]


def test_exception_of_a_function_fails_its_request_alone(server: ServerProcess) -> None:
    answer = server.post("/v2/models/fixed/generate", [[1, 1, -1]])
    assert "predict: " in answer.json["error"]
    assert "a negative number" in answer.json["error"]
    assert predictions(server, "fixed", [[1, 1, 1]]) == [3]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def predict(*rows): ...", "argument 'rows' of predict has no name for an input"),
        ("def predict(): ...", "has no arguments"),
        ("def predict(x: set) -> str: ...", "argument 'x' of predict has the annotation"),
        ("def predict(x: str) -> dict: raise KeyError(x)", "annotate the result with a TypedDict"),
        ("def forward(x): ...", "no class TritonPythonModel"),
    ],
)
def test_function_without_a_signature_is_refused(tmp_path: Path, start_server, source: str, text: str) -> None:
    (tmp_path / "f.py").write_text(source)
    running = start_server(None, str(tmp_path / "f.py"))
    assert running.wait_exit() == 1
    assert text in running.log_text()


def test_masked_elements_are_refused(server: ServerProcess) -> None:
    def answer(value: float) -> tuple[int, str]:
        tensor = {"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [value]}
        response = server.post("/v2/models/masked/infer", {"inputs": [tensor]})
        return response.status, response.body.decode()

    status, text = answer(-1.0)
    assert status == 500
    assert "'output' has masked elements" in text
    assert answer(2.0)[0] == 200


def test_result_that_its_annotation_lacks_is_refused(server: ServerProcess) -> None:
    assert predictions(server, "square", {"instances": [{"x": [3]}]}) == [9]
    answer = server.post("/v2/models/square/generate", {"instances": [{"x": [100_000]}]})
    assert answer.status == 500
    assert "has 10000000000, which is out of range for int32; annotate the result with int64" in answer.json["error"]
