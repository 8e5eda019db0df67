"""Python models whose answers are not what their configurations say, with a real server and stock tritonclient."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.model_repository import write_model
from support.model_zoo import write_python
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] IN_RESHAPE } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] OUT_RESHAPE } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [ STEPS ] }
"""
STEP = """
{ model_name: "%s" model_version: -1 input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }
"""
INTEGERS = "IN.astype(np.int64)"


def write_outputs(repository: Path, name: str, result: str, extra: str = "", *, reshapes: tuple[str, str] = ("", "")):
    config = CONFIG.replace("IN_RESHAPE", reshapes[0]).replace("OUT_RESHAPE", reshapes[1]) + extra
    write_python(repository, name, config, {"OUT": result}, inputs=["IN"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("outputs")
    repository = directory / "models"
    write_outputs(repository, "integers", INTEGERS)
    write_outputs(repository, "wide", "np.zeros((1, 3), np.float32)")
    write_outputs(repository, "rows", "np.zeros((5, 2), np.float32)", "dynamic_batching { }")
    write_outputs(repository, "cached", INTEGERS, "response_cache { enable: true }")
    strict = 'parameters { key: "strict_outputs" value: { string_value: "true" } }'
    write_outputs(repository, "strict", INTEGERS, strict)
    write_outputs(repository, "same", "IN")
    write_outputs(repository, "half", "np.array([['a', 'b\\ud800' if IN[0, 0] > 1 else 'c']], object)")
    reshapes = ("reshape { shape: [ 1, 2 ] }", "reshape { shape: [ 2, 1 ] }")
    write_outputs(repository, "reshaped", "np.array([[[IN.ndim], [IN.shape[1]]]], np.float32)", reshapes=reshapes)
    write_model(repository, "direct", ENSEMBLE.replace("STEPS", STEP % ("integers", "IN", "OUT")), {"1/empty": ""})
    steps = STEP % ("integers", "IN", "MIDDLE") + "," + STEP % ("same", "MIDDLE", "OUT")
    write_model(repository, "chained", ENSEMBLE.replace("STEPS", steps), {"1/empty": ""})
    flags = (f"--model-repository={repository}", "--cache-config=local,size=1048576")
    with serving(directory / "log", *flags) as running:
        yield running


def ask(transport, model: str, **fields) -> np.ndarray:
    outputs = [transport.module.InferRequestedOutput("OUT", **fields)]
    return transport.infer(model, {"IN": np.array([[1, 2]], np.float32)}, outputs=outputs)["OUT"]


def test_unexpected_outputs_arrive_as_answered(transport):
    answer = ask(transport, "integers")
    assert (answer.dtype, answer.tolist()) == (np.int64, [[1, 2]])
    assert ask(transport, "wide").shape == (1, 3)
    assert ask(transport, "rows").shape == (5, 2)
    assert ask(transport, "integers", class_count=1).tolist() == [[b"2:1"]]


def test_json_has_the_answered_datatype(server):
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    (output,) = server.post("/v2/models/integers/infer", body).json["outputs"]
    assert output == {"name": "OUT", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}


def test_the_cache_keeps_the_answered_datatype(transport):
    assert [ask(transport, "cached").dtype for _ in range(2)] == [np.int64] * 2


def test_ensembles_get_the_answered_datatype(transport):
    assert ask(transport, "direct").dtype == np.int64
    with pytest.raises(Exception, match="inference input 'IN' data-type is 'INT64', but model 'same' expects 'FP32'"):
        ask(transport, "chained")


def test_one_warning_per_version_and_output(transport, server):
    for _ in range(4):
        ask(transport, "integers")
    warnings = [line for line in server.log_text().splitlines() if "model 'integers' answered output 'OUT'" in line]
    assert len(warnings) == 1
    assert "with datatype INT64, but its configuration says FP32" in warnings[0]


def test_strict_outputs_are_refused(transport):
    with pytest.raises(Exception, match="answered output 'OUT' with datatype INT64, but its configuration says FP32"):
        ask(transport, "strict")


HALF = (
    r"output 'OUT' of model 'half' has half of a surrogate pair \(U\+D800, at character 1 of element 1\), which "
    r"UTF-8 does not have; encode the text with text\.encode\('utf-8', 'replace'\)"
)


def test_half_of_a_surrogate_pair_names_the_output(transport, server):
    values = np.array([[2, 2]], np.float32)
    with pytest.raises(Exception, match=HALF):
        transport.infer("half", {"IN": values})
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [2, 2]}]}
    for path, request in (("infer", body), ("generate", {"IN": [2, 2]})):
        response = server.post(f"/v2/models/half/{path}", request)
        assert response.status == 500
        assert re.search(HALF, response.json["error"])
    assert transport.infer("half", {"IN": values / 2})["OUT"].tolist() == [[b"a", b"c"]]


def test_reshape_applies_to_inputs_and_outputs(transport):
    # The model saw [1,1,2] and answered [1,2,1].
    assert ask(transport, "reshaped").tolist() == [[3, 1]]
