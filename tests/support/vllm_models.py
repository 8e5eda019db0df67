"""Directories in Triton's layout for vLLM, and the double that generates with them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOUBLE = Path(__file__).parent / "vllm_double"
"""The directory to put on the path of Python: its package has vLLM's name."""
ARGUMENTS: Mapping[str, Any] = {"model": "words", "gpu_memory_utilization": 0.5, "enforce_eager": True}
LAYOUT = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
"""The configuration of Triton's sample."""


def write_vllm(version_dir: Path, **arguments: Any) -> None:
    """Write a version with these arguments beside the usual ones."""
    version_dir.mkdir(parents=True, exist_ok=True)
    (version_dir / "model.json").write_text(json.dumps({**ARGUMENTS, **arguments}))
