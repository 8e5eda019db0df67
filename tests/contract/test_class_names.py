"""A class name means one thing: few public names occur twice in src.

A class has its owner's word in its name: `SearchCheckpoint`, `JobCheckpoint`. Searches, stack traces and logs then
say which one is meant. SHARED lists the names that occur twice, with the reason. A new one is renamed, or adds its
line.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"
MODELS = "naiad/tools/demo/models/"
MAX_SHARED = 15

SAME = "the same thing for two protocols or formats"
INTERFACE = "the name in an interface that naiad is compatible with"

SHARED = {
    "ErrorCode": "Triton's error codes, in the server and for Python models, which cannot import the server",
    "Graph": SAME,
    "LateResponses": "both ends of one mechanism",
    "ModelConfig": INTERFACE,
    "Program": SAME,
    "RepeatedRequest": SAME,
    "RequestHead": SAME,
    "Tensor": INTERFACE,
    "TensorSpec": INTERFACE,
}


def test_public_class_names_are_unique() -> None:
    places = defaultdict(list)
    for module, name in public_classes():
        places[name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    new = [f"{name}: {', '.join(sorted(twice[name]))}" for name in sorted(twice.keys() - SHARED)]
    assert not new, "rename all but one, with the word of its owner:\n" + "\n".join(new)
    assert not SHARED.keys() - twice, "remove from SHARED what occurs once"
    assert len(twice) <= MAX_SHARED


def public_classes() -> Iterator[tuple[str, str]]:
    """Yield the public classes of modules, each with its module; generated modules and users' models are left out."""
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT).as_posix()
        if not module.startswith(MODELS) and not module.endswith("_pb2.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield module, node.name
