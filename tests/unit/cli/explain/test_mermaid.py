"""Pipelines as Mermaid flowcharts."""

from pathlib import Path

from naiad.cli.explain.ensemble_steps import parts_of
from naiad.cli.explain.flowchart import draw_mermaid
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import DataType, ModelConfig

ROOT = Path(__file__).parents[4]
DEMO = ROOT / "src" / "naiad" / "tools" / "demo" / "models"


def ensemble(*steps: tuple[str, dict[str, str], dict[str, str]]) -> ModelConfig:
    config = ModelConfig(name="e", platform="ensemble")
    config.input.add(name="I", data_type=DataType.TYPE_FP32, dims=[-1, 4])
    config.output.add(name="O", data_type=DataType.TYPE_FP32, dims=[4])
    for model, reads, writes in steps:
        config.ensemble_scheduling.step.add(model_name=model, model_version=-1, input_map=reads, output_map=writes)
    return config


def test_nodes_and_edges_of_two_steps() -> None:
    config = ensemble(("first", {"in": "I"}, {"out": "middle"}), ("second", {"in": "middle"}, {"out": "O"}))
    config.parameters["run_if.second"].string_value = "middle"
    members = {"first": ModelConfig(name="first", backend="python")}
    assert draw_mermaid(parts_of(config, members)).splitlines() == [
        "flowchart LR",
        '    n0(["I FP32[?,4]"])',
        '    n1["first<br/>python"]',
        '    n2["second"]',
        '    n3(["O FP32[4]"])',
        '    n0 -- "I" --> n1',
        '    n1 -- "middle" --> n2',
        '    n1 -. "if middle" .-> n2',
        '    n2 -- "O" --> n3',
    ]


def test_tensor_that_passes_a_step_is_one_edge() -> None:
    config = ensemble(("first", {"in": "I"}, {"out": "middle"}), ("second", {"a": "middle", "b": "I"}, {"out": "O"}))
    text = draw_mermaid(parts_of(config))
    assert text.count('-- "I" -->') == 2
    assert text.count("-->") == 4


def test_names_are_escaped() -> None:
    config = ensemble(('a"<b>', {"in": "I"}, {"out": "x#\n`&"}), ("c", {"in": "x#\n`&"}, {"out": "O"}))
    text = draw_mermaid(parts_of(config))
    assert '["a#quot;#lt;b#gt;"]' in text
    assert '-- "x#35; #96;#amp;" -->' in text


def test_page_has_the_flowchart_of_the_demo() -> None:
    configs = {path.parent.name: parse_pbtxt(path.read_text()).config for path in DEMO.glob("*/config.pbtxt")}
    for name in ("ocr_detect", "ocr_direction", "ocr_read"):  # the demo fetches them
        configs[name] = ModelConfig(name=name, backend="onnxruntime")
    drawn = draw_mermaid(parts_of(configs["ocr"], configs))
    assert f"```mermaid\n{drawn}\n```" in (ROOT / "docs" / "ensembles.md").read_text()
