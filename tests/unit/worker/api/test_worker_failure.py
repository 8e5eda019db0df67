"""Error texts of a failed model have the frames of the model, not the frames of the worker."""

import inspect

import pytest

from naiad.worker import loop
from naiad.worker.api import failure, tensor
from naiad.worker.channel import frame


@pytest.mark.parametrize("module", [failure, tensor, frame, loop])
def test_worker_frames_are_left_out(module):
    # Triton: the text of a failed `execute` has no frames but the model's.
    calls = compile("def call(function):\n    function()\n", inspect.getfile(module), "exec")
    names = {}
    exec(calls, names)

    def fails():
        raise ValueError("no such animal")

    with pytest.raises(ValueError, match="no such animal") as caught:
        names["call"](fails)
    text = failure.describe(caught.value)
    here = f"  {__file__}"
    assert text.startswith(f"ValueError: no such animal\n\nAt:\n{here}(")
    assert all(line.startswith(here) for line in text.splitlines()[3:])
    assert inspect.getfile(module) not in failure.format_traceback(caught.value)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError: <EMPTY MESSAGE>"),
        (
            Unprintable(),
            "Unprintable: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\n"
            "MESSAGE UNAVAILABLE DUE TO EXCEPTION: KeyError",
        ),
    ],
)
def test_exceptions_without_text_keep_their_class(error, text):
    assert failure.describe(error) == text
    assert type(error).__name__ in failure.format_traceback(error)


def test_long_texts_lose_their_middle():
    error = ValueError("begin " + "7, " * 1_000_000 + "end")
    for text in (failure.describe(error), failure.format_traceback(error)):
        assert len(text) < 70_000
        assert text.startswith("ValueError: begin 7, ")
        assert "characters are left out" in text
        assert text.rstrip().endswith("7, end")
