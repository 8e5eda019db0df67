"""The source's answers: asked for once, kept in a file, and right in all datatypes."""

import ml_dtypes
import numpy as np
import pytest

from naiad.tools.optimize.correctness.runners.model_runner import CallableRunner, RunnerError
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.sources.reference import reference_runner
from naiad.tools.optimize.sources.source_answers import CachedAnswers


class Asked:
    """A source that counts its calls."""

    def __init__(self, answer=lambda inputs: {"y": inputs["x"] * 2}):
        self.count = 0
        self._answer = answer

    def runner(self):
        def call(inputs):
            self.count += 1
            return self._answer(inputs)

        return CallableRunner(call)


def requests(count=3):
    return [{"x": np.full((1, 4), number, np.float32)} for number in range(count)]


def answers(asked, folder, of, **settings):
    cached = CachedAnswers(asked.runner, folder, **settings)
    found = [cached.infer(each)["y"] for each in of]
    cached.close()
    return found


def test_second_reading_asks_nothing(tmp_path):
    asked = Asked()
    first = answers(asked, tmp_path, [*requests(), *requests()])
    again = answers(asked, tmp_path, reversed(requests()))
    assert asked.count == 3
    np.testing.assert_array_equal(first[:3], again[::-1])
    assert again[0].dtype == np.float32


def test_cut_record_is_asked_again(tmp_path):
    asked = Asked()
    answers(asked, tmp_path, requests())
    file = tmp_path / "answers"
    for kept in (-3, -16 - 10):  # In the data, in the text before it.
        file.write_bytes(file.read_bytes()[:kept])
        found = answers(asked, tmp_path, requests())
        np.testing.assert_array_equal(found[2], np.full((1, 4), 4.0))
    assert asked.count == 5


def test_answers_beyond_the_limit_are_computed(tmp_path):
    asked = Asked()
    for _ in range(2):
        answers(asked, tmp_path, requests(), max_bytes=300)
    assert asked.count == 3 + 1
    assert (tmp_path / "answers").stat().st_size <= 300


@pytest.mark.parametrize(
    "array",
    [
        np.array([[b"a\0", b""]], object),
        np.array([1.5], ml_dtypes.bfloat16),
        np.array(7, np.int64),
        np.array([[True, False]]),
        np.array([np.nan, np.inf], np.float16),
        np.zeros((0, 3), np.float64),
    ],
    ids=["text", "bf16", "scalar", "bool", "fp16", "empty"],
)
def test_answers_keep_datatype_and_shape(tmp_path, array):
    asked = Asked(lambda inputs: {"y": array})
    for _ in range(2):
        found = answers(asked, tmp_path, requests(1))[0]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
    assert asked.count == 1


def test_failure_of_the_source_is_not_kept(tmp_path):
    asked = Asked(lambda inputs: {"y": inputs["z"]})
    for _ in range(2):
        with pytest.raises(RunnerError, match="KeyError: 'z'"):
            answers(asked, tmp_path, requests(1))
    assert asked.count == 2


def test_python_callable_is_the_reference_itself(tmp_path):
    source = Source("f", Format.PYTHON, tmp_path, load=lambda: lambda inputs: {"y": inputs["x"] + 1})
    runner = reference_runner(source, tmp_path)
    np.testing.assert_array_equal(runner.infer(requests(1)[0])["y"], np.ones((1, 4)))
