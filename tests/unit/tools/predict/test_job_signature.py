"""The signature of a job: models whose rows could not be predicted."""

import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.tools.predict.job_signature import read_signature
from naiad.tools.predict.prediction_job import PredictJob
from support.batch_parts import metadata


def test_a_model_without_outputs_is_refused():
    job = PredictJob("http://localhost:8000", "m", ["in.jsonl"], "out.jsonl")
    with pytest.raises(InferError, match="model 'm' has no outputs in its metadata: its rows would be empty"):
        read_signature(job, *metadata({"X": (DataType.FP32, (1,))}, {}))
