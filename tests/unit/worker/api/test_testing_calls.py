"""`naiad.testing`: models that call others, which are functions of the test."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.testing import ModelError, PythonModel
from naiad.worker.api import pb_utils

_CONFIG = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_HEAD = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils


def ask(request, name="double", **fields):
    return pb_utils.InferenceRequest(
        model_name=name, inputs=request.inputs(), requested_output_names=fields.get("outputs", ["OUT"])
    )


def passed_on(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return pb_utils.InferenceResponse(response.output_tensors())

"""
ONE = np.ones(2, np.float32)


def write(root: Path, body: str, name: str = "m", config: str = _CONFIG) -> Path:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(_HEAD + textwrap.dedent(body))
    (root / name / "config.pbtxt").write_text(config)
    return root / name


CALL = """
class TritonPythonModel:
    def execute(self, requests):
        return [passed_on(ask(request).exec()) for request in requests]
"""


def double(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"OUT": inputs["IN"] * 2, "OTHER": inputs["IN"]}


def test_a_function_stands_for_the_called_model(tmp_path: Path) -> None:
    with PythonModel(write(tmp_path, CALL), models={"double": double}) as model:
        assert model.infer({"IN": ONE})["OUT"].tolist() == [2, 2]


def test_a_coroutine_gathers_calls(tmp_path: Path) -> None:
    body = """
    class TritonPythonModel:
        async def execute(self, requests):
            return [passed_on(each) for each in await asyncio.gather(*(ask(one).async_exec() for one in requests))]
    """
    with PythonModel(write(tmp_path, body), models={"double": double}) as model:
        assert [outputs["OUT"].tolist() for outputs in model.infer_batch([{"IN": ONE}, {"IN": ONE * 3}])] == [
            [2, 2],
            [6, 6],
        ]


def test_errors_and_missing_models_and_outputs(tmp_path: Path) -> None:
    def refuse(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise ModelError("it is too cold")

    path = write(tmp_path, CALL)
    with PythonModel(path, models={"double": refuse}) as model, pytest.raises(ModelError, match="it is too cold"):
        model.infer({"IN": ONE})
    unready = pytest.raises(ModelError, match="Model 'double' is not ready")
    with PythonModel(path, models={"triple": double}) as model, unready:
        model.infer({"IN": ONE})
    lacking = pytest.raises(ModelError, match="unexpected inference output 'OUT' for model 'double'")
    with PythonModel(path, models={"double": lambda inputs: {}}) as model, lacking:
        model.infer({"IN": ONE})
    with PythonModel(path) as model, pytest.raises(pb_utils.TritonModelException, match="no server executes"):
        model.infer({"IN": ONE})


STREAM = """
class TritonPythonModel:
    {prefix}def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            {prefix}for response in {call}:
                sender.send(passed_on(response))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_DECOUPLED = _CONFIG + "model_transaction_policy { decoupled: true }"


def count(inputs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    for number in range(3):
        yield {"OUT": inputs["IN"] + number}


@pytest.mark.parametrize(
    ("prefix", "call"),
    [
        ("", 'ask(request, "count").exec(decoupled=True)'),
        ("async ", 'await ask(request, "count").async_exec(decoupled=True)'),
    ],
)
def test_a_generator_stands_for_a_decoupled_model(tmp_path: Path, prefix: str, call: str) -> None:
    body = STREAM.format(prefix=prefix, call=call)
    with PythonModel(write(tmp_path, body, config=_DECOUPLED), models={"count": count}) as model:
        found = [outputs["OUT"].tolist() for outputs in model.stream({"IN": ONE}) if outputs]
    assert found == [[1, 1], [2, 2], [3, 3]]


def test_decoupled_model_needs_decoupled_call(tmp_path: Path) -> None:
    refused = pytest.raises(ModelError, match="Model double is using the decoupled")
    with PythonModel(write(tmp_path, CALL), models={"double": count}) as model, refused:
        model.infer({"IN": ONE})
    body = STREAM.format(prefix="", call="ask(request).exec(decoupled=True)")
    with PythonModel(write(tmp_path, body, "n", _DECOUPLED), models={"double": double}) as model:
        assert [outputs["OUT"].tolist() for outputs in model.stream({"IN": ONE})] == [[2, 2]]


def test_a_cancelled_iterator(tmp_path: Path) -> None:
    body = """
    class TritonPythonModel:
        def execute(self, requests):
            responses = ask(requests[0], "count").exec(decoupled=True)
            next(responses)
            responses.cancel()
            (last,) = responses
            return [passed_on(last)]
    """
    cancelled = pytest.raises(ModelError, match="has cancelled it")
    with PythonModel(write(tmp_path, body), models={"count": count}) as model, cancelled:
        model.infer({"IN": ONE})


def test_another_model_of_the_repository_is_called(tmp_path: Path) -> None:
    inner_body = """
    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 5)])
                for request in requests
            ]
    """
    with (
        PythonModel(write(tmp_path, inner_body, "inner")) as inner,
        PythonModel(write(tmp_path, CALL, "outer"), models={"double": inner.infer}) as outer,
    ):
        assert outer.infer({"IN": ONE})["OUT"].tolist() == [6, 6]


def test_models_are_loaded_unloaded_and_looked_for(tmp_path: Path) -> None:
    body = """
    class TritonPythonModel:
        def initialize(self, args):
            self.seen = [pb_utils.is_model_ready("double"), pb_utils.is_model_ready("missing")]

        def execute(self, requests):
            pb_utils.unload_model("double")
            self.seen.append(pb_utils.is_model_ready("double"))
            refused = ask(requests[0]).exec().has_error()
            pb_utils.load_model("double")
            self.seen += [refused, pb_utils.is_model_ready("double")]
            pb_utils.load_model("missing")
    """
    with PythonModel(write(tmp_path, body), models={"double": double}) as model:
        with pytest.raises(pb_utils.TritonModelException, match="failed to load 'missing'"):
            model.infer({"IN": ONE})
        assert model.instance.seen == [True, False, False, True, True]


def test_name_is_imported_once_and_removed_with_model(tmp_path: Path) -> None:
    path = write(tmp_path, CALL)
    with PythonModel(path, models={"double": double}), pytest.raises(ValueError, match="'double' is in use"):
        PythonModel(path, models={"double": double})
    with PythonModel(path, models={"double": double}) as model:
        assert model.infer({"IN": ONE})["OUT"].tolist() == [2, 2]


def test_failed_initialization_unloads_loaded_models(tmp_path: Path) -> None:
    body = "class TritonPythonModel:\n    def initialize(self, args):\n        raise OSError('no disk')\n"
    path = write(tmp_path, body)
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            PythonModel(path, models={"double": double})
