"""Exits of worker processes in words, and their output in the log."""

import logging

import pytest

from naiad.backend.workers.process.worker_process import LineSplitter, describe_exit, log_line


@pytest.mark.parametrize(
    ("returncode", "oom_kills", "said"),
    [
        (1, 0, "exited with code 1"),
        (0, 0, "exited with code 0"),
        (-11, 0, "was killed by SIGSEGV"),
        (-11, 1, "was killed by SIGSEGV"),
        (-9, 0, "was killed by SIGKILL"),
        (-9, 1, "was killed by SIGKILL, probably by the kernel because memory ran out"),
        (-63, 0, "was killed by signal 63"),
    ],
)
def test_exits_in_words(returncode, oom_kills, said):
    assert describe_exit(returncode, oom_kills) == said


def test_lines_of_native_code_are_put_together():
    splitter = LineSplitter()
    assert splitter.split(b"one\ntw") == ["one"]
    assert splitter.split(b"o\n\n\xff") == ["two"]
    assert splitter.rest() == ["\ufffd"]
    assert splitter.split(b"x" * 70_000) == ["x" * 70_000]


def test_lines_carry_model_place_and_ids(caplog):
    with caplog.at_level(logging.INFO, "naiad.model"):
        log_line("m", logging.WARNING, "/models/m/1/model.py", 12, "100 % {done}", "a\0b")
        log_line("m", logging.INFO, "f.py", 1, "idle", "")
        log_line("m", logging.DEBUG, "f.py", 1, "not shown", "")
    first, second = caplog.records
    assert first.getMessage() == "[request id: a, b] model 'm': 100 % {done}"
    assert (first.filename, first.lineno, first.levelno) == ("model.py", 12, logging.WARNING)
    assert second.getMessage() == "model 'm': idle"
