"""The file of measurements: resumed without repeating, also after a torn line."""

import asyncio
from pathlib import Path

import pytest
from tests.support.analyze_simulation import MODELS, SimulatedInstrument, grid, settings, within

from naiad.tools.analyze.point_measurement import Measured, Ranking
from naiad.tools.analyze.search import CheckpointError, SearchCheckpoint, fingerprint, search
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.measure.result import Result
from naiad.tools.measure.result_json import to_json

SMALL = grid((1, 4, 16), (1, 2))


def searched(path: Path, instrument: SimulatedInstrument, name: str = "a") -> Ranking:
    async def run() -> Ranking:
        with SearchCheckpoint(path, name) as checkpoint:
            return await search("brute", SMALL, within(60.0), instrument, settings(), checkpoint=checkpoint)

    return asyncio.run(run())


def recorded(path: Path, point: Point) -> list[Measured]:
    with SearchCheckpoint(path, "a") as checkpoint:
        return list(iter(lambda: checkpoint.take(point), None))


def instrument() -> SimulatedInstrument:
    return SimulatedInstrument(MODELS["language model"], 5)


def test_measurement_survives_the_file(tmp_path: Path) -> None:
    point = Point((Variant("m", "m_config_0", {"max_batch_size": 4, "preferred": [2, 4]}, "{}", "m_int8"),), 8)
    made = asyncio.run(instrument().measure(point, 1.0))
    with SearchCheckpoint(tmp_path / "new" / "file", "a") as checkpoint:
        checkpoint.append(made)
    (found,) = recorded(tmp_path / "new" / "file", point)
    assert (found.point, found.metrics, found.duration_s) == (point, made.metrics, made.duration_s)
    # Empty tuples come back as empty lists.
    assert to_json(Result([], "", {}, None, [found.rows["m"]])) == to_json(Result([], "", {}, None, [made.rows["m"]]))


def test_killed_search_continues_without_repeating(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.jsonl"
    whole = searched(tmp_path / "other.jsonl", instrument())
    lines = (tmp_path / "other.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]) + lines[10][:200])
    rest = instrument()
    ranking = searched(path, rest)
    assert len(rest.points) == pytest.approx(len(lines) - 10, abs=12)
    assert ranking.winner is not None
    assert whole.winner is not None
    assert [each.point for each in ranking.measurements[:10]] == [each.point for each in whole.measurements[:10]]
    assert ranking.measurements[3].metrics == whole.measurements[3].metrics


def test_finished_search_is_not_measured_again(tmp_path: Path) -> None:
    first = searched(tmp_path / "checkpoint.jsonl", instrument())
    idle = instrument()
    again = searched(tmp_path / "checkpoint.jsonl", idle)
    assert idle.points == []
    assert again.reason == first.reason
    assert [each.measured.metrics for each in again.candidates] == [
        each.measured.metrics for each in first.candidates
    ]


def test_other_fingerprint_is_not_used(tmp_path: Path) -> None:
    searched(tmp_path / "checkpoint.jsonl", instrument())
    again = instrument()
    searched(tmp_path / "checkpoint.jsonl", again, "b")
    assert len(again.points) > 10


def test_torn_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.jsonl"
    point = Point((Variant("m", "m_config_0", {}),), 1)
    with SearchCheckpoint(path, "a") as checkpoint:
        checkpoint.append(Measured(point, error="no memory"))
    with path.open("ab") as file:
        file.write(b'{"version": 1, "finger')
    with SearchCheckpoint(path, "a") as checkpoint:
        checkpoint.append(Measured(point, error="again"))
        taken = [checkpoint.take(point) for _ in range(2)]
    assert [each.error if each else None for each in taken] == ["no memory", None]
    assert [each.error for each in recorded(path, point)] == ["no memory", "again"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "1 is not a measurement"),
        ("[1]", "1 is not a measurement"),
        ('{"version": 9}', "version 9 of the checkpoint is not supported, expected 1"),
    ],
)
def test_foreign_file_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "checkpoint.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CheckpointError, match=message):
        SearchCheckpoint(path, "a")


def test_fingerprint_follows_files_and_facts(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"weights")
    first = fingerprint([tmp_path], ["naiad 1.0", "max_batch_size: 8"])
    assert fingerprint([tmp_path], ["naiad 1.0", "max_batch_size: 8"]) == first
    assert fingerprint([tmp_path], ["naiad 1.1", "max_batch_size: 8"]) != first
    (tmp_path / "1" / "model.onnx").write_bytes(b"Weights")
    assert fingerprint([tmp_path], ["naiad 1.0", "max_batch_size: 8"]) != first
