"""Answers of several processes as one."""

from naiad.telemetry.live.live_answer import (
    CallCounts,
    InstanceRow,
    LiveAnswer,
    LiveDetail,
    merge_answers,
    with_process,
)

NAME = ("caller", "")


def answer(calls: dict[str, CallCounts]) -> LiveAnswer:
    """The answer of a process with one instance."""
    rows = [InstanceRow("caller_0_0", "KIND_CPU", None, busy=False)]
    return LiveAnswer(True, 1.0, 2, 3, {}, details={NAME: LiveDetail("1", [], [], [], rows, calls)})


def test_instances_of_processes_have_their_number():
    merged = merge_answers([with_process(answer({}), number) for number in (1, 3)], {})
    rows = merged.details[NAME].instances
    assert [(row.name, row.process) for row in rows] == [("caller_0_0", 1), ("caller_0_0", 3)]


def test_the_only_process_has_no_number():
    assert [row.process for row in answer({}).details[NAME].instances] == [None]


def test_calls_are_sums_of_all_processes():
    answers = [answer({"a": CallCounts(1, 2, 30), "b": CallCounts(1, 0, 5)}), answer({"a": CallCounts(10, 0, 100)})]
    assert merge_answers(answers, {}).details[NAME].calls == {"a": CallCounts(11, 2, 130), "b": CallCounts(1, 0, 5)}
