"""The files of Python models: where they are, and which of them may complete their configuration."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from naiad.backend.python.backend import find_model_file, may_complete
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support.backend_parts import make_context


def test_missing_and_misnamed_files(tmp_path):
    with pytest.raises(InferError, match=r"Python model file not found in '.*/1/model.py'") as caught:
        find_model_file(make_context(ModelConfig(name="m"), tmp_path))
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(InferError, match=r"Model name must end with '.py'"):
        find_model_file(make_context(ModelConfig(name="m", default_model_filename="model.txt"), tmp_path))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class TritonPythonModel:\n    def execute(self, requests): ...", False),
        ("class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): return c", True),
        ("class TritonPythonModel:\n    auto_complete_config = complete", True),
        ("class TritonPythonModel(Base):\n    pass", True),
        ("@completing\nclass TritonPythonModel:\n    pass", True),
        ("from elsewhere import TritonPythonModel", True),
        ("this is no python", True),
    ],
)
def test_only_models_that_may_complete_are_asked(tmp_path, source, expected):
    path = tmp_path / "model.py"
    path.write_text(source)
    assert may_complete(path) is expected


def test_models_are_parsed_in_several_threads(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("x = [" + "(1, [2]), " * 1000 + "]\nclass TritonPythonModel:\n    pass\n")

    def give_way(*_):
        """Let another thread run while this one parses."""
        time.sleep(0.001)

    gc.callbacks.append(give_way)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert not any(pool.map(may_complete, [path] * 4))
    finally:
        gc.callbacks.remove(give_way)
