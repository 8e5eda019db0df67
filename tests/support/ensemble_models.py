"""Ensembles for tests, over the add/sub models."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from support.model_repository import write_model

Step = tuple[str, Mapping[str, str], Mapping[str, str]]
"""Model, input_map, output_map."""


def tensor(name: str, datatype: str = "FP32", dims: str = "16", extra: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] {extra} }}'


def write_ensemble(
    repository: Path,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    steps: Sequence[Step],
    *,
    max_batch_size: int = 8,
    extra: str = "",
    scheduling: str = "",
) -> Path:
    """Write an ensemble of `steps`; `inputs` and `outputs` come from `tensor`."""

    def mapping(field: str, entries: Mapping[str, str]) -> str:
        return " ".join(f'{field} {{ key: "{key}" value: "{value}" }}' for key, value in entries.items())

    written = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 {mapping("input_map", reads)} {mapping("output_map", writes)} }}'
        for model, reads, writes in steps
    )
    config = f"""
      platform: "ensemble" max_batch_size: {max_batch_size}
      input [ {", ".join(inputs)} ] output [ {", ".join(outputs)} ] {extra}
      ensemble_scheduling {{ {scheduling} step [ {written} ] }}
    """
    path = write_model(repository, name, config, {})
    (repository / name / "1").mkdir(exist_ok=True)
    return path
