"""What is written of a winner: only what was compared, and only the values that it changes."""

from pathlib import Path

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.analysis import recommended
from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.point_measurement import Measured, Ranked, Ranking
from naiad.tools.analyze.settings.analysis_settings import AnalysisSettings, ModelSettings, ServerSettings
from naiad.tools.analyze.space import Point, Variant
from naiad.tools.analyze.variants import make_variant
from naiad.tools.analyze.winner import differences, write_winner

TEXT = """# Ask Kim.
backend: "onnxruntime"
max_batch_size: 1  # pictures
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
"""


def served() -> ModelConfig:
    """As a server completes it."""
    found = parse_pbtxt(TEXT).config
    found.name = "m"
    found.instance_group[0].name = "m_0"
    found.optimization.input_pinned_memory.enable = True
    return found


def settings(tmp_path: Path, repository: str = "models") -> AnalysisSettings:
    return AnalysisSettings(
        models=[ModelSettings("m", Goal())],
        server=ServerSettings(repository=str(tmp_path / repository) if repository else ""),
        output_repository=str(tmp_path / "best"),
    )


def winner() -> Variant:
    return make_variant(served(), {"max_batch_size": 8, "instance_group.count": 2}, "m_config_3")


def test_comments_stay_and_nothing_is_added(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(TEXT)
    (folder / "1" / "model.onnx").write_bytes(b"weights")
    chosen = settings(tmp_path)
    (path,) = write_winner(chosen, [winner()], {"m": served()}, {})
    expected = TEXT.replace("max_batch_size: 1", "max_batch_size: 8").replace("count: 1", "count: 2")
    assert path.read_text() == expected
    assert (path.parent / "1" / "model.onnx").read_bytes() == b"weights"
    assert (folder / "config.pbtxt").read_text() == TEXT
    shown = differences(chosen, [winner()], {"m": served()})["m"]
    assert "+max_batch_size: 8  # pictures" in shown
    assert "pinned" not in shown


def test_model_without_a_file_gets_the_whole_configuration(tmp_path: Path) -> None:
    (path,) = write_winner(settings(tmp_path, ""), [winner()], {"m": served()}, {})
    expected = served()
    expected.max_batch_size = 8
    expected.instance_group[0].count = 2
    assert parse_pbtxt(path.read_text()).config == expected


@pytest.mark.parametrize("is_compared", [True, False])
def test_only_a_compared_winner_is_recommended(is_compared: bool) -> None:
    point = Point((winner(),), 4)
    measured = Measured(point)
    ranking = Ranking(Ranked(measured, None, meets_constraints=True), (), None, [measured], is_compared=is_compared)
    assert list(recommended(ranking)) == ([winner()] if is_compared else [])
    assert list(recommended(Ranking(None, (), None, [measured], is_compared=True))) == []
