"""Batching strategies of a model's author: found, checked when the model is loaded, and kept from doing harm."""

import importlib.metadata
import logging
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from naiad.backend.api import ModelContext
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.tensor import TensorSpec
from naiad.engine import custom_batching
from naiad.engine.custom_batching import FILE, PARAMETER, BatchRequest, PythonStrategy, read_strategy
from naiad.scheduler.factory import create_scheduler
from support.engine_parts import Answers, config, request

VOLUME = """
def model_batcher_initialize(model_config):
    return int(model_config["parameters"]["MAX_BYTES"]["string_value"])

def model_batch_initialize(batcher):
    return {"left": batcher}

def model_batch_include_request(request, batch):
    batch["left"] -= sum(each.byte_size for each in request.inputs())
    return batch["left"] >= 0
"""


def context_of(
    root: Path, source: str | None = None, *, is_dynamic: bool = True, parameter: str = ""
) -> ModelContext:
    """Return the context of a version with this strategy in its directory."""
    made = config()
    if is_dynamic:
        made.dynamic_batching.SetInParent()
    if parameter:
        made.parameters[PARAMETER].string_value = parameter
    made.parameters["MAX_BYTES"].string_value = "20"
    (root / "1").mkdir(exist_ok=True)
    if source is not None:
        (root / "1" / FILE).write_text(source)
    return ModelContext("m", 1, made, root, root / "1", usable_cores=1)


def strategy_of(root: Path, source: str) -> PythonStrategy:
    context = context_of(root, source)
    strategy = read_strategy(context)
    assert strategy is not None
    strategy.start(context.config)
    return strategy


def refused(context: ModelContext) -> InferError:
    with pytest.raises(InferError) as caught:
        read_strategy(context)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert "model 'm'" in caught.value.message
    return caught.value


def batch_sizes(strategy: PythonStrategy, count: int) -> list[int]:
    scheduler = create_scheduler(context_config(), strategy=strategy)
    for _ in range(count):
        waiting = request(Answers())
        waiting.shape_key = "A"
        scheduler.enqueue(waiting, 1)
    sizes = []
    while (batch := scheduler.take(2)) is not None:
        sizes.append(len(batch.requests))
    return sizes


def context_config():
    made = config()
    made.dynamic_batching.SetInParent()
    return made


class TestFinding:
    def test_no_strategy(self, tmp_path: Path):
        assert read_strategy(context_of(tmp_path)) is None

    def test_version_directory_comes_before_the_model_directory(self, tmp_path: Path):
        """Triton looks for its library in the version's, the model's and the backend's directory."""
        (tmp_path / FILE).write_text("raise RuntimeError('not this one')")
        assert batch_sizes(strategy_of(tmp_path, VOLUME), 5) == [2, 2, 1]

    def test_model_directory(self, tmp_path: Path):
        (tmp_path / FILE).write_text("raise RuntimeError('this one')")
        assert "RuntimeError: this one" in refused(context_of(tmp_path)).message

    @pytest.mark.parametrize("is_absolute", [True, False])
    def test_path_in_the_configuration(self, tmp_path: Path, is_absolute: bool):
        (tmp_path / "rules").mkdir()
        (tmp_path / "rules" / "mine.py").write_text("def model_batch_include_request(request, batch): return False\n")
        path = str(tmp_path / "rules" / "mine.py") if is_absolute else "rules/mine.py"
        strategy = read_strategy(context_of(tmp_path, parameter=path))
        assert strategy is not None
        assert batch_sizes(strategy, 2) == [1, 1]

    def test_entry_point(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        class Rules:
            @staticmethod
            def model_batch_include_request(request: object, batch: object) -> bool:
                return False

        monkeypatch.setattr(custom_batching, "test_rules", Rules, raising=False)
        group = custom_batching.ENTRY_POINT_GROUP
        points = [EntryPoint("mine", "naiad.engine.custom_batching:test_rules", group)]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points)
        strategy = read_strategy(context_of(tmp_path, parameter="mine"))
        assert strategy is not None
        assert batch_sizes(strategy, 2) == [1, 1]

    def test_nothing_is_written_beside_the_file(self, tmp_path: Path):
        strategy_of(tmp_path, VOLUME)
        assert [path.name for path in (tmp_path / "1").iterdir()] == [FILE]

    def test_file_without_a_dynamic_batcher_is_mentioned(self, tmp_path: Path, caplog: pytest.LogCaptureFixture):
        assert read_strategy(context_of(tmp_path, VOLUME, is_dynamic=False)) is None
        assert "no 'dynamic_batching'" in caplog.text


class TestMistakes:
    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("x = 1\n", ["no function 'model_batch_include_request(request, batch)'"]),
            ("def model_batch_include_request(request): return True\n", ["must be a function of (request, batch)"]),
            ("async def model_batch_include_request(r, b): return True\n", ["must be a function of"]),
            ("model_batch_include_request = 3\n", ["must be a function of"]),
            (
                "def model_batch_include_reqest(request, batch): return True\n",
                ["unknown 'model_batch_include_reqest'", "did you mean 'model_batch_include_request'"],
            ),
            ("\n\n1 +\n", ["SyntaxError", "line 3"]),
            ("\nimport nothing_like_this\n", ["ModuleNotFoundError", "line 2"]),
        ],
    )
    def test_wrong_file_is_refused_with_the_reason(self, tmp_path: Path, source: str, words: list[str]):
        error = refused(context_of(tmp_path, source))
        for word in (str(tmp_path / "1" / FILE), *words):
            assert word in error.message

    def test_file_that_is_not_there(self, tmp_path: Path):
        error = refused(context_of(tmp_path, parameter="rules.py"))
        assert str(tmp_path / "rules.py") in error.message
        assert "No such file" in error.message

    def test_entry_point_that_is_not_installed(self, tmp_path: Path):
        assert "neither a .py file nor an entry point" in refused(context_of(tmp_path, parameter="mine")).message

    def test_library_of_triton(self, tmp_path: Path):
        assert "shared library" in refused(context_of(tmp_path, parameter="/x/batchstrategy.so")).message
        (tmp_path / "batchstrategy.so").touch()
        assert "shared library" in refused(context_of(tmp_path)).message

    def test_parameter_without_a_dynamic_batcher(self, tmp_path: Path):
        error = refused(context_of(tmp_path, VOLUME, is_dynamic=False, parameter="1/" + FILE))
        assert "add 'dynamic_batching { }'" in error.message

    def test_batcher_that_does_not_start(self, tmp_path: Path):
        source = VOLUME.replace("MAX_BYTES", "MAX_VOLUME")
        context = context_of(tmp_path, source)
        strategy = read_strategy(context)
        assert strategy is not None
        with pytest.raises(InferError, match=r"'model_batcher_initialize' .* at line 3: KeyError: 'MAX_VOLUME'"):
            strategy.start(context.config)


class TestRunning:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("return 1 / 0", "ZeroDivisionError"),
            ("return None", "expected True or False"),
            ("return 'yes'", "expected True or False"),
        ],
    )
    def test_failure_closes_the_batch_and_is_logged_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, said: str
    ):
        """Triton: an error of the hook is logged, and the request is not included."""
        strategy = strategy_of(tmp_path, f"def model_batch_include_request(request, batch):\n    {body}\n")
        assert batch_sizes(strategy, 3) == [1, 1, 1]
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert said in record.getMessage()

    def test_failure_of_another_function(self, tmp_path: Path, caplog: pytest.LogCaptureFixture):
        source = VOLUME.replace('return {"left": batcher}', "raise OSError('no record')")
        strategy = strategy_of(tmp_path, source)
        assert batch_sizes(strategy, 2) == [1, 1]
        assert "no record" in caplog.text

    def test_records_are_ended_and_the_batcher_is_finalized(self, tmp_path: Path):
        log = tmp_path / "log"
        source = (
            "def model_batch_include_request(request, batch): return batch.append(request.request_id) or True\n"
            "def model_batch_initialize(batcher): return []\n"
            f"def note(what): open({str(log)!r}, 'a').write(what + '\\n')\n"
            "def model_batch_finalize(batch): note(f'batch of {len(batch)}')\n"
            "def model_batcher_finalize(batcher): note('the end')\n"
        )
        strategy = strategy_of(tmp_path, source.replace(".append(request.request_id) or", ".append(1) is None and"))
        assert batch_sizes(strategy, 3) == [3]
        strategy.close()
        assert log.read_text() == "batch of 3\nthe end\n"

    def test_numpy_truth_is_truth(self, tmp_path: Path):
        source = "import numpy as np\ndef model_batch_include_request(request, batch): return np.bool_(True)\n"
        assert batch_sizes(strategy_of(tmp_path, source), 3) == [3]


def test_what_a_strategy_sees_of_a_request():
    specs = [TensorSpec("IN", DataType.FP32, (1, 2)), TensorSpec("TEXT", DataType.BYTES, (1, 1))]
    header = RequestHeader(
        model_name="m", inputs=specs, parameters={"lane": "a"}, priority=3, timeout_us=5, sequence_id=9
    )
    data = [np.array([1, 2], np.float32).tobytes(), b"\x02\x00\x00\x00hi"]
    seen = BatchRequest(InferRequest(header, data, Answers(), id="x", arrival_ns=1))
    assert (seen.request_id, seen.priority, seen.timeout_us, seen.correlation_id) == ("x", 3, 5, 9)
    assert (seen.batch_size, dict(seen.parameters)) == (1, {"lane": "a"})
    assert seen.waited_s > 0
    first, text = seen.inputs()
    assert (first.name, first.datatype, tuple(first.shape), first.byte_size) == ("IN", "FP32", (1, 2), 8)
    assert first.as_numpy().tolist() == [[1.0, 2.0]]
    assert text.as_numpy().tolist() == [[b"hi"]]
    assert seen.input("TEXT") is not None
    assert seen.input("OTHER") is None
