"""`naiad.testing` runs models in plain tests."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from naiad.testing import ModelError, PythonModel
from naiad.worker.api import pb_utils
from naiad.worker.execution.execution import ExecutionFault

_HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils

"""
CONFIG = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def write(root: Path, body: str, config: str = CONFIG) -> Path:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.py").write_text(_HEAD + textwrap.dedent(body))
    (root / "m" / "config.pbtxt").write_text(config)
    return root / "m"


SCALE = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.calls = 0

    def execute(self, requests):
        self.calls += 1
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (value < 0).any():
                error = pb_utils.TritonError("it is below zero")
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value * 2)]))
        return responses

    def finalize(self):
        self.args = None
"""


def test_a_request(tmp_path: Path) -> None:
    with PythonModel(write(tmp_path, SCALE)) as model:
        outputs = model.infer({"IN": np.array([1, 2], np.float32)})
        assert outputs["OUT"].tolist() == [2, 4]
        assert model.instance.args["model_name"] == "m"
        assert model.instance.args["model_version"] == "1"
    assert model.instance.args is None


def test_an_error_and_a_batch(tmp_path: Path) -> None:
    with PythonModel(write(tmp_path, SCALE)) as model:
        with pytest.raises(ModelError, match="it is below zero"):
            model.infer({"IN": np.array([-1], np.float32)})
        good, bad = model.infer_batch([{"IN": np.array([1], np.float32)}, {"IN": np.array([-1], np.float32)}])
        assert isinstance(good, dict)
        assert isinstance(bad, ModelError)
        assert model.instance.calls == 2


def test_what_execute_returns_is_held_to_the_rules(tmp_path: Path) -> None:
    body = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    with PythonModel(write(tmp_path, body)) as model, pytest.raises(ExecutionFault, match="Number of InferenceResp"):
        model.infer({"IN": np.zeros(1, np.float32)})


def test_bare_file_and_completed_configuration(tmp_path: Path) -> None:
    body = """
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]})
            return config

        async def execute(self, requests):
            names = [sorted(request.requested_output_names()) for request in requests]
            made = [pb_utils.Tensor("OUT", np.array([len(name)], np.float32)) for name in names]
            return [pb_utils.InferenceResponse([tensor]) for tensor in made]
    """
    path = write(tmp_path, body, config="")
    with PythonModel(path / "1" / "model.py") as model:
        assert [output.name for output in model.config.output] == ["OUT"]
        assert model.infer({})["OUT"].tolist() == [1]


def test_a_decoupled_model(tmp_path: Path) -> None:
    body = """
    import threading


    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.count, args=(request.get_response_sender(),)).start()

        def count(self, sender):
            for number in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    config = CONFIG + "model_transaction_policy { decoupled: true }"
    with PythonModel(write(tmp_path, body, config)) as model:
        assert model.is_decoupled
        found = [float(outputs["OUT"][0]) for outputs in model.stream({"IN": np.zeros(1, np.float32)})]
    assert found == [0, 1, 2]


def test_sequence_flags_parameters_and_ids_arrive(tmp_path: Path) -> None:
    body = """
    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            text = f"{request.request_id()} {request.correlation_id()} {request.flags()} {request.parameters()}"
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text.encode()], np.object_))])]
    """
    with PythonModel(write(tmp_path, body)) as model:
        outputs = model.infer({}, request_id="r", correlation_id=7, flags=1, parameters={"a": 1})
    assert outputs["OUT"][0] == b'r 7 1 {"a": 1}'


# --- metrics --------------------------------------------------------------------------------------------------------

COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        Family = pb_utils.MetricFamily
        self.family = Family(name="requests_total", description="Requests", kind=Family.COUNTER)
        self.rows = Family("rows", "Rows", Family.HISTOGRAM)
        self.sizes = self.rows.Metric(labels={}, buckets=[1, 4])

    def execute(self, requests):
        self.family.Metric(labels={"kind": "all"}).increment(len(requests))
        for request in requests:
            self.sizes.observe(len(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()))
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_metrics_can_be_looked_at(tmp_path):
    (tmp_path / "model.py").write_text(COUNTING)
    with PythonModel(tmp_path) as model:
        assert model.metrics["rows_count"] == 0
        model.infer({"IN": np.zeros((3, 1), np.float32)})
        model.infer({"IN": np.zeros((1, 1), np.float32)})
        assert model.metrics == {
            'requests_total{kind="all"}': 2,
            'rows_bucket{le="1"}': 1,
            'rows_bucket{le="4"}': 2,
            'rows_bucket{le="+Inf"}': 2,
            "rows_sum": 4,
            "rows_count": 2,
        }
        with pytest.raises(pb_utils.TritonModelException, match="Family name already exists with different type"):
            pb_utils.MetricFamily("rows", "", pb_utils.MetricFamily.GAUGE)
        with pytest.raises(pb_utils.TritonModelException, match="Error when creating Metric: Invalid label name"):
            model.instance.family.Metric(labels={"a b": ""})
    with pytest.raises(pb_utils.TritonModelException, match="no server counts metrics here"):
        pb_utils.MetricFamily("rows", "", pb_utils.MetricFamily.GAUGE)


def test_documented_model_counts_as_documented(tmp_path):
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
    (model_file, *_) = re.findall(r"```python\n(import.*?)```", page, re.DOTALL)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "model.py").write_text(model_file)
    with PythonModel(tmp_path / "words") as model:
        model.infer({"TEXT": np.array([b"two words"], np.object_)})
        model.infer({"TEXT": np.array([b"and three more"], np.object_)})
        for line in (
            'tokens_total{model="words",version="1"} 5',
            'tokens_per_answer_bucket{model="words",version="1",le="16"} 2',
        ):
            series, _, value = line.rpartition(" ")
            assert line in page
            assert model.metrics[series] == float(value)
