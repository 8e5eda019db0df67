"""Unit tests stand where their subject stands: tests/unit/PATH has the tests of src/naiad/PATH.

A file is in the folder of which it imports something. OTHERS lists the files that start programs instead, or test
what is not in src, with the reason.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT, SRC = ROOT / "tests" / "unit", ROOT / "src" / "naiad"

SCENE = "its subject is built by a scene of tests/support"

OTHERS = {
    "attack/test_connection.py": "the attack suite is beside src",
    "backend/onnx/test_onnx_destinations.py": SCENE,
    "backend/onnx/test_onnx_scalars.py": SCENE,
    "engine/ensemble/test_ensemble_run.py": SCENE,
    "engine/serving/test_sequence_stop.py": SCENE,
    "engine/serving/test_worker_restarts.py": SCENE,
    "server/test_start_imports.py": "imports happen in an interpreter of its own",
    "tools/perf/statistics/test_coverage.py": "the simulation of tests/support measures",
    "worker/test_pb_model_config.py": "a model imports what is tested by Triton's name",
    "worker/test_start_imports.py": "imports happen in an interpreter of its own",
}


def test_unit_tests_are_where_their_subject_is() -> None:
    misplaced = []
    for path in sorted(UNIT.rglob("test_*.py")):
        name = path.relative_to(UNIT).as_posix()
        folder = Path(name).parent.as_posix()
        if name not in OTHERS and not imports_from(path, folder):
            misplaced.append(name)
    assert misplaced == []


def test_exceptions_are_needed() -> None:
    for name in OTHERS:
        path = UNIT / name
        assert path.exists(), name
        assert not imports_from(path, path.parent.relative_to(UNIT).as_posix()), name


def imports_from(path: Path, folder: str) -> bool:
    """Return whether a file imports something of a folder of src, or of what stands below it."""
    if not (SRC / folder).is_dir():
        return False
    package = f"naiad.{folder.replace('/', '.')}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        if any(module == package or module.startswith(f"{package}.") for module in modules):
            return True
        parent, _, own = package.rpartition(".")
        if isinstance(node, ast.ImportFrom) and node.module == parent and own in [each.name for each in node.names]:
            return True
    return False
