"""`bench.recommender`: the example on Ray Serve, with naiad and alone, answers what ONNX Runtime alone does."""

import json

import pytest
from bench.recommender import main

pytestmark = pytest.mark.filterwarnings("ignore")


def test_ray_and_naiad_answer_alike(capsys) -> None:
    cases = ["one", "ray-naiad", "ray-alone"]
    assert main(["--rounds", "1", "--seconds", "1", "--connections", "2", "--only", *cases]) == 0
    output = capsys.readouterr().out
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["case"] for row in rows] == cases
    assert "one / ray-alone:" in output
